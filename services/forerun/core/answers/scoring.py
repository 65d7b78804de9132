"""Scorers that need nobody: what candidates say as votes, plain rules, and how a judge's words are read."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Final

from forerun.core.canonical import CanonicalError, canonical, parse_strict

_JUDGEMENT_CHARS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Rules:
    """Plain checks of an answer's text.

    Attributes:
        json: It is strict JSON.
        json_fields: Names that it has at the top, as an object.
        contains: Texts that it contains.
        lacks: Texts that it does not contain.
        max_chars: Characters, at most; 0 for any number.
    """

    json: bool = False
    json_fields: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    max_chars: int = 0

    def score(self, text: str) -> float:
        """The share of checks that hold; 1 where there is none."""
        held = [text_part in text for text_part in self.contains]
        held += [text_part not in text for text_part in self.lacks]
        if self.max_chars:
            held.append(len(text) <= self.max_chars)
        if self.json or self.json_fields:
            value = _json(text)
            held.append(value is not _NOT_JSON)
            held += [isinstance(value, dict) and name in value for name in self.json_fields]
        return sum(held) / len(held) if held else 1.0


_NOT_JSON: Final = object()


def _json(text: str) -> object:
    try:
        return parse_strict(text.encode("utf-8", "surrogatepass"))
    except CanonicalError:
        return _NOT_JSON


def vote(text: str, behind: str = "") -> str:
    """What an answer says, for counting votes: equal for answers that differ in nothing but white space.

    Args:
        text: The answer.
        behind: What stands behind the last occurrence of this counts; where it does not occur, the whole text.
    """
    if behind and behind in text:
        text = text.rpartition(behind)[2]
    value = _json(text)
    if isinstance(value, dict | list):
        return canonical(value).decode()
    return " ".join(unicodedata.normalize("NFC", text).split())


def verdict(text: str) -> bool:
    """A judge said yes, and nothing else. Whatever is not clearly a yes is a no."""
    return text.strip().rstrip(".!").lower() == "yes"


def judgement(text: str) -> float | None:
    """The score in a judge's words: a JSON object with `score` in 0..1, alone or in a fence. Anything else is no score.

    What a judge says about the text that it has read is not followed, only this number is.
    """
    if len(text) > _JUDGEMENT_CHARS:
        return None
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and "\n" in body:
        body = body.split("\n", 1)[1].removesuffix("```")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    score = value.get("score") if isinstance(value, dict) else None
    if isinstance(score, bool) or not isinstance(score, int | float):
        return None
    return float(score) if 0 <= score <= 1 else None
