"""Listens to what services say to each other, where nothing else shows whether it was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio

from forerun.runtime.auth import CallToken
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_inbound import Inbound

_PROMOTE = "/forerun.v1.SandboxService/Promote"
_EXECUTE = "/forerun.v1.SandboxService/Execute"


@dataclass(slots=True)
class Wiretap:
    """What was heard.

    Attributes:
        promoted: Executions that a worker was asked to promote.
        begun_at: When a worker was asked to begin each execution, in loop seconds.
    """

    promoted: set[str] = field(default_factory=set)
    begun_at: dict[str, float] = field(default_factory=dict)


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

    def channel(self, target: str) -> grpc.aio.Channel:
        """See `Network.channel`."""
        return cast(grpc.aio.Channel, _Channel(super().channel(target), self._tap))


class _Channel:
    def __init__(self, inner: grpc.aio.Channel, tap: Wiretap) -> None:
        self._inner = inner
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        start: Any = self._inner.unary_unary(method, *args, **kwargs)

        def tapped(request: Any, **given: Any) -> Any:
            self._tap.promoted.add(request.execution)
            return start(request, **given)

        return tapped if method == _PROMOTE else cast(Callable[..., Any], start)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        start: Any = self._inner.unary_stream(method, *args, **kwargs)

        def tapped(request: Any, **given: Any) -> Any:
            self._tap.begun_at.setdefault(request.execution, asyncio.get_running_loop().time())
            return start(request, **given)

        return tapped if method == _EXECUTE else cast(Callable[..., Any], start)
