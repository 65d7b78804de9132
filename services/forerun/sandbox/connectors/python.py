"""Tools that are Python functions in the worker's own process. For functions that the operator trusts."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from typing import Final

from forerun.core.canonical import CanonicalError, JsonValue, canonical
from forerun.core.intake import sanitise
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.connectors.port import Invocation, Result, Sink, rejected
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import PythonEndpoint

# How long a call that runs ahead of time holds its seat for a thread that does not end. Shorter than the margin that
# callers give a stream over the call's own deadline.
_THREAD_SECONDS: Final = 3.0


class PythonConnector:
    """Calls functions: coroutines on the event loop, others in a thread.

    A coroutine is cancelled with its call. A thread cannot be stopped: its late result is dropped. Calls ahead of time
    have threads of their own, so that those they leave behind are never the ones that real calls need, and end only
    with their thread, or after three seconds.

    A returned string or bytes is the observation as it is; any other value becomes JSON. NaN and infinities become
    null, and the media type names their paths (`nulled`). An exception is the tool's own error, with type and message.

    Args:
        threads: Functions that may run in threads at once, for real calls and for those ahead of time each.
    """

    def __init__(self, *, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tool")
        # As many: a call ahead of time that is promoted keeps its thread while its seat is free for another.
        self._ahead = ThreadPoolExecutor(threads, thread_name_prefix="tool-ahead")
        self._functions: dict[str, Callable[..., object]] = {}

    async def call(self, invocation: Invocation, sink: Sink) -> Result:
        """Calls a function.

        Raises:
            ToolFault: There is no such function.
        """
        endpoint = invocation.tool.endpoint
        assert isinstance(endpoint, PythonEndpoint)
        function = self._function(endpoint.entry_point)
        arguments = {name: _python(value) for name, value in invocation.arguments.items()}
        try:
            if inspect.iscoroutinefunction(function):
                value: object = await function(**arguments)
            else:
                value = await self._in_thread(lambda: function(**arguments), speculative=invocation.speculative)
            return _result(value)
        except Exception as error:
            return Result(
                canonical({"error": {"type": type(error).__name__, "message": _message(error)}}), "application/json",
                tool_error=True,
            )  # fmt: skip

    def ends_with_call(self, invocation: Invocation) -> bool:
        """No: a thread goes on to the end of its function, and nobody knows whom a coroutine has asked."""
        return False

    async def close_session(self, owner: Owner) -> None:
        """Nothing is kept for a session."""

    async def close(self) -> None:
        """Lets no new call start; running threads end with their functions."""
        for executor in (self._executor, self._ahead):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], object], *, speculative: bool) -> object:
        job = (self._ahead if speculative else self._executor).submit(work)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        waiting = asyncio.wrap_future(job)
        # Cancelling `waiting` would hide the end of the thread, so the wait for it goes by the job itself.
        job.add_done_callback(lambda _: _tell(loop, ended))
        try:
            return await waiting
        except asyncio.CancelledError:
            if speculative:
                await to_the_end(_bounded(ended))
            raise

    def _function(self, entry_point: str) -> Callable[..., object]:
        if entry_point not in self._functions:
            module, _, name = entry_point.partition(":")
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError, ValueError) as error:
                raise rejected(
                    ErrorReason.POLICY_INVALID,
                    f"{entry_point} names no function that can be imported",
                    entry_point=entry_point,
                ) from error
            self._functions[entry_point] = found
        return self._functions[entry_point]


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has closed: a thread may outlive the process's work
        loop.call_soon_threadsafe(ended.set)


async def _bounded(ended: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_THREAD_SECONDS):
            await ended.wait()


def _result(value: object) -> Result:
    if isinstance(value, bytes):
        return Result(value, "application/octet-stream")
    if isinstance(value, str):
        return Result(value.encode(), "text/plain; charset=utf-8")
    try:
        made = sanitise(value)
    except CanonicalError as error:
        raise TypeError(f"the tool returned what JSON cannot hold: {error}") from error
    nulled = f'; nulled="{" ".join(made.replaced)}"' if made.replaced else ""
    return Result(canonical(made.value), f"application/json{nulled}")


def _message(error: Exception) -> str:
    return str(error).encode("utf-8", "replace").decode()


def _python(value: JsonValue) -> object:
    """A value as Python's json module would give it, but a number that a float cannot hold exactly stays a Decimal."""
    if isinstance(value, Decimal):
        as_float = float(value)
        return as_float if Decimal(repr(as_float)) == value else value
    if isinstance(value, list):
        return [_python(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _python(item) for name, item in value.items()}
    return value
