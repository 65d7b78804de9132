"""What every outgoing call carries: the credential, the trace context and, for unary calls, a deadline.

A channel of its own around grpc's, not an interceptor: grpc.aio runs intercepted calls in extra tasks, and a cancelled
one does not reach the server reliably. Here the caller holds grpc's own call object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from forerun.runtime.auth import CallToken
from forerun.runtime.errors import ErrorReason, InvalidArgument, message_too_large
from forerun.runtime.tracing import TRACE_HEADER, current_trace

_Serializer = Callable[[Any], bytes] | None
_Metadata = tuple[tuple[str, str | bytes], ...]


class OutboundChannel(grpc.aio.Channel):
    """A channel whose calls carry credential and trace context.

    Callables are made once: a stub, which makes those of all its methods, is then cheap enough to be made per call.

    Args:
        inner: The channel that does the work; closed by its owner.
        token: The credential of this process; None for calls to servers that ask for none.
        max_message_bytes: Largest request of a method with one request; streams are limited by the receiver.
    """

    def __init__(self, inner: grpc.aio.Channel, token: CallToken | None, *, max_message_bytes: int) -> None:
        self._inner = inner
        self._token = token
        self._max_message_bytes = max_message_bytes
        self._known: dict[str, Callable[..., Any]] = {}

    def unary_unary(
        self, method: str, request_serializer: _Serializer = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """The callable of a unary method; it refuses to be called without a time-out."""
        known = self._known.get(method)
        if known is not None:
            return known
        inner: Callable[..., Any] = self._inner.unary_unary(method, None, response_deserializer, **more)

        def call(
            request: Any, *, timeout: float | None = None, metadata: Sequence[tuple[str, str | bytes]] = (), **more: Any
        ) -> Any:
            if timeout is None:
                raise InvalidArgument(
                    ErrorReason.DEADLINE_MISSING,
                    f"{method} needs a deadline: pass timeout in seconds",
                    metadata={"method": method},
                )
            data = self._encoded(request, request_serializer)
            return inner(data, timeout=timeout, metadata=self._with_context(metadata), **more)

        self._known[method] = call
        return call

    def unary_stream(
        self, method: str, request_serializer: _Serializer = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """The callable of a method with streamed responses."""
        known = self._known.get(method)
        if known is not None:
            return known
        inner: Callable[..., Any] = self._inner.unary_stream(method, None, response_deserializer, **more)

        def call(request: Any, *, metadata: Sequence[tuple[str, str | bytes]] = (), **more: Any) -> Any:
            data = self._encoded(request, request_serializer)
            return inner(data, metadata=self._with_context(metadata), **more)

        self._known[method] = call
        return call

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Makes the callable of a method with streamed requests."""
        return self._with_metadata(self._inner.stream_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Makes the callable of a method that streams both ways."""
        return self._with_metadata(self._inner.stream_stream(method, *args, **kwargs))

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel below."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """The state of the connection."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state is another one."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until there is a connection."""
        await self._inner.channel_ready()

    async def __aenter__(self) -> OutboundChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _encoded(self, request: Any, serializer: _Serializer) -> bytes:
        data = bytes(request) if serializer is None else serializer(request)
        if len(data) > self._max_message_bytes:
            raise message_too_large(len(data), self._max_message_bytes)
        return data

    def _with_metadata(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, metadata: Sequence[tuple[str, str | bytes]] = (), **more: Any) -> Any:
            return inner(*args, metadata=self._with_context(metadata), **more)

        return call

    def _with_context(self, metadata: Sequence[tuple[str, str | bytes]]) -> _Metadata:
        trace = current_trace()
        own: _Metadata = () if self._token is None else self._token.metadata()
        if trace is not None:
            own += ((TRACE_HEADER, trace),)
        return own + tuple(metadata) if metadata else own
