"""Tools that are Python functions in the worker's own process. For functions that the operator trusts."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

from forerun.core.canonical import CanonicalError, JsonValue, canonical
from forerun.core.intake import sanitise
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import Invocation, Result, Sink, rejected
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import PythonEndpoint


class PythonConnector:
    """Calls functions: coroutines on the event loop, others in a thread.

    A coroutine is cancelled with its call. A thread cannot be stopped: its late result is dropped, and the thread
    counts as taken until it returns.

    A returned string or bytes is the observation as it is; any other value becomes JSON. NaN and infinities become
    null, and the media type names their paths (`nulled`). An exception is the tool's own error, with type and message.

    Args:
        threads: Functions that may run in threads at once.
    """

    def __init__(self, *, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tool")
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
                loop = asyncio.get_running_loop()
                value = await loop.run_in_executor(self._executor, lambda: function(**arguments))
            return _result(value)
        except Exception as error:
            return Result(
                canonical({"error": {"type": type(error).__name__, "message": _message(error)}}), "application/json",
                tool_error=True,
            )  # fmt: skip

    async def close_session(self, owner: Owner) -> None:
        """Nothing is kept for a session."""

    async def close(self) -> None:
        """Lets no new call start; running threads end with their functions."""
        self._executor.shutdown(wait=False, cancel_futures=True)

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
