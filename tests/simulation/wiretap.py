"""Listens to what services say to each other, where nothing else shows whether it was said."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio

from forerun.runtime.auth import CallToken
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_inbound import Inbound
from tests.simulation.moments import COMMIT, Moments

_PROMOTE = "/forerun.v1.SandboxService/Promote"
_EXECUTE = "/forerun.v1.SandboxService/ExecuteInTurn"
_MERGE = "/forerun.v1.SandboxService/MergeFork"


@dataclass(slots=True)
class Wiretap:
    """What was heard.

    Attributes:
        promoted: Executions that a worker was asked to promote.
        begun_at: When a worker was asked to begin each execution, in loop seconds.
        ended_at: When whoever had asked heard of its end, or gave it up.
        first: First attempts of real calls that workers were asked for, by tool.
        merges: How often a commit was asked to merge what had run ahead.
    """

    moments: Moments
    promoted: set[str] = field(default_factory=set)
    begun_at: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    first: Counter[str] = field(default_factory=Counter)
    merges: int = 0


class TappedNetwork(MemoryNetwork):
    """A process's access to the fabric, with the tap in it."""

    def __init__(
        self,
        fabric: MemoryFabric,
        inbound: Inbound,
        *,
        source: str,
        token: CallToken | None,
        options: NetworkOptions | None,
        tap: Wiretap,
    ) -> None:
        super().__init__(fabric, inbound, source=source, token=token, options=options)
        self._tap = tap
        self._process = source

    def channel(self, target: str) -> grpc.aio.Channel:
        """See `Network.channel`."""
        return cast(grpc.aio.Channel, _Channel(super().channel(target), self._tap, self._process))


class _Channel:
    def __init__(self, inner: grpc.aio.Channel, tap: Wiretap, process: str) -> None:
        self._inner = inner
        self._tap = tap
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        start: Any = self._inner.unary_unary(method, *args, **kwargs)

        def promoted(request: Any, **given: Any) -> Any:
            self._tap.promoted.add(request.execution)
            return start(request, **given)

        def merged(request: Any, **given: Any) -> Any:
            self._tap.merges += 1
            self._tap.moments.tell(COMMIT, self._process)
            return start(request, **given)

        taps = {_PROMOTE: promoted, _MERGE: merged}
        return taps.get(method, cast(Callable[..., Any], start))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        start: Any = self._inner.stream_stream(method, *args, **kwargs)

        def tapped(**given: Any) -> Any:
            call = start(**given)
            write, read = call.write, call.read
            current = ""

            def over(_: object) -> None:
                self._tap.ended_at[current] = asyncio.get_running_loop().time()

            async def answered() -> Any:
                message = await read()
                if message is not grpc.aio.EOF and message.response.HasField("finished"):
                    over(message)
                return message

            async def heard(message: Any) -> None:
                nonlocal current
                request, current = message.request, message.request.execution
                self._tap.begun_at.setdefault(request.execution, asyncio.get_running_loop().time())
                if not request.provider and "/" in request.idempotency_key:  # the key of a call, not of an execution
                    self._tap.first[request.action.tool] += 1
                await write(message)

            call.write, call.read = heard, answered
            call.add_done_callback(over)
            return call

        return tapped if method == _EXECUTE else cast(Callable[..., Any], start)
