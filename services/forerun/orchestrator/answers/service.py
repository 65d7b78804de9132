"""The transport of answers: between the contract's messages and the driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.orchestrator.answers.driver import Answer, Answering
from forerun.orchestrator.answers.wanted import wanted_of
from forerun.runtime.auth import current_caller
from forerun.runtime.errors import ErrorReason, InvalidArgument, message_too_large
from forerun.runtime.models.port import ToolCall
from forerun.v1 import answer_pb2, answer_pb2_grpc

_START_SECONDS: Final = 30.0
_AHEAD: Final = 64
_STOP_SECONDS: Final = 3.0

Requests = AsyncIterator[answer_pb2.AnswerRequest]


class _Talk:
    """One conversation: deltas and candidates go out, scores come in."""

    def __init__(self) -> None:
        self._out: asyncio.Queue[answer_pb2.AnswerResponse | None] = asyncio.Queue(_AHEAD)
        self._scores: dict[int, asyncio.Future[float | None]] = {}
        self._left = False

    async def delta(self, text: str) -> None:
        await self._out.put(answer_pb2.AnswerResponse(delta=answer_pb2.AnswerDelta(text=text)))

    async def score(self, candidate: int, text: str, tool_calls: Sequence[ToolCall]) -> float | None:
        asked: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self._scores[candidate] = asked
        try:
            message = answer_pb2.CandidateText(candidate=candidate, text=text, tool_calls=_calls(tool_calls))
            await self._out.put(answer_pb2.AnswerResponse(candidate=message))
            return await asked
        finally:
            del self._scores[candidate]

    async def read(self, requests: Requests) -> None:
        """Takes scores. One that nobody waits for any more is late, not wrong."""
        async for request in requests:
            if not request.HasField("score"):
                raise InvalidArgument(
                    ErrorReason.PROTOCOL_VIOLATION, "after AnswerStart only scores of candidates may follow"
                )
            asked = self._scores.get(request.score.candidate)
            if asked is not None and not asked.done():
                asked.set_result(request.score.score if request.score.HasField("score") else None)

    async def close(self) -> None:
        """The last response was put; unless the client has left, which then reads none any more."""
        if not self._left:
            await self._out.put(None)

    def leave(self) -> None:
        self._left = True

    async def responses(self) -> AsyncIterator[answer_pb2.AnswerResponse]:
        while (response := await self._out.get()) is not None:
            yield response


class AnswerServicer(answer_pb2_grpc.AnswerServiceServicer):
    """Serves AnswerService.

    Args:
        answering: Gives answers.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def Answer(  # noqa: N802  (the contract's name)
        self, request_iterator: Requests, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[answer_pb2.AnswerResponse]:
        """An answer; see the contract."""
        caller = current_caller()
        wanted = wanted_of(await _start(request_iterator))
        talk = _Talk()

        async def work() -> Answer:
            try:
                return await self._answering.answer(caller, wanted, talk)
            finally:
                await talk.close()

        async def read() -> None:
            try:
                await talk.read(request_iterator)
            except InvalidArgument:
                working.cancel()
                raise

        working = asyncio.create_task(work(), name="answer")
        reading = asyncio.create_task(read(), name="answer-scores")
        try:
            async for response in talk.responses():
                yield response
            if reading.done():
                await reading  # raises where the client said something wrong
            yield answer_pb2.AnswerResponse(result=_result(await working))
        finally:
            talk.leave()
            reading.cancel()
            working.cancel()
            await asyncio.wait({reading, working}, timeout=_STOP_SECONDS)
            for task in (reading, working):
                with contextlib.suppress(asyncio.CancelledError):
                    if task.done():
                        task.exception()


async def _start(requests: Requests) -> answer_pb2.AnswerStart:
    first = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            first = await anext(requests, None)
    if first is None or not first.HasField("start"):
        raise InvalidArgument(ErrorReason.PROTOCOL_VIOLATION, "the first message must be AnswerStart")
    return first.start


def _calls(calls: Sequence[ToolCall]) -> list[answer_pb2.ChatToolCall]:
    return [answer_pb2.ChatToolCall(id=one.id, name=one.name, arguments=one.arguments) for one in calls]


def _result(answer: Answer) -> answer_pb2.AnswerResult:
    reports = []
    for one in answer.reports:
        report = answer_pb2.CandidateReport(
            candidate=one.candidate, end=one.end.value, cost=one.cost, reason=one.reason
        )
        if one.score is not None:
            report.score = one.score
        reports.append(report)
    usage = answer.usage
    message = answer_pb2.AnswerResult(
        answer=answer.id,
        text=answer.text,
        tool_calls=_calls(answer.tool_calls),
        finish_reason=answer.reason.value,
        provider=answer.provider,
        usage=answer_pb2.TokenUsage(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, estimated=usage.estimated
        ),
        cost=answer.cost,
        cost_of_one=answer.cost_of_one,
        why=answer.why,
        candidates=reports,
        races=answer.races,
        limited_by=answer.limited_by.value,
        approximate=answer.approximate,
    )
    if message.ByteSize() > limits.MESSAGE_BYTES - limits.KIB:
        raise message_too_large(message.ByteSize(), limits.MESSAGE_BYTES)
    return message
