"""Answers of models through the platform: one, or the best of several candidates."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._errors import PlatformError, from_rpc_error
from forerun.v1 import answer_pb2, answer_pb2_grpc

_LOG: Final = logging.getLogger("forerun.client")
_LONGEST_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call that a model asks for.

    Attributes:
        id: The provider's id.
        name: The tool.
        arguments: As the model wrote them.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of the conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: Its text.
        tool_calls: Calls that the assistant asked for.
        tool_call_id: For the role `tool`: the call that it answers.
    """

    role: str
    content: str
    tool_calls: Sequence[ChatCall] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class CandidateInfo:
    """How a candidate fared.

    Attributes:
        candidate: Its number, in the order of launching; the first is the answer that would have been given alone.
        end: `chosen`, `beaten`, `stopped`, `failed` or `unscored`.
        score: Its score in 0..1; None where it has none.
        cost: What it cost, its score included.
        reason: Why it failed.
    """

    candidate: int
    end: str
    score: float | None
    cost: float
    reason: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An answer, what it cost and why it is this one.

    Attributes:
        id: Its id in the ledger.
        text: Its text.
        tool_calls: The calls that it asks for.
        finish_reason: `stop`, `length`, `tool_calls`, `content_filter` or `other`.
        provider: Who has generated it.
        input_tokens: Of all prompts.
        output_tokens: Generated, in all requests.
        tokens_estimated: Some tokens were estimated, because a provider did not say.
        cost: Money of all requests, in the policy's currency.
        cost_of_one: Of this, what one answer alone would have cost.
        why: Why this one.
        candidates: All candidates; empty for a single answer.
        races: Requests that had a second attempt.
        limited_by: Why there were fewer candidates than asked for; empty where all were generated.
        approximate: Another model has answered, and the one that was asked for agreed; only where the policy allows it.
    """

    id: str
    text: str
    tool_calls: Sequence[ChatCall]
    finish_reason: str
    provider: str
    input_tokens: int
    output_tokens: int
    tokens_estimated: bool
    cost: float
    cost_of_one: float
    why: str
    candidates: Sequence[CandidateInfo]
    races: int
    limited_by: str
    approximate: bool = False


Verify = Callable[[str], float | Awaitable[float | None] | None]
"""Scores a candidate's text, in 0..1; None where it cannot."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """How candidates are compared; made by the class methods. Ties go to the candidate that was launched first."""

    message: answer_pb2.Scorer
    verify: Verify | None = None

    @classmethod
    def votes(cls, behind: str = "") -> Scorer:
        """What most candidates say.

        Args:
            behind: Only what stands behind the last occurrence of this is compared, such as `Answer:`.
        """
        return cls(answer_pb2.Scorer(votes=answer_pb2.Votes(behind=behind)))

    @classmethod
    def rules(
        cls,
        *,
        json: bool = False,
        json_fields: Sequence[str] = (),
        contains: Sequence[str] = (),
        lacks: Sequence[str] = (),
        max_chars: int = 0,
    ) -> Scorer:
        """The share of plain checks that hold."""
        rules = answer_pb2.Rules(
            json=json, json_fields=json_fields, contains=contains, lacks=lacks, max_chars=max_chars
        )
        return cls(answer_pb2.Scorer(rules=rules))

    @classmethod
    def judge(cls, model: str = "", criterion: str = "") -> Scorer:
        """A model gives the score.

        Args:
            model: Its name; empty for the one that answers.
            criterion: What a good answer is, in words.
        """
        return cls(answer_pb2.Scorer(judge=answer_pb2.Judge(model=model, criterion=criterion)))

    @classmethod
    def verifier(cls, verify: Verify, *, timeout_seconds: float = 30.0) -> Scorer:
        """A function of this program gives the score. One that raises leaves its candidate without a score."""
        return cls(answer_pb2.Scorer(client=answer_pb2.ClientVerifier(timeout_seconds=timeout_seconds)), verify=verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Several candidates, of which one is taken. Off unless the policy allows them.

    Attributes:
        count: Best of so many, or the width of the beam; at least 2.
        scorer: How they are compared.
        beam: Beam search instead of independent candidates: `expand`, `steps`, `step_tokens`, `delimiter`.
        max_cost: Money for this answer, at most.
        stop_at: A score that is good enough.
        at_once: Candidates under way at the same time, scoring included: fewer at once leave less to stop.
        temperature: Of all candidates but the first.
    """

    count: int
    scorer: Scorer
    beam: Mapping[str, int | str] | None = None
    max_cost: float | None = None
    stop_at: float | None = None
    at_once: int | None = None
    temperature: float | None = None

    def as_message(self) -> answer_pb2.AnswerCandidates:
        """On the wire."""
        message = answer_pb2.AnswerCandidates(count=self.count, scorer=self.scorer.message)
        for name in ("max_cost", "stop_at", "at_once", "temperature"):
            value = getattr(self, name)
            if value is not None:
                setattr(message, name, value)
        if self.beam is not None:
            message.beam.CopyFrom(answer_pb2.Beam(**self.beam))  # type: ignore[arg-type]
        return message


@dataclass(slots=True)
class Answers:
    """Answers for one agent; made by `AsyncClient.answers`.

    Attributes:
        agent: Name of the agent, which decides the policy.
        session: Id of the session that the answers belong to, for the ledger; empty for none.
    """

    agent: str
    session: str
    _stub: Callable[[], answer_pb2_grpc.AnswerServiceStub]
    _metadata: Callable[[], tuple[tuple[str, str], ...]]
    _address: Callable[[], str]

    async def generate(
        self,
        model: str,
        messages: Sequence[ChatMessage],
        *,
        search: Search | None = None,
        on_text: Callable[[str], None] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_output_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        once: bool = False,
        timeout_seconds: float | None = None,
    ) -> ModelAnswer:
        """An answer. Cancelling this stops all of its requests down to the providers.

        Args:
            model: Name of the model, as the policy knows it.
            messages: The conversation so far.
            search: Several candidates; None for one answer.
            on_text: Is given the text of a single answer as it comes.
            temperature: Of the sampling.
            top_p: Nucleus sampling.
            max_output_tokens: Generated tokens, at most.
            seed: Of the sampling.
            stop: Texts that end the generation.
            tools: Tools that the model may call, in the form of chat completions.
            once: The request may not be repeated: no retries once it may have begun, no second attempt, no candidates.
            timeout_seconds: For all of it: what is there by then is taken.

        Raises:
            InvalidRequest: the request is wrong, or no model of this name is there.
            PlatformUnavailable: no provider has answered, a rate limit or a price cap does not allow it.
            ForerunClientError: the platform does not answer, or refuses.
        """
        request = answer_pb2.ChatRequest(
            model=model, messages=[_message(one) for one in messages], stop=stop,
            tools=json.dumps(list(tools)) if tools else "",
        )  # fmt: skip
        for name, value in (
            ("temperature", temperature), ("top_p", top_p), ("max_output_tokens", max_output_tokens), ("seed", seed),
        ):  # fmt: skip
            if value is not None:
                setattr(request, name, value)
        start = answer_pb2.AnswerStart(agent=self.agent, session=self.session, request=request, once=once)
        if search is not None:
            start.candidates.CopyFrom(search.as_message())
        if timeout_seconds is not None:
            start.timeout_seconds = timeout_seconds
        try:
            return await self._talk(start, search.scorer.verify if search is not None else None, on_text)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._address()).error from error

    async def _talk(
        self, start: answer_pb2.AnswerStart, verify: Verify | None, on_text: Callable[[str], None] | None
    ) -> ModelAnswer:
        call: Any = self._stub().Answer(metadata=self._metadata(), timeout=_LONGEST_SECONDS)
        scoring: list[asyncio.Task[None]] = []
        try:
            await call.write(answer_pb2.AnswerRequest(start=start))
            while (response := await call.read()) is not grpc.aio.EOF:
                match response.WhichOneof("message"):
                    case "delta":
                        if on_text is not None:
                            on_text(response.delta.text)
                    case "candidate":
                        scoring.append(asyncio.create_task(_score(call, verify, response.candidate)))
                    case "result":
                        return _answer(response.result)
            raise PlatformError("UNKNOWN", "the platform ended the stream without an answer")
        finally:
            for task in scoring:
                task.cancel()
            call.cancel()


async def _score(call: Any, verify: Verify | None, candidate: answer_pb2.CandidateText) -> None:
    """Sends the score of a candidate; none where the verifier fails. A stream that has ended needs none."""
    message = answer_pb2.CandidateScore(candidate=candidate.candidate)
    try:
        score = verify(candidate.text) if verify is not None else None
        score = await score if inspect.isawaitable(score) else score
        if score is not None:
            message.score = float(score)
    except Exception:
        _LOG.warning("the verifier of candidates failed; a candidate has no score", exc_info=True)
    try:
        await call.write(answer_pb2.AnswerRequest(score=message))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return


def _message(message: ChatMessage) -> answer_pb2.ChatMessage:
    return answer_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=[
            answer_pb2.ChatToolCall(id=one.id, name=one.name, arguments=one.arguments) for one in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
    )


def _answer(result: answer_pb2.AnswerResult) -> ModelAnswer:
    return ModelAnswer(
        id=result.answer,
        text=result.text,
        tool_calls=[ChatCall(one.id, one.name, one.arguments) for one in result.tool_calls],
        finish_reason=result.finish_reason,
        provider=result.provider,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        tokens_estimated=result.usage.estimated,
        cost=result.cost,
        cost_of_one=result.cost_of_one,
        why=result.why,
        candidates=[
            CandidateInfo(one.candidate, one.end, one.score if one.HasField("score") else None, one.cost, one.reason)
            for one in result.candidates
        ],
        races=result.races,
        limited_by=result.limited_by,
        approximate=result.approximate,
    )
