"""Listens to every session's stream between client and platform: what was asked, what was answered, and when."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import grpc.aio

from forerun.v1 import plan_pb2, session_pb2

_CONNECT = "/forerun.v1.SessionService/Connect"
_RUN_PLAN = "/forerun.v1.SessionService/RunPlan"

CallKey = tuple[str, int, int]
"""Session, turn and index."""


class Tap:
    """What went over the wire.

    Attributes:
        asks: How often each call was sent.
        asked_at: When each call was sent first.
        actions: Tool and arguments of each call; several where a key was used for several, by mistake or because an
            owner had forgotten it.
        said: What the users of each session said, and when.
        answers: What came for each call, without echo and times: every answer of a call must be the same.
        answered: How many answers came for each call.
        vanished: When the client of each session was gone, and its agent went on with another one.
        planned: Calls that are tasks of a plan: they were told then, and asked for when the plan allowed it.
        trace: Everything in order, for the digest of the run.
    """

    def __init__(self) -> None:
        self.asks: Counter[CallKey] = Counter()
        self.asked_at: dict[CallKey, float] = {}
        self.actions: dict[CallKey, list[tuple[str, dict[str, Any]]]] = {}
        self.said: dict[str, list[tuple[float, str]]] = {}
        self.answered: Counter[CallKey] = Counter()
        self.answers: dict[CallKey, list[tuple[object, ...]]] = {}
        self.vanished: dict[str, list[float]] = {}
        self.planned: set[CallKey] = set()
        self.epochs: Counter[str] = Counter()
        self.trace: list[str] = []
        self._streams: dict[str, _Stream] = {}

    def channel(self, inner: grpc.aio.Channel) -> grpc.aio.Channel:
        """The channel with the tap in it."""
        return cast(grpc.aio.Channel, _Channel(inner, self))

    def opened(self, session: str, stream: _Stream) -> None:
        """A session's stream begins."""
        self._streams[session] = stream

    def vanish(self, session: str) -> None:
        """The process of a session's client is gone: its stream breaks, and nobody connects again."""
        self.note("><", session, b"")
        self.vanished.setdefault(session, []).append(asyncio.get_running_loop().time())
        self._streams[session].cancel()

    def sent(self, session: str, request: session_pb2.ConnectRequest) -> None:
        """The client wrote a message."""
        self.note("->", session, request.SerializeToString(deterministic=True))
        if request.HasField("batch"):
            self.asked(session, request.batch)
        elif request.HasField("event") and request.event.HasField("user_turn"):
            now = asyncio.get_running_loop().time()
            self.said.setdefault(session, []).append((now, request.event.user_turn.text))

    def asked(self, session: str, batch: session_pb2.CallBatch) -> None:
        """Calls were asked for."""
        for call in batch.calls:
            key = (session, batch.turn, call.index)
            self.asks[key] += 1
            self.asked_at.setdefault(key, asyncio.get_running_loop().time())
            self.means(key, call.action.tool, json.loads(call.action.arguments or b"{}"))

    def means(self, key: CallKey, tool: str, arguments: dict[str, Any]) -> None:
        """What a key stands for."""
        known = self.actions.setdefault(key, [])
        if (tool, arguments) not in known:
            known.append((tool, arguments))

    def told(self, key: CallKey, task: plan_pb2.PlanTask) -> None:
        """A task of a plan was told. What it takes from another one's answer is known later."""
        self.asks[key] += 1
        self.asked_at.setdefault(key, asyncio.get_running_loop().time())
        self.planned.add(key)
        if b"$" not in task.arguments:
            self.means(key, task.tool, json.loads(task.arguments))

    def task_ended(self, key: CallKey, task: plan_pb2.PlanTaskEnded) -> None:
        """A task of a plan has its end. Whether each telling says the same is judged with the plan."""
        self.answered[key] += 1
        if task.status == plan_pb2.TASK_STATUS_SKIPPED:
            return  # it was no call: another owner may not know of its message, and its turn can come again
        self.answers.setdefault(key, [])

    def received(self, session: str, response: session_pb2.ConnectResponse) -> None:
        """The client read a message."""
        self.note("<-", session, response.SerializeToString(deterministic=True))
        if response.HasField("welcome"):
            self.epochs[session] = max(self.epochs[session], response.welcome.epoch)
        elif response.HasField("result"):
            self.took(session, response.result)

    def took(self, session: str, result: session_pb2.CallResult) -> None:
        """A call was answered."""
        if result.failure.reason != "CALL_KEY_CONFLICT":
            self.answered[session, result.call.turn, result.call.index] += 1
            self.compare(session, result)

    def compare(self, session: str, result: session_pb2.CallResult) -> None:
        """An answer that came by whatever way: it has to be the same as every other one of its call."""
        key = (session, result.call.turn, result.call.index)
        if result.failure.reason == "CALL_KEY_CONFLICT":
            return
        self.answers.setdefault(key, []).append(
            (result.status, result.observation.digest, result.failure.reason, result.served)
        )

    def note(self, direction: str, session: str, data: bytes) -> None:
        """Something went over the wire."""
        now = asyncio.get_running_loop().time()
        self.trace.append(f"{now!r} {direction} {session} {hashlib.sha256(data).hexdigest()[:16]}")


class _Channel:
    """Passes everything on and listens to the sessions' streams."""

    def __init__(self, inner: grpc.aio.Channel, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        start: Any = self._inner.stream_stream(method, *args, **kwargs)
        taps: dict[str, Callable[..., Any]] = {
            _CONNECT: lambda **given: _Stream(start(**given), self._tap),
            _RUN_PLAN: lambda **given: _PlanStream(start(**given), self._tap),
        }
        return taps.get(method, cast(Callable[..., Any], start))


class _Stream:
    """One stream of a session, as the client uses it."""

    def __init__(self, call: Any, tap: Tap) -> None:
        self._call = call
        self._tap = tap
        self._session = ""

    async def write(self, request: session_pb2.ConnectRequest) -> None:
        if request.HasField("hello"):
            self._session = request.hello.session
            self._tap.opened(self._session, self)
        await self._call.write(request)
        self._tap.sent(self._session, request)

    async def read(self) -> Any:
        response = await self._call.read()
        if response is not grpc.aio.EOF:
            self._tap.received(self._session, response)
        return response

    def cancel(self) -> Any:
        return self._call.cancel()


class _PlanStream:
    """One stream of a plan, as the client uses it."""

    def __init__(self, call: Any, tap: Tap) -> None:
        self._call = call
        self._tap = tap
        self._session = ""
        self._turn = 0
        self._told = 0

    async def write(self, request: session_pb2.RunPlanRequest) -> None:
        if request.HasField("start"):
            self._session, self._turn = request.start.hello.session, request.start.turn
        await self._call.write(request)
        self._tap.note("=>", self._session, request.SerializeToString(deterministic=True))
        for task in request.tasks.tasks:
            self._tap.told((self._session, self._turn, self._told), task)
            self._told += 1

    async def read(self) -> Any:
        response = await self._call.read()
        if response is not grpc.aio.EOF:
            self._tap.note("<=", self._session, response.SerializeToString(deterministic=True))
            if response.HasField("task"):
                self._tap.task_ended((self._session, self._turn, response.task.index), response.task)
        return response

    async def done_writing(self) -> None:
        await self._call.done_writing()

    def cancel(self) -> Any:
        return self._call.cancel()
