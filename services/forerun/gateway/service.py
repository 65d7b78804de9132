"""HTTP in, model port out: `/v1/models` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.core import limits
from forerun.gateway.chat import ChatBody, Completion, read_body
from forerun.gateway.expected import ExpectedCalls
from forerun.gateway.upstream import Upstream
from forerun.runtime.auth import Authenticator, Caller
from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    DeadlineExceeded,
    ErrorReason,
    ForerunError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from forerun.runtime.ids import Ids
from forerun.runtime.models.port import Finished, ModelEvent

_STATUS: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_CLIENT_LEFT: Final = 499
_BODY_SECONDS: Final = 60.0
_AGENT_HEADER: Final = "x-forerun-agent"
_SESSION_HEADER: Final = "x-forerun-session"
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Gateway:
    """The endpoint.

    Args:
        upstream: The models that it offers.
        authenticator: Decides on callers. A tenant's outputs draft for this tenant only.
        total_seconds: Of an answer, for clients that stay and do not read.
        max_body_bytes: Of a request.
        max_requests: At once.
        expected: Knows what the predictor expects in a session.
        clock: Dates completions.
        ids: Names them.
    """

    def __init__(
        self,
        upstream: Upstream,
        authenticator: Authenticator,
        *,
        total_seconds: float,
        max_body_bytes: int,
        max_requests: int,
        expected: ExpectedCalls,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._upstream = upstream
        self._authenticator = authenticator
        self._total_seconds = total_seconds
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._expected = expected
        self._clock = clock
        self._ids = ids

    def application(self) -> ASGIApp:
        """The HTTP application."""
        routes = [
            Route("/v1/models", _answering(self._models), methods=["GET"]),
            Route("/v1/chat/completions", _answering(self._complete), methods=["POST"]),
        ]
        return _Bounded(Starlette(routes=routes), self._max_requests)

    async def _models(self, request: Request) -> Response:
        self._caller(request)
        data = [{"id": one, "object": "model", "created": 0, "owned_by": "forerun"} for one in self._upstream.names]
        return JSONResponse({"object": "list", "data": data})

    async def _complete(self, request: Request) -> Response:
        caller = self._caller(request)
        body = read_body(await self._content(request))
        if body.model not in self._upstream.names:
            offered = ", ".join(self._upstream.names) or "none"
            raise NotFound(ErrorReason.MODEL_NOT_FOUND, f"there is no model {body.model!r} here; offered: {offered}")
        who = {"tenant": caller.tenant, "agent": request.headers.get(_AGENT_HEADER, "")}
        expected = await self._expected_in(request, caller, body)
        completion = Completion(f"chatcmpl-{self._ids.uuid7()}", body.model, int(self._clock.now()))
        events = self._upstream.ask(body.model, body.request(expected, who))
        work = self._streamed(events, completion, body) if body.stream else self._whole(events, completion)
        return await _or_left(request, work)

    async def _expected_in(self, request: Request, caller: Caller, body: ChatBody) -> tuple[str, ...]:
        session = request.headers.get(_SESSION_HEADER, "")[: limits.NAME_CHARS]
        if not body.speculate or body.tool_choice == "none":
            return ()
        return await self._expected.of(caller.tenant, session, body.tools or ())

    async def _whole(self, events: AsyncGenerator[ModelEvent, None], completion: Completion) -> Response:
        async with aclosing(events):
            async for event in events:
                completion.add(event)
        return JSONResponse(completion.whole())

    async def _streamed(
        self, events: AsyncGenerator[ModelEvent, None], completion: Completion, body: ChatBody
    ) -> Response:
        # The first event is waited for, so that what is refused has a status and not a broken stream.
        first = await anext(events)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return _Stream(_lines(first, events, completion, usage=usage), events, self._total_seconds)

    def _caller(self, request: Request) -> Caller:
        header = request.headers.get("authorization")
        return self._authenticator.caller([] if header is None else [("authorization", header)])

    async def _content(self, request: Request) -> bytes:
        content = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    content += part
                    if len(content) > self._max_body_bytes:
                        raise InvalidArgument(
                            ErrorReason.MESSAGE_TOO_LARGE,
                            f"a body of more than {self._max_body_bytes} bytes (max_body_bytes of the gateway)",
                        )
        except TimeoutError as error:
            raise DeadlineExceeded(
                ErrorReason.DEADLINE_EXCEEDED, f"the body did not come within {_BODY_SECONDS:g} s"
            ) from error
        return bytes(content)


async def _lines(
    first: ModelEvent, events: AsyncGenerator[ModelEvent, None], completion: Completion, *, usage: bool
) -> AsyncGenerator[str, None]:
    """Server-sent events."""
    try:
        event: ModelEvent | None = first
        while event is not None:
            yield _line(completion.chunk(event))
            if isinstance(event, Finished) and usage:
                yield _line(completion.usage_chunk(event))
            event = await anext(events, None)
    except ForerunError as error:
        # Its status has gone out long ago: clients of OpenAI raise what an event with an error says.
        yield _line(_error(error))
        return
    yield "data: [DONE]\n\n"


class _Stream(StreamingResponse):
    """Lines as they come. However it ends, and also where it never begins, the request to the model ends with it.

    Args:
        lines: Of the answer.
        events: From which they are made.
        seconds: Until it is given up, for clients that stay and do not read.
    """

    def __init__(
        self, lines: AsyncGenerator[str, None], events: AsyncGenerator[ModelEvent, None], seconds: float
    ) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._lines = lines
        self._events = events
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        async with aclosing(self._events), aclosing(self._lines):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await super().__call__(scope, receive, send)


class _Bounded:
    """So many requests at once; further ones are refused, for all of them are kept in memory.

    Args:
        application: What answers.
        most: See `GatewaySettings.max_requests`.
    """

    def __init__(self, application: ASGIApp, most: int) -> None:
        self._application = application
        self._most = most
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if self._running >= self._most:
            full = ResourceExhausted(
                ErrorReason.QUEUE_FULL,
                f"{self._most} requests are under way (max_requests of the gateway)",
                retry_after_seconds=1.0,
            )
            await _failure(full)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._running -= 1


def _line(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def _or_left(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response, or an end of the work at once where the client hangs up before it is there."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=_CLIENT_LEFT)
        return working.result()
    finally:
        for one in (working, leaving):
            one.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _answering(handler: _Handler) -> _Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_LEFT)
        except ForerunError as error:
            return _failure(error)

    return answer


def _failure(error: ForerunError) -> Response:
    retry = error.retry_after_seconds
    headers = {} if retry is None else {"retry-after": str(max(1, math.ceil(retry)))}
    return JSONResponse(_error(error), status_code=_STATUS.get(error.code, 500), headers=headers)


def _error(error: ForerunError) -> dict[str, Any]:
    status = _STATUS.get(error.code, 500)
    kind = "invalid_request_error" if status in (400, 404) else "server_error" if status >= 500 else "request_error"
    return {"error": {"message": error.message, "type": kind, "code": error.reason.value, "param": None}}
