"""Tokens of plain text that could be arguments, and the shape of each: `emma_kim_9957` is `a_a_0`, `EHGLP3` is `U6`.

A shape is what an argument of one kind has in common over all sessions. The value itself is never learned from text.
"""

from __future__ import annotations

import re

from forerun.predictor.engine.tuning import MAX_TEXT_CHARS

_TOKEN = re.compile(
    r"""https?://[^\s<>"'`)\]]+                     # URLs
      | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                # mail addresses
      | `[^`\n]{2,200}`                             # code spans
      | "[^"\n]{2,80}" | “[^”\n]{2,80}”             # quoted strings
      | (?:\.{0,2}/)?[\w.-]+(?:/[\w.-]+)+/?         # file paths
      | [#$@+]?\w+(?:[-_.:,+]\w+)*                  # words, identifiers, numbers, dates, times
    """,
    re.VERBOSE,
)
_RUNS = re.compile(r"[A-Z]+|[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{2,24}")
_DATE_WORDS = re.compile(
    r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+(\d{1,2})(?:st|nd|rd|th)?\b(?:,?\s+(\d{4}))?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBER = re.compile(r"[$+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|[$+]\d+(?:\.\d+)?$")


def shape_of(token: str) -> str:
    """The shape of a token: what kind of identifier it is, without its value."""
    if "://" in token:
        return "url"
    if "@" in token[1:]:
        return "mail"
    if "/" in token:
        return "path" + ("." + token.rsplit(".", 1)[1][:6] if "." in token.rsplit("/", 1)[1] else "")
    if " " in token:
        return "phrase"
    if token.isdigit():
        return f"D{min(len(token), 20)}"
    if token.isalnum() and token.isupper():
        return f"U{min(len(token), 12)}"
    return _RUNS.sub(lambda run: _run_class(run.group()), token)[:24]


def _run_class(run: str) -> str:
    if run.isdigit():
        return "0"
    return "A" if run.isupper() else "a"


def tokens(text: str, limit: int) -> list[tuple[str, str]]:
    """Tokens of a text that could be arguments, as (shape, token) in order of appearance, without repeats."""
    text = text[:MAX_TEXT_CHARS]
    found: dict[tuple[str, str], None] = {}
    name: list[str] = []
    end = -1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token[0] in '`"“':
            inner = token[1:-1].strip()
            found[("quoted", inner)] = None
            if " " not in inner:
                found[(shape_of(inner), inner)] = None
            continue
        if token.isalpha() and token.islower():
            continue
        found[(shape_of(token), token)] = None
        if _NUMBER.match(token):
            found[("amount", token.lstrip("$+").replace(",", ""))] = None
        if token[0].isupper() and token.isalpha() and not token.isupper():
            name = [*name, token] if name and text[end : match.start()] == " " else [token]
            end = match.end()
            if len(name) >= 2:
                found[(f"name{len(name)}", " ".join(name))] = None
        if len(found) >= limit:
            break
    return list(found)[:limit]


def dates(text: str, year: str | None) -> list[str]:
    """Dates written in words, as ISO dates. `year` stands in where the text names none."""
    result: dict[str, None] = {}
    for month, day, written in _DATE_WORDS.findall(text[:MAX_TEXT_CHARS]):
        if written or year:
            result[f"{written or year}-{_MONTHS.index(month.lower()) + 1:02d}-{int(day):02d}"] = None
    return list(result)[:16]


def words(text: str, limit: int) -> list[str]:
    """Distinct words of a text in lower case, in order of appearance."""
    return list(dict.fromkeys(match.group().lower() for match in _WORD.finditer(text[:4096])))[:limit]
