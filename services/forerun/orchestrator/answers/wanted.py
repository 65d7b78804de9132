"""What a client wants of an answer, checked before anything is sent."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.answers import Rules
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.models.port import Message, ModelRequest, ToolCall
from forerun.v1 import answer_pb2

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_DIVERSE_TEMPERATURE = 0.8
_CLIENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Votes:
    """What most candidates say; see `forerun.core.answers.vote`."""

    behind: str = ""


@dataclass(frozen=True, slots=True)
class Judge:
    """A model gives the score.

    Attributes:
        model: Its name; empty for the one that answers.
        criterion: What a good answer is.
    """

    model: str = ""
    criterion: str = ""


@dataclass(frozen=True, slots=True)
class ClientVerifier:
    """The client gives the score.

    Attributes:
        seconds: For one score, at most.
    """

    seconds: float = _CLIENT_SECONDS


Scorer = Votes | Rules | Judge | ClientVerifier


@dataclass(frozen=True, slots=True)
class BeamShape:
    """How an answer is written piece by piece.

    Attributes:
        expand: Continuations of each kept beginning.
        steps: Pieces, at most.
        step_tokens: Tokens of one piece, at most.
        delimiter: The text that ends a piece; empty for none.
    """

    expand: int = 2
    steps: int = 8
    step_tokens: int = 128
    delimiter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesWanted:
    """Several candidates, of which one is taken.

    Attributes:
        count: How many, or the width of the beam.
        scorer: How they are compared.
        beam: None for independent candidates.
        max_cost: Money, at most.
        stop_at: A score that is good enough.
        at_once: Under way at the same time, scoring included.
        temperature: Of all but the first.
    """

    count: int
    scorer: Scorer
    beam: BeamShape | None = None
    max_cost: float = math.inf
    stop_at: float | None = None
    at_once: int = limits.ANSWER_CANDIDATES
    temperature: float = _DIVERSE_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An answer that is wanted.

    Attributes:
        agent: Decides the policy.
        session: Where it belongs; empty for none.
        model: Name of the model.
        request: The request.
        candidates: None for one answer.
        once: The request may not be repeated.
        timeout_seconds: For all of it; None leaves it to the providers.
    """

    agent: str
    session: str
    model: str
    request: ModelRequest
    candidates: CandidatesWanted | None = None
    once: bool = False
    timeout_seconds: float | None = None


def wanted_of(start: answer_pb2.AnswerStart) -> Wanted:
    """What a message means.

    Raises:
        InvalidArgument: it is wrong in itself.
    """
    for name, value in (("agent", start.agent), ("request.model", start.request.model)):
        if not 0 < len(value) <= limits.NAME_CHARS:
            raise _wrong(name, f"must have 1 to {limits.NAME_CHARS} characters")
    if len(start.session) > limits.NAME_CHARS:
        raise _wrong("session", f"must have at most {limits.NAME_CHARS} characters")
    timeout = start.timeout_seconds if start.HasField("timeout_seconds") else None
    if timeout is not None and not 0.0 < timeout <= limits.DEADLINE_MAX_SECONDS:
        raise _wrong("timeout_seconds", f"must be above 0 and at most {limits.DEADLINE_MAX_SECONDS:g}")
    request = _request(start.request)
    return Wanted(
        agent=start.agent,
        session=start.session,
        model=start.request.model,
        request=request,
        candidates=_candidates(start.candidates, request) if start.HasField("candidates") else None,
        once=start.once,
        timeout_seconds=timeout,
    )


def _wrong(field: str, rule: str) -> InvalidArgument:
    return InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"{field} {rule}", metadata={"field": field})


def _request(message: answer_pb2.ChatRequest) -> ModelRequest:
    for name, low, high in (("temperature", 0.0, 10.0), ("top_p", 0.0, 1.0)):
        if message.HasField(name) and not low <= getattr(message, name) <= high:  # type: ignore[arg-type]
            raise _wrong(f"request.{name}", f"must be {low:g} to {high:g}")
    if message.HasField("max_output_tokens") and not message.max_output_tokens:
        raise _wrong("request.max_output_tokens", "must be at least 1")
    if not message.messages:
        raise _wrong("request.messages", "must not be empty")
    request = ModelRequest(
        messages=tuple(_message(one, number) for number, one in enumerate(message.messages)),
        temperature=message.temperature if message.HasField("temperature") else None,
        top_p=message.top_p if message.HasField("top_p") else None,
        max_output_tokens=message.max_output_tokens if message.HasField("max_output_tokens") else None,
        seed=message.seed if message.HasField("seed") else None,
        stop=tuple(message.stop),
        tools=_tools(message.tools),
    )
    if request.size_bytes > limits.MODEL_PROMPT_BYTES:
        raise InvalidArgument(
            ErrorReason.MESSAGE_TOO_LARGE,
            f"messages and tools have {request.size_bytes} bytes, above MODEL_PROMPT_BYTES "
            f"({limits.MODEL_PROMPT_BYTES})",
            metadata={"limit": "MODEL_PROMPT_BYTES"},
        )
    return request


def _message(message: answer_pb2.ChatMessage, number: int) -> Message:
    if message.role not in _ROLES:
        raise _wrong(f"request.messages[{number}].role", f"must be one of {', '.join(sorted(_ROLES))}")
    calls = tuple(ToolCall(one.id, one.name, one.arguments) for one in message.tool_calls)
    return Message(message.role, message.content, calls, message.tool_call_id)


def _tools(text: str) -> str:
    if text:
        try:
            listed = isinstance(json.loads(text), list)
        except (ValueError, RecursionError):
            listed = False
        if not listed:
            raise _wrong("request.tools", "must be the JSON text of a list")
    return text


def _candidates(message: answer_pb2.AnswerCandidates, request: ModelRequest) -> CandidatesWanted:
    if not 2 <= message.count <= limits.ANSWER_CANDIDATES:
        raise _wrong("candidates.count", f"must be 2 to {limits.ANSWER_CANDIDATES} (ANSWER_CANDIDATES)")
    if message.HasField("max_cost") and not message.max_cost >= 0.0:
        raise _wrong("candidates.max_cost", "must not be negative")
    if message.HasField("stop_at") and not 0.0 <= message.stop_at <= 1.0:
        raise _wrong("candidates.stop_at", "must be 0 to 1")
    if message.HasField("at_once") and not message.at_once:
        raise _wrong("candidates.at_once", "must be at least 1")
    if message.HasField("temperature") and not 0.0 <= message.temperature <= 10.0:
        raise _wrong("candidates.temperature", "must be 0 to 10")
    beam = _beam(message.beam, message.count) if message.HasField("beam") else None
    scorer = _scorer(message.scorer)
    if beam is not None and isinstance(scorer, Votes):
        raise _wrong("candidates.scorer", "must not be votes in a beam search, whose beginnings say nothing yet")
    diverse = max(_DIVERSE_TEMPERATURE, request.temperature or 0.0)
    return CandidatesWanted(
        count=message.count,
        scorer=scorer,
        beam=beam,
        max_cost=message.max_cost if message.HasField("max_cost") else math.inf,
        stop_at=message.stop_at if message.HasField("stop_at") else None,
        at_once=message.at_once if message.HasField("at_once") else limits.ANSWER_CANDIDATES,
        temperature=message.temperature if message.HasField("temperature") else diverse,
    )


def _beam(message: answer_pb2.Beam, width: int) -> BeamShape:
    usual = BeamShape()
    shape = BeamShape(
        expand=message.expand if message.HasField("expand") else usual.expand,
        steps=message.steps if message.HasField("steps") else usual.steps,
        step_tokens=message.step_tokens if message.HasField("step_tokens") else usual.step_tokens,
        delimiter=message.delimiter,
    )
    if not 1 <= shape.expand <= limits.ANSWER_CANDIDATES or shape.expand * width > limits.ANSWER_CANDIDATES:
        raise _wrong(
            "candidates.beam.expand",
            f"must be at least 1, and times count at most {limits.ANSWER_CANDIDATES} (ANSWER_CANDIDATES)",
        )
    if not 1 <= shape.steps <= limits.ANSWER_STEPS:
        raise _wrong("candidates.beam.steps", f"must be 1 to {limits.ANSWER_STEPS} (ANSWER_STEPS)")
    if not shape.step_tokens:
        raise _wrong("candidates.beam.step_tokens", "must be at least 1")
    return shape


def _scorer(message: answer_pb2.Scorer) -> Scorer:
    match message.WhichOneof("scorer"):
        case "votes":
            return Votes(message.votes.behind)
        case "rules":
            rules = message.rules
            return Rules(
                json=rules.json,
                json_fields=tuple(rules.json_fields),
                contains=tuple(rules.contains),
                lacks=tuple(rules.lacks),
                max_chars=rules.max_chars,
            )
        case "judge":
            return Judge(message.judge.model, message.judge.criterion)
        case "client":
            given = message.client.timeout_seconds if message.client.HasField("timeout_seconds") else _CLIENT_SECONDS
            if not 0.0 < given <= limits.DEADLINE_MAX_SECONDS:
                raise _wrong("candidates.scorer.client.timeout_seconds", "must be above 0")
            return ClientVerifier(given)
    raise _wrong("candidates.scorer", "must say how candidates are compared")
