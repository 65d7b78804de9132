"""The server's side of the memory network: runs the handlers that generated code registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from forerun.runtime.memory_call import CallStatus, Exchange, Metadata

_LOG: Final = logging.getLogger(__name__)

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only


class MemoryContext(grpc.aio.ServicerContext[Any, Any]):
    """What a handler sees of its call; the methods of grpc.aio's context that handlers may use."""

    def __init__(self, exchange: Exchange, serializer: Callable[[Any], bytes] | None, max_message_bytes: int) -> None:
        self._exchange = exchange
        self._serializer = serializer
        self._max_message_bytes = max_message_bytes
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()

    async def read(self) -> Any:
        """Not offered: handlers iterate over their requests, which is what the guard can watch."""
        raise NotImplementedError("iterate over the requests instead of reading from the context")

    async def write(self, message: Any) -> None:
        """Sends a response, waiting while the client does not keep up."""
        encoded = self.encoded(message)
        if encoded is None or self._exchange.done:
            raise asyncio.CancelledError
        self._send_initial(())
        await self._exchange.responses.put(encoded)

    def encoded(self, message: Any) -> bytes | None:
        """The bytes of a response; None, and the end of the call, if they are too many."""
        data = bytes(message if self._serializer is None else self._serializer(message))
        if len(data) <= self._max_message_bytes:
            return data
        text = f"CLIENT: Received message larger than max ({len(data)} vs. {self._max_message_bytes})"
        self._exchange.finish(CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        return None

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Sends metadata ahead of the first response."""
        self._send_initial(tuple(initial_metadata))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call with an error.

        Raises:
            grpc.aio.AbortError: always, to leave the handler; CancelledError if the client is gone.
        """
        if self._exchange.client_gone:
            raise asyncio.CancelledError
        self._code, self._details = code, details
        self._exchange.finish(CallStatus(code, details, tuple(trailing_metadata) or self._trailing))
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """Ends the call with a status object; see `abort`."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """What goes with the status."""
        self._trailing = tuple(trailing_metadata)

    def invocation_metadata(self) -> Any:
        """What the client sent along."""
        return self._exchange.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """The status of a handler that returns."""
        self._code = code

    def set_details(self, details: str) -> None:
        """The text of a handler that returns."""
        self._details = details

    def peer(self) -> str:
        """Name of the calling process."""
        return self._exchange.peer

    def peer_identities(self) -> None:
        """Always None: nothing is encrypted in memory."""

    def peer_identity_key(self) -> None:
        """Always None."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Always empty."""
        return {}

    def time_remaining(self) -> Any:
        """Seconds to the client's deadline, None without one."""
        return self._exchange.time_remaining()

    def trailing_metadata(self) -> Any:
        """What was set."""
        return self._trailing

    def code(self) -> grpc.StatusCode:
        """What was set."""
        return self._code

    def details(self) -> str:
        """What was set."""
        return self._details

    def cancelled(self) -> bool:
        """Whether the client gave up."""
        return self._exchange.client_gone

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._exchange.done

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls back when the call has ended."""
        self._exchange.when_done(lambda: callback(self))

    def set_compression(self, compression: grpc.Compression) -> None:
        """Memory needs none."""

    def disable_next_message_compression(self) -> None:
        """Memory needs none."""

    def _send_initial(self, metadata: Metadata) -> None:
        if not self._exchange.initial_metadata.done():
            self._exchange.initial_metadata.set_result(metadata)


class MemoryServer:
    """A server that generated `add_XServicer_to_server` functions accept.

    Args:
        max_message_bytes: Largest response.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._registered: dict[str, _Handler] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        self._running: dict[asyncio.Task[None], Exchange] = {}
        self._accepting = True

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds handlers that are looked up by the name of the method."""
        self._generic.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, _Handler]) -> None:
        """Adds the handlers of one service by name."""
        for name, handler in method_handlers.items():
            self._registered[f"/{service_name}/{name}"] = handler

    def accept(self, exchange: Exchange) -> None:
        """Begins to serve a call that arrived."""
        if exchange.done:
            return
        if not self._accepting:
            exchange.fail(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            return
        handler = self._find(exchange)
        if handler is None:
            exchange.fail(grpc.StatusCode.UNIMPLEMENTED, f"Method not found: {exchange.method}")
            return
        task = asyncio.get_running_loop().create_task(self._serve(exchange, handler), name=exchange.method)
        self._running[task] = exchange
        task.add_done_callback(self._running.__delitem__)
        exchange.served_by(task)

    async def stop(self, grace_seconds: float) -> None:
        """Refuses new calls, gives running ones time, then cancels them."""
        self._accepting = False
        if self._running and grace_seconds > 0:
            await asyncio.wait(list(self._running), timeout=grace_seconds)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running))

    def drop(self, details: str) -> None:
        """Breaks the connections of all running calls."""
        for exchange in list(self._running.values()):
            exchange.fail(grpc.StatusCode.UNAVAILABLE, details)

    def drop_from(self, peer: str, details: str) -> None:
        """Breaks the connections of one calling process."""
        for exchange in list(self._running.values()):
            if exchange.peer == peer:
                exchange.fail(grpc.StatusCode.UNAVAILABLE, details)

    def _find(self, exchange: Exchange) -> _Handler | None:
        handler = self._registered.get(exchange.method)
        if handler is not None:
            return handler
        details = _HandlerCallDetails(exchange.method, exchange.metadata)
        for generic in self._generic:
            found: _Handler | None = generic.service(details)
            if found is not None:
                self._registered[exchange.method] = found
                return found
        return None

    async def _serve(self, exchange: Exchange, handler: _Handler) -> None:
        context = MemoryContext(exchange, handler.response_serializer, self._max_message_bytes)
        try:
            await _run(exchange, handler, context)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            # What a handler without guard does; grpc would leave the client waiting.
            exchange.finish(CallStatus(grpc.StatusCode.CANCELLED, "the handler was cancelled"))
        except Exception as error:
            _LOG.exception("unguarded handler failed", extra={"fields": {"rpc.method": exchange.method}})
            exchange.finish(CallStatus(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}"))


class _HandlerCallDetails(grpc.HandlerCallDetails):
    def __init__(self, method: str, metadata: Metadata) -> None:
        self.method = method
        self.invocation_metadata = metadata


async def _run(exchange: Exchange, handler: _Handler, context: MemoryContext) -> None:
    request: Any
    if handler.request_streaming:
        request = _requests(exchange, handler.request_deserializer)
    else:
        data = await exchange.requests.get()
        if data is None:
            return  # the client left before its request arrived
        request = data if handler.request_deserializer is None else handler.request_deserializer(data)
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if handler.response_streaming:
        await _respond_with_stream(behaviour(request, context), context)
    else:
        response: Awaitable[Any] = behaviour(request, context)
        encoded = context.encoded(await response)
        if encoded is not None and context.code() is grpc.StatusCode.OK:
            exchange.responses.put_now(encoded)
    await context.send_initial_metadata(())
    exchange.finish(CallStatus(context.code(), context.details(), context.trailing_metadata()))


async def _respond_with_stream(responses: Any, context: MemoryContext) -> None:
    if not hasattr(responses, "__aiter__"):
        await responses
        return
    async for response in responses:
        await context.write(response)


async def _requests(exchange: Exchange, deserializer: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
    while (data := await exchange.requests.get()) is not None:
        yield data if deserializer is None else deserializer(data)
