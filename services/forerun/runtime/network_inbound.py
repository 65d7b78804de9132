"""What every incoming call passes before and after its handler.

The guard wraps handlers once, when they are registered, instead of using grpc's interceptors: those build new handler
objects for every call, and the same wrapping serves the memory network. Order: trace context, deadline, caller,
handler; on the way out the one translation of errors to statuses, then the counters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from forerun.runtime import metrics_table as m
from forerun.runtime.auth import Authenticator, use_caller
from forerun.runtime.errors import (
    NEVER_STARTED,
    STARTED_KEY,
    STATUS_DETAILS_KEY,
    ErrorReason,
    ForerunError,
    InvalidArgument,
    Unavailable,
    message_too_large,
    to_rpc_status,
)
from forerun.runtime.metrics import Metrics
from forerun.runtime.tracing import TRACE_HEADER, Span, SpanName, Tracing, use_trace

_LOG: Final = logging.getLogger(__name__)

_CODE_OF_NUMBER: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}

# Longer than a stopping server goes on to refuse: who was refused comes back when it has gone.
_REFUSED_RETRY_SECONDS: Final = 0.5

# Handlers are functions of (request or iterator, context); their message types differ from method to method.
_Behaviour = Callable[[Any, Any], Any]
_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """The parts of the guard.

    Attributes:
        authenticator: Who decides on callers; None admits everyone, for servers that only the own process reaches.
        metrics: Where calls are counted.
        tracing: Where spans of calls go.
    """

    authenticator: Authenticator | None
    metrics: Metrics
    tracing: Tracing


class GuardedServer:
    """Stands between generated registration functions and a server, and puts the guard around every handler.

    Args:
        server: Has the two registration methods of grpc.aio.Server.
        inbound: What to guard with.
        max_message_bytes: Largest response.
    """

    def __init__(self, server: Any, inbound: Inbound, *, max_message_bytes: int) -> None:
        self._server = server
        self._gate = _Gate(inbound, max_message_bytes)

    def refuse(self) -> None:
        """From now on every call is refused with a typed error that says that it was not started."""
        self._gate.refusing = True

    async def until_idle(self, timeout_seconds: float) -> None:
        """Waits until no handler runs, within a bound."""
        running = list(self._gate.running)
        if running and timeout_seconds > 0:
            await asyncio.wait(running, timeout=timeout_seconds)

    def interrupt(self) -> None:
        """Cancels the handlers that run; their clients get a typed error."""
        for task in list(self._gate.running):
            task.cancel()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds handlers that are looked up by the name of the method."""
        guarded = tuple(_GuardedGenericHandler(handler, self._gate) for handler in generic_rpc_handlers)
        self._server.add_generic_rpc_handlers(guarded)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds the handlers of one service by name."""
        guarded = {
            name: _guard(handler, f"/{service_name}/{name}", self._gate) for name, handler in method_handlers.items()
        }
        self._server.add_registered_method_handlers(service_name, guarded)


@dataclass(slots=True)
class _Gate:
    """What the guarded methods of one server share."""

    inbound: Inbound
    max_message_bytes: int
    refusing: bool = False
    running: set[asyncio.Task[Any]] = field(default_factory=set)


class _GuardedGenericHandler(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler, gate: _Gate) -> None:
        self._inner = inner
        self._gate = gate
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        known = self._guarded.get(method)
        if known is not None:
            return known
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        guarded = self._guarded[method] = _guard(handler, method, self._gate)
        return guarded


def _guard(handler: grpc.RpcMethodHandler[Any, Any], method: str, gate: _Gate) -> grpc.RpcMethodHandler[Any, Any]:
    """The same handler behind the guard. It answers in bytes, so that sizes are checked before grpc has them."""
    streams_in, streams_out = bool(handler.request_streaming), bool(handler.response_streaming)
    # Exactly one of the four is set.
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    call = _GuardedCall(behaviour, method, gate, handler.response_serializer, unary=not (streams_in or streams_out))
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[streams_in, streams_out]
    run: Any = call.respond_with_stream if streams_out else call.respond_once
    return make(run, handler.request_deserializer, None)


class _GuardedCall:
    """One method behind the guard."""

    __slots__ = ("_behaviour", "_gate", "_inbound", "_method", "_serializer", "_unary")

    def __init__(
        self,
        behaviour: _Behaviour,
        method: str,
        gate: _Gate,
        serializer: Callable[[Any], bytes] | None,
        *,
        unary: bool,
    ) -> None:
        self._behaviour = behaviour
        self._method = method
        self._gate = gate
        self._inbound = gate.inbound
        self._serializer = serializer
        self._unary = unary

    async def respond_once(self, request: Any, context: _Context) -> bytes:
        answer: bytes = await self._guarded(request, context, self._once)
        return answer

    async def respond_with_stream(self, request: Any, context: _Context) -> None:
        await self._guarded(request, context, self._stream)

    async def _once(self, request: Any, context: _Context) -> bytes:
        return self._encoded(await self._behaviour(request, context))

    async def _stream(self, request: Any, context: _Context) -> None:
        # Writing here, instead of handing the generator to grpc, makes a cancellation close the generator at once
        # wherever it stands, so that the handler's clean-up does not wait for the garbage collector.
        responses = self._behaviour(request, context)
        try:
            async for response in responses:
                await context.write(self._encoded(response))
        finally:
            await responses.aclose()

    async def _guarded(self, request: Any, context: _Context, work: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        inbound = self._inbound
        started = asyncio.get_running_loop().time()
        metadata = context.invocation_metadata()
        span = inbound.tracing.start(SpanName.RPC, parent=_header(metadata, TRACE_HEADER))
        code = grpc.StatusCode.OK
        inbound.metrics.change(m.RPC_ACTIVE, 1, method=self._method)
        task = asyncio.current_task()
        assert task is not None
        refused = self._gate.refusing
        if not refused:
            self._gate.running.add(task)
        try:
            use_trace(span.context)
            if refused:
                raise _stopping()
            self._check_deadline(context)
            if inbound.authenticator is not None:
                use_caller(inbound.authenticator.caller(metadata))
                if hasattr(request, "__aiter__"):
                    request = AllowedRequests(aiter(request), inbound.authenticator, metadata)
            return await work(request, context)
        except grpc.aio.AbortError:
            code = _status_code(context)
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            # Where the client went away, this goes nowhere. Where our own process cancelled the handler, a client
            # without deadline would wait for ever, because grpc sends nothing for a handler that ends like this.
            await _abort(context, Unavailable(ErrorReason.CALL_INTERRUPTED, "the service ended this call"))
        except ForerunError as error:
            code = error.code
            await _abort(context, error)
        except Exception as error:
            code = grpc.StatusCode.INTERNAL
            _LOG.exception("handler failed", extra={"fields": {"rpc.method": self._method}})
            await _abort(context, error)
        finally:
            self._gate.running.discard(task)
            self._record(code, span, asyncio.get_running_loop().time() - started)

    def _encoded(self, response: Any) -> bytes:
        data = bytes(response) if self._serializer is None else self._serializer(response)
        if len(data) > self._gate.max_message_bytes:
            raise message_too_large(len(data), self._gate.max_message_bytes)
        return data

    def _check_deadline(self, context: _Context) -> None:
        if self._unary and context.time_remaining() is None:
            raise InvalidArgument(
                ErrorReason.DEADLINE_MISSING,
                f"{self._method} was called without a deadline; every unary call needs one (grpc-timeout)",
                metadata={"method": self._method},
            )

    def _record(self, code: grpc.StatusCode, span: Span, seconds: float) -> None:
        metrics = self._inbound.metrics
        metrics.change(m.RPC_ACTIVE, -1, method=self._method)
        metrics.add(m.RPC_CALLS, method=self._method, code=code.name)
        metrics.observe(m.RPC_SECONDS, seconds, trace=span.context, method=self._method)
        span.set("rpc.method", self._method)
        span.set("rpc.grpc.status_code", code.value[0])
        span.end(failed=code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED))


class AllowedRequests:
    """The requests of a stream while its token is valid: a revoked one ends the stream at its next message.

    Args:
        requests: What comes.
        authenticator: Knows the tokens.
        metadata: Holds the token.

    Attributes:
        refused: The message that came with a revoked token. No handler has seen it.
    """

    def __init__(self, requests: AsyncIterator[Any], authenticator: Authenticator, metadata: Any) -> None:
        self._requests = requests
        self._authenticator = authenticator
        self._metadata = metadata
        self._version = authenticator.version()
        self.refused: Any = None

    def __aiter__(self) -> AllowedRequests:
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next request.

        Raises:
            Unauthenticated: the token is not valid any more.
        """
        request = await anext(self._requests)
        current = self._authenticator.version()
        if current != self._version:
            self.refused = request
            self._authenticator.caller(self._metadata)
            self.refused, self._version = None, current
        return request


def _stopping() -> Unavailable:
    return Unavailable(
        ErrorReason.SHUTTING_DOWN,
        "this process is stopping and has not begun the call; another one, or its successor, takes it",
        metadata={STARTED_KEY: NEVER_STARTED},
        retry_after_seconds=_REFUSED_RETRY_SECONDS,
    )


def _header(metadata: Any, name: str) -> str | None:
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, str) else None
    return None


def _status_code(context: _Context) -> grpc.StatusCode:
    code = context.code()
    # grpc.aio returns the number that it was given as an enum member; typed stubs promise the member.
    return _CODE_OF_NUMBER.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else code


async def _abort(context: _Context, error: BaseException) -> NoReturn:
    status = to_rpc_status(error)
    trailing = ((STATUS_DETAILS_KEY, status.SerializeToString()),)
    await context.abort(_CODE_OF_NUMBER[status.code], status.message, trailing)
