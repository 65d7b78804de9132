"""What a request asks for, as JSON in its `OPTIONS`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from forerun.core.errors import CoreError
from forerun.core.tokens.sampling import SamplingOptions
from forerun.core.tokens.stopping import StopRules
from forerun.serving.backend.sequences import Refused

_SAMPLING: Final = frozenset(one.name for one in fields(SamplingOptions))
_OTHERS: Final[Mapping[str, type]] = {
    "coupled": bool, "max_tokens": int, "stop": list, "stop_tokens": list, "keep_stop": bool, "ignore_end": bool,
    "logprobs": bool, "speculate": bool, "depth": int, "cap": int, "branches": int,
    "drafters": list, "history": bool, "expected": list, "tenant": str, "agent": str, "erase": bool, "erasure": str,
    "calls": list, "call": str,
}  # fmt: skip
_NAMES: Final = 256
_EXPECTED: Final = 16
_EXPECTED_TOKENS: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a request.

    Attributes:
        sampling: How tokens are chosen. Without a temperature: the likeliest one.
        coupled: Sampled tokens follow from seed and position, so that they are equal with and without drafts; else by
            rejection, equal in distribution, with more accepted tokens of a draft model.
        stop: When the answer ends.
        logprobs: Give each token's log probability.
        speculate: False: without drafts (the opt-out).
        depth: Tokens to draft for each pass; None: the controller decides.
        cap: The governor's bound on them; None: the profile's.
        branches: Tokens that may follow the same drafted one, at most; None: the profile's. 1: chains.
        drafters: Only these; None: all that there are.
        history: Use and keep outputs for later drafts.
        expected: Texts that are expected, such as predicted calls, as tokens.
        tenant: Whose history it is; empty: none is used.
        agent: Of the tenant.
        erase: Say nothing but what was there; forget the tenant's history.
        erasure: Names the erasure: what began after it stays when it is heard of again. Empty: everything goes.
        calls: JSON of the tools of which exactly one is called, in the form of chat completions; empty: any text.
        call: The one of them that is called; empty: any.
    """

    sampling: SamplingOptions
    coupled: bool
    stop: StopRules
    logprobs: bool
    speculate: bool
    depth: int | None
    cap: int | None
    branches: int | None
    drafters: frozenset[str] | None
    history: bool
    expected: tuple[tuple[int, ...], ...]
    tenant: str
    agent: str
    erase: bool
    erasure: str
    calls: str
    call: str


def read_options(text: str, *, ends: frozenset[int], most_tokens: int) -> Options:
    """The options in a JSON text.

    Args:
        text: A JSON object; empty: all defaults.
        ends: The model's own end tokens.
        most_tokens: Of one answer, as the profile has it.

    Raises:
        Refused: They are none; the message names what is wrong.
    """
    given = _object(text)
    try:
        sampling = sampling_of({name: value for name, value in given.items() if name in _SAMPLING})
        stop = StopRules(
            tokens=frozenset(_tokens(given.get("stop_tokens", [])))
            | (frozenset() if given.get("ignore_end") else ends),
            strings=tuple(str(one) for one in given.get("stop", [])),
            max_tokens=min(most_tokens, given.get("max_tokens", most_tokens)),
            keep_string=given.get("keep_stop", False),
        )
        expected = _expected(given.get("expected", []))
        drafters = frozenset(map(str, given["drafters"])) if "drafters" in given else None
    except (CoreError, TypeError, ValueError) as error:
        raise Refused(str(error)) from error
    tenant = given.get("tenant", "")
    if len(tenant) > _NAMES:
        raise Refused(f"the option tenant has more than {_NAMES} characters")  # cut off, two tenants might be one
    return Options(
        sampling=sampling,
        coupled=given.get("coupled", True),
        stop=stop,
        logprobs=given.get("logprobs", False),
        speculate=given.get("speculate", True),
        depth=given.get("depth"),
        cap=given.get("cap"),
        branches=given.get("branches"),
        drafters=drafters,
        history=given.get("history", True),
        expected=expected,
        tenant=tenant,
        agent=given.get("agent", "")[:_NAMES],
        erase=given.get("erase", False),
        erasure=given.get("erasure", "")[:_NAMES],
        calls=_calls(given),
        call=given.get("call", ""),
    )


def _expected(texts: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    if len(texts) > _EXPECTED:
        raise Refused(f"more than {_EXPECTED} expected texts")
    return tuple(tuple(_tokens(one)) for one in texts)


def _calls(given: Mapping[str, Any]) -> str:
    if "calls" not in given:
        return ""
    if given.get("ignore_end"):
        raise Refused("with calls an answer ends with its call: leave ignore_end out")
    return json.dumps(given["calls"])


def sampling_of(given: Mapping[str, Any]) -> SamplingOptions:
    """Sampling options from JSON; temperature 0 where none is given.

    Raises:
        CoreError: They have no meaning.
        TypeError: A value is of another type.
    """
    values = {"temperature": 0.0, **given}
    if "logit_bias" in values:
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}
    return SamplingOptions(**values)


def json_of(sampling: SamplingOptions) -> dict[str, Any]:
    """What `sampling_of` reads."""
    return {one.name: getattr(sampling, one.name) for one in fields(sampling)}


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise Refused(f"the options are no JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refused("the options are no JSON object")
    unknown = sorted(set(given) - _SAMPLING - set(_OTHERS))
    if unknown:
        raise Refused(f"unknown options: {', '.join(unknown)}")
    for name, kind in _OTHERS.items():
        if name in given and (not isinstance(given[name], kind) or (kind is int and isinstance(given[name], bool))):
            raise Refused(f"the option {name} has to be of type {kind.__name__}")
    return given


def _tokens(values: Sequence[Any]) -> list[int]:
    if len(values) > _EXPECTED_TOKENS:
        raise Refused(f"a list of more than {_EXPECTED_TOKENS} tokens")
    return [int(one) for one in values]
