"""A real gRPC server that speaks the sessions' contract and does what the names of tools say."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_grpc import server_options
from forerun.v1 import common_pb2, session_pb2, session_pb2_grpc

TOKEN = "a-token"
CHUNK_BYTES = 1024 * 1024
Response = session_pb2.ConnectResponse
Key = tuple[int, int]


@dataclass
class Journal:
    """What the server remembers of a session.

    `asked` are the batches as they came, `runs` how often each call really ran.
    """

    hello: session_pb2.Hello
    epoch: int = 0
    events: list[session_pb2.ClientEvent] = field(default_factory=list)
    asked: list[session_pb2.CallBatch] = field(default_factory=list)
    runs: Counter[Key] = field(default_factory=Counter)
    answers: dict[Key, session_pb2.CallResult] = field(default_factory=dict)
    cancelled: list[Key] = field(default_factory=list)
    ended: str | None = None

    @property
    def last_turn(self) -> int:
        return max((batch.turn for batch in self.asked), default=0)


class ScriptedServicer(session_pb2_grpc.SessionServiceServicer):
    """Behaviours by the tool's name; see `_execute`."""

    def __init__(self) -> None:
        self.journals: dict[str, Journal] = {}
        self.hellos: list[session_pb2.Hello] = []
        self.refuse: Callable[[session_pb2.Hello], tuple[grpc.StatusCode, str] | None] = lambda hello: None
        self.streams: list[Stream] = []
        self.asked = asyncio.Event()
        self.deaf = False
        self.tools: list[session_pb2.SessionTool] = []
        self.switched: list[session_pb2.SetSpeculationRequest] = []
        self.erased: list[session_pb2.EraseHistoriesRequest] = []

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[session_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[Response]:
        if ("authorization", f"Bearer {TOKEN}") not in tuple(context.invocation_metadata()):
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
        hello = (await anext(request_iterator)).hello
        self.hellos.append(hello)
        refused = self.refuse(hello)
        if refused is not None:
            await abort(context, *refused)
        journal = self.journals.get(hello.session)
        if journal is None:
            if hello.resume:
                await abort(context, grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
            journal = self.journals[hello.session] = Journal(hello)
        if journal.ended is not None:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "SESSION_ENDED")
        journal.epoch += 1
        stream = Stream(journal)
        self.streams.append(stream)
        welcome = session_pb2.Welcome(epoch=journal.epoch, mode=hello.mode or common_pb2.MODE_EXACT, policy="p@1")
        welcome.last_turn = journal.last_turn
        yield Response(welcome=welcome)
        reader = asyncio.ensure_future(self._read(stream, request_iterator))
        try:
            while (item := await stream.out.get()) is not None:
                if isinstance(item, Response):
                    yield item
                    if item.HasField("ended"):
                        return
                else:
                    await abort(context, *item)
        finally:
            reader.cancel()
            for task in stream.tasks:
                task.cancel()

    async def _read(self, stream: Stream, requests: AsyncIterator[session_pb2.ConnectRequest]) -> None:
        journal = stream.journal
        async for request in requests:
            if self.deaf:
                continue
            match request.WhichOneof("message"):
                case "event":
                    journal.events.append(request.event)
                case "batch":
                    journal.asked.append(request.batch)
                    for asked in request.batch.calls:
                        stream.spawn(self._execute(stream, request.batch.turn, asked))
                    self.asked.set()
                case "cancel":
                    key = (request.cancel.turn, request.cancel.index)
                    journal.cancelled.append(key)
                    stream.answer(key, b"", status=common_pb2.CALL_STATUS_CANCELLED)
                case "tool_result":
                    stream.invocations[request.tool_result.invocation].set_result(request.tool_result)
                case "end":
                    journal.ended = request.end.reason
                    totals = session_pb2.Totals(calls=len(journal.answers), outcomes={"ready": 2, "joined": 1})
                    stream.out.put_nowait(Response(ended=session_pb2.EndSessionResponse(totals=totals)))

    async def _execute(self, stream: Stream, turn: int, asked: Any) -> None:
        journal, key, tool = stream.journal, (turn, asked.index), asked.action.tool
        if key in journal.answers:
            stream.send_answer(journal.answers[key])
            return
        journal.runs[key] += 1
        match tool:
            case "hang":
                return
            case "drop":
                # It ran and its answer is stored; what is lost is the way back.
                stream.answer(key, asked.action.arguments, send=False)
                stream.fail(grpc.StatusCode.UNAVAILABLE, "")
                return
            case "cut":
                stream.answer(key, b"x" * (3 * CHUNK_BYTES), parts=1)
                stream.fail(grpc.StatusCode.UNAVAILABLE, "")
                return
            case "twice":
                stream.answer(key, asked.action.arguments)
                stream.answer(key, b"another answer")
                return
            case "big":
                stream.answer(key, bytes(range(256)) * 20_480)
            case "corrupt":
                stream.answer(key, asked.action.arguments, digest="sha256:" + "0" * 64)
                del journal.answers[key]
                stream.answer(key, asked.action.arguments, send=False)
                return
            case "always corrupt":
                stream.answer(key, asked.action.arguments, digest="sha256:" + "0" * 64)
                return
            case "goodbye":
                stream.out.put_nowait(Response(go_away=session_pb2.GoAway(seconds=30, reason="stopping")))
                await stream.released.wait()
                stream.answer(key, asked.action.arguments)
            case "wait":
                await stream.released.wait()
                stream.answer(key, asked.action.arguments)
            case "bad":
                stream.answer(key, b"", status=common_pb2.CALL_STATUS_REJECTED)
            case "lost":
                stream.answer(key, b"", status=common_pb2.CALL_STATUS_OUTCOME_UNKNOWN)
            case "late":
                stream.answer(key, b"", status=common_pb2.CALL_STATUS_TIMEOUT)
            case "gone":
                stream.answer(key, b"", status=common_pb2.CALL_STATUS_UNAVAILABLE)
            case "no broker":
                stream.answer(key, b"", status=common_pb2.CALL_STATUS_UNAVAILABLE, reason="BROKER_UNAVAILABLE")
            case _ if any(one.name == tool for one in journal.hello.client_tools):
                result = await stream.invoke(tool, asked.action.arguments)
                stream.answer(key, result.observation.content, tool_error=result.observation.tool_error)
            case _:
                stream.answer(key, asked.action.arguments)

    async def CallTools(self, request: Any, context: Any) -> session_pb2.CallToolsResponse:  # noqa: N802
        raise NotImplementedError

    async def RecordEvent(self, request: Any, context: Any) -> session_pb2.RecordEventResponse:  # noqa: N802
        raise NotImplementedError

    async def EndSession(self, request: Any, context: Any) -> session_pb2.EndSessionResponse:  # noqa: N802
        raise NotImplementedError

    def RunPlan(self, request_iterator: Any, context: Any) -> AsyncIterator[session_pb2.RunPlanResponse]:  # noqa: N802
        raise NotImplementedError

    async def GetTotals(self, request: Any, context: Any) -> session_pb2.GetTotalsResponse:  # noqa: N802
        return session_pb2.GetTotalsResponse(totals=session_pb2.Totals(calls=7, sessions=len(self.journals)))

    async def ListSessionTools(self, request: Any, context: Any) -> session_pb2.ListSessionToolsResponse:  # noqa: N802
        return session_pb2.ListSessionToolsResponse(tools=self.tools)

    async def SetSpeculation(self, request: Any, context: Any) -> session_pb2.SetSpeculationResponse:  # noqa: N802
        self.switched.append(request)
        return session_pb2.SetSpeculationResponse(revision=len(self.switched))

    async def EraseHistories(self, request: Any, context: Any) -> session_pb2.EraseHistoriesResponse:  # noqa: N802
        self.erased.append(request)
        servers = [
            session_pb2.ErasedServer(name="one", erased=True, histories=2, tokens=40, files=1),
            session_pb2.ErasedServer(name="two"),
        ]
        return session_pb2.EraseHistoriesResponse(erasure="first", servers=servers)


class Stream:
    """One connection."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.out: asyncio.Queue[Response | tuple[grpc.StatusCode, str] | None] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()
        self.released = asyncio.Event()
        self.invocations: dict[str, asyncio.Future[session_pb2.ClientToolResult]] = {}

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def fail(self, code: grpc.StatusCode, reason: str) -> None:
        self.out.put_nowait((code, reason))

    def answer(
        self,
        key: Key,
        content: bytes,
        *,
        status: common_pb2.CallStatus.ValueType = common_pb2.CALL_STATUS_OK,
        tool_error: bool = False,
        digest: str | None = None,
        parts: int | None = None,
        send: bool = True,
        reason: str = "BECAUSE",
    ) -> None:
        result = session_pb2.CallResult(
            call=common_pb2.CallKey(session=self.journal.hello.session, turn=key[0], index=key[1]),
            status=status,
            observation=common_pb2.Observation(
                content=content,
                media_type="application/json",
                tool_error=tool_error,
                digest="sha256:" + hashlib.sha256(content).hexdigest() if digest is None else digest,
                size_bytes=len(content),
            ),
            served=common_pb2.SERVED_DIRECT,
        )
        if status != common_pb2.CALL_STATUS_OK:
            result.failure.CopyFrom(common_pb2.Failure(reason=reason, message="because", metadata={"why": "so"}))
            result.failure.retry_after_seconds = 1.5
        self.journal.answers.setdefault(key, result)
        if send:
            self.send_answer(result, parts=parts)

    def send_answer(self, result: session_pb2.CallResult, *, parts: int | None = None) -> None:
        content = result.observation.content
        if len(content) > CHUNK_BYTES:
            pieces = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
            for piece in pieces[:parts]:
                self.out.put_nowait(Response(chunk=session_pb2.ResultChunk(call=result.call, data=piece)))
            if parts is not None:
                return
            short = session_pb2.CallResult()
            short.CopyFrom(result)
            short.observation.content = b""
            result = short
        self.out.put_nowait(Response(result=result))

    async def invoke(self, tool: str, arguments: bytes) -> session_pb2.ClientToolResult:
        name = f"invocation-{len(self.invocations)}"
        future: asyncio.Future[session_pb2.ClientToolResult] = asyncio.get_running_loop().create_future()
        self.invocations[name] = future
        action = common_pb2.Action(tool=tool, arguments=arguments)
        message = session_pb2.ClientToolInvocation(invocation=name, action=action, timeout_seconds=10)
        self.out.put_nowait(Response(invocation=message))
        return await future


@dataclass
class ScriptedServer:
    """The servicer behind a listening server."""

    servicer: ScriptedServicer
    server: grpc.aio.Server
    address: str

    async def stop(self) -> None:
        for stream in self.servicer.streams:
            stream.out.put_nowait(None)
        await self.server.stop(0)


async def serve(servicer: ScriptedServicer, port: int = 0) -> ScriptedServer:
    server = grpc.aio.server(options=server_options(NetworkOptions()))
    session_pb2_grpc.add_SessionServiceServicer_to_server(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return ScriptedServer(servicer, server, f"127.0.0.1:{bound}")


async def abort(context: Any, code: grpc.StatusCode, reason: str) -> None:
    """Ends a stream as the platform does; without a reason as a broken transport would."""
    if not reason:
        await context.abort(code, "Socket closed")
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="forerun", metadata={"limit": "x"}))
    status = status_pb2.Status(code=code.value[0], message=f"refused: {reason}", details=[info])
    await context.abort_with_status(rpc_status.to_status(status))
