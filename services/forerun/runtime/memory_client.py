"""The client's side of the memory network: the call objects that generated stubs return.

They behave as grpc.aio's do: awaiting or reading raises `AioRpcError`, a task that is cancelled while it waits cancels
its call, a call that nobody holds any more is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from forerun.runtime.memory_call import Exchange, Metadata, PipeClosedError

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Self = TypeVar("_Self", bound="MemoryCall[Any, Any]")

_Serializer = Callable[[Any], bytes] | None
_Deserializer = Callable[[bytes], Any] | None


class MemoryCall(Generic[_Request, _Response]):
    """What all kinds of calls share.

    Args:
        exchange: The call.
        serializer: Makes bytes of requests; None where they are bytes.
        deserializer: Makes responses of bytes.
        max_message_bytes: Largest request.
    """

    def __init__(
        self, exchange: Exchange, serializer: _Serializer, deserializer: _Deserializer, max_message_bytes: int
    ) -> None:
        self._exchange = exchange
        self._serializer = serializer
        self._deserializer = deserializer
        self._max_message_bytes = max_message_bytes
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        if not self._exchange.done and not self._loop.is_closed():
            self._exchange.cancel()

    def cancel(self) -> bool:
        """Cancels the call at both ends."""
        return self._exchange.cancel()

    def cancelled(self) -> bool:
        """Whether it was cancelled here."""
        return self._exchange.locally_cancelled

    def done(self) -> bool:
        """Whether it has ended."""
        return self._exchange.done

    def time_remaining(self) -> float | None:
        """Seconds to its deadline."""
        return self._exchange.time_remaining()

    def add_done_callback(self: _Self, callback: Callable[[_Self], None]) -> None:
        """Calls back with this object when it ends."""
        self._exchange.when_done(lambda: callback(self))

    async def wait_for_connection(self) -> None:
        """Returns when the server has the call, which in memory is at once."""
        if self._exchange.done:
            await self._raise_for_status()

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """What the server sent first."""
        return grpc.aio.Metadata(*await asyncio.shield(self._exchange.initial_metadata))

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What the server sent last."""
        return grpc.aio.Metadata(*(await self._exchange.status()).trailing)

    async def code(self) -> grpc.StatusCode:
        """How the call ended."""
        return (await self._exchange.status()).code

    async def details(self) -> str:
        """The text of its end."""
        return (await self._exchange.status()).details

    async def _raise_for_status(self) -> None:
        status = await self._exchange.status()
        if self._exchange.locally_cancelled:
            raise asyncio.CancelledError
        if status.code is not grpc.StatusCode.OK:
            initial: Metadata = self._exchange.initial_metadata.result()
            raise grpc.aio.AioRpcError(
                status.code, grpc.aio.Metadata(*initial), grpc.aio.Metadata(*status.trailing), status.details
            )

    async def _receive(self) -> bytes | None:
        try:
            data = await self._exchange.responses.get()
            if data is None:
                await self._exchange.status()
            return data
        except asyncio.CancelledError:
            self._exchange.cancel()
            raise

    def _encoded(self, request: _Request) -> bytes:
        data: Any = request if self._serializer is None else self._serializer(request)
        encoded = bytes(data)
        if len(encoded) > self._max_message_bytes:
            text = f"SERVER: Received message larger than max ({len(encoded)} vs. {self._max_message_bytes})"
            self._exchange.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        return encoded

    def _decoded(self, data: bytes) -> _Response:
        response: _Response = data if self._deserializer is None else self._deserializer(data)  # type: ignore[assignment]
        return response

    def send_only(self, request: _Request) -> None:
        """Sends the one request of a unary side."""
        encoded = self._encoded(request)
        if not self._exchange.done:
            self._exchange.requests.put_now(encoded)
            self._exchange.requests.end()


class _UnaryResponse(MemoryCall[_Request, _Response]):
    _answer: asyncio.Future[_Response] | None = None

    def __await__(self) -> Generator[Any, None, _Response]:
        return self._await().__await__()

    async def _await(self) -> _Response:
        if self._answer is None:
            self._answer = self._loop.create_future()
            data = await self._receive()
            # A response counts only together with an OK status; one that is missing is explained by the status.
            if self._exchange.locally_cancelled or (await self._exchange.status()).code is not grpc.StatusCode.OK:
                data = None
            if data is not None:
                self._answer.set_result(self._decoded(data))
        if not self._answer.done():
            await self._raise_for_status()
        return await asyncio.shield(self._answer)


class _StreamResponse(MemoryCall[_Request, _Response]):
    def __aiter__(self) -> AsyncIterator[_Response]:
        return self._responses()

    async def read(self) -> Any:
        """The next response, or `grpc.aio.EOF` at the end."""
        data = await self._receive()
        if data is None:
            await self._raise_for_status()
            return grpc.aio.EOF
        return self._decoded(data)

    async def _responses(self) -> AsyncIterator[_Response]:
        while (data := await self._receive()) is not None:
            yield self._decoded(data)
        await self._raise_for_status()


class _StreamRequest(MemoryCall[_Request, _Response]):
    _poller: asyncio.Task[None] | None = None
    _half_closed = False

    def consume(self, requests: AsyncIterable[_Request] | Iterable[_Request] | None) -> None:
        """Sends the requests of an iterator from a task of its own; None leaves it to `write`."""
        if requests is not None:
            self._poller = self._loop.create_task(_send_all(self._exchange, self.write, self.done_writing, requests))

    def cancel(self) -> bool:
        """Cancels the call and the task that sends its requests."""
        if self._poller is not None:
            self._poller.cancel()
        return super().cancel()

    async def write(self, request: _Request) -> None:
        """Sends one request, waiting while the server does not keep up."""
        if self._exchange.done:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        encoded = self._encoded(request)
        try:
            await self._exchange.requests.put(encoded)
        except PipeClosedError:
            await self._raise_for_status()
        except asyncio.CancelledError:
            self._exchange.cancel()
            raise

    async def done_writing(self) -> None:
        """Says that no more requests follow."""
        self._half_closed = True
        self._exchange.requests.end()


async def _send_all(
    exchange: Exchange,
    write: Callable[[Any], Any],
    done_writing: Callable[[], Any],
    requests: AsyncIterable[Any] | Iterable[Any],
) -> None:
    try:
        if isinstance(requests, AsyncIterable):
            async for request in requests:
                await write(request)
        else:
            for request in requests:
                await write(request)
        await done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the call has ended; whoever reads it learns why
    except Exception:
        exchange.cancel()  # as grpc does: an iterator that fails takes its call with it
        raise


class UnaryUnaryCall(_UnaryResponse[_Request, _Response]):
    """One request, one response."""


class UnaryStreamCall(_StreamResponse[_Request, _Response]):
    """One request, many responses."""


class StreamUnaryCall(_StreamRequest[_Request, _Response], _UnaryResponse[_Request, _Response]):
    """Many requests, one response."""


class StreamStreamCall(_StreamRequest[_Request, _Response], _StreamResponse[_Request, _Response]):
    """Many requests, many responses."""
