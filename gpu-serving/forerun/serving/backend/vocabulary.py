"""Whether two models mean the same by the same token ids, judged token by token before they are coupled.

Sizes say nothing: models of one family differ by rows of padding (151,936 and 152,064) and are equal, and models of one
size can differ in every word. Ids beyond a model's real tokens are padding: they are allowed, and never produced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHOWN: Final = 5
"""Differences that a message names."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model.

    Attributes:
        name: Of the model, for messages.
        tokens: Text of each real token; its place is its id. None: no token has this id.
        rows: Of its embedding: real tokens and padding.
        special: Ids of special tokens by their text, such as the end of a turn.
    """

    name: str
    tokens: Sequence[str | None]
    rows: int
    special: Mapping[str, int]

    @property
    def real(self) -> int:
        """Ids below this one can be produced."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        usable: The tokens that both have; padding of either is left out.
        padding: Rows by which the embeddings differ.
        differences: Words on each difference, at most `SHOWN`; empty: they can be coupled.
        count: How many there are.
    """

    usable: int
    padding: int
    differences: tuple[str, ...]
    count: int

    @property
    def same(self) -> bool:
        """The models can be coupled."""
        return not self.count


def compare(target: Vocabulary, draft: Vocabulary) -> Comparison:
    """Compares the tokens of a draft with those of its target."""
    found: list[str] = []
    count = 0
    for number in range(max(target.real, draft.real)):
        ours = target.tokens[number] if number < target.real else None
        theirs = draft.tokens[number] if number < draft.real else None
        if ours == theirs:
            continue
        count += 1
        if len(found) < SHOWN:
            found.append(f"{number}: {_shown(ours)} in {target.name}, {_shown(theirs)} in {draft.name}")
    for text in sorted(set(target.special) ^ set(draft.special)):
        count += 1
        if len(found) < SHOWN:
            owner = target if text in target.special else draft
            found.append(f"{text!r} is a special token of {owner.name} only")
    usable = min(target.real, draft.real)
    return Comparison(usable, abs(target.rows - draft.rows), tuple(found), count)


def from_tokenizer(name: str, path: Path, rows: int | None = None) -> Vocabulary:
    """The vocabulary of a `tokenizer.json`.

    Args:
        name: Of the model.
        path: The file.
        rows: Of the model's embedding; None: as many as there are tokens.

    Raises:
        ValueError: The file holds none, or more tokens than the embedding has rows.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        ids: dict[str, int] = dict(content["model"]["vocab"])
        added = content.get("added_tokens", [])
        ids.update({one["content"]: one["id"] for one in added})
        special = {one["content"]: int(one["id"]) for one in added if one["special"]}
        tokens: list[str | None] = [None] * (max(ids.values()) + 1)
        for text, number in ids.items():
            tokens[number] = text
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path.name} of {name} holds no vocabulary: {error}") from error
    if rows is not None and rows < len(tokens):
        raise ValueError(f"{name} has {len(tokens)} tokens and an embedding of {rows} rows only")
    return Vocabulary(name, tokens, len(tokens) if rows is None else rows, special)


def token_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes that each token of a byte-level tokenizer adds to a text; special tokens add none."""
    special = set(vocabulary.special.values())
    found = []
    for number, text in enumerate(vocabulary.tokens):
        if text is None or number in special:
            found.append(b"")
        else:
            # A character that stands for no byte is an added token: it is written as it is.
            parts = (bytes([_BYTE_OF[one]]) if one in _BYTE_OF else one.encode() for one in text)
            found.append(b"".join(parts))
    return found


def _byte_characters() -> dict[str, int]:
    """How byte-level tokenizers write bytes: printable ones as themselves, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_OF: Final = _byte_characters()


def toy_bytes(size: int) -> list[bytes]:
    """The same of a toy."""
    return [toy_text(token).encode() if token else b"" for token in range(size)]


def of_toy(name: str, size: int) -> Vocabulary:
    """The vocabulary of a toy: token 0 ends a text, each other one is written as a word."""
    return Vocabulary(name, [toy_text(number) for number in range(size)], size, {toy_text(0): 0})


def toy_text(token: int) -> str:
    """How a toy's token is written; token 0 is the end of a text."""
    return f" w{token}" if token else "<end>"


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token)
