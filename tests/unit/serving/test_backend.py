"""Parts of the served loop, each alone: vocabularies, sequences, admission, options, the draft model's cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from forerun.serving.backend.admission import Admission, Left
from forerun.serving.backend.drafts import ModelDrafter
from forerun.serving.backend.options import read_options
from forerun.serving.backend.sequences import Refused, Sequences
from forerun.serving.backend.vocabulary import Vocabulary, compare, from_tokenizer, of_toy, token_bytes


def vocabulary(size: int, rows: int, *, name: str = "m", end: str = "<end>") -> Vocabulary:
    return Vocabulary(name, [end, *(f"t{number}" for number in range(1, size))], rows, {end: 0})


def test_padding_is_no_difference() -> None:
    found = compare(vocabulary(100, 100), vocabulary(100, 128))
    assert found.same
    assert (found.usable, found.padding) == (100, 28)


def test_swapped_tokens_of_one_size_are_refused_by_name() -> None:
    swapped = list(vocabulary(100, 100).tokens)
    swapped[7], swapped[8] = swapped[8], swapped[7]
    found = compare(vocabulary(100, 100, name="target"), Vocabulary("draft", swapped, 100, {"<end>": 0}))
    assert not found.same
    assert found.differences == ("7: 't7' in target, 't8' in draft", "8: 't8' in target, 't7' in draft")


def test_only_the_first_five_differences_are_named_and_all_are_counted() -> None:
    found = compare(of_toy("target", 64), of_toy("draft", 32))
    assert (len(found.differences), found.count) == (5, 32)


def test_other_special_tokens_are_a_difference() -> None:
    found = compare(vocabulary(10, 10), Vocabulary("draft", vocabulary(10, 10).tokens, 10, {}))
    assert found.differences == ("'<end>' is a special token of m only",)


def test_a_tokenizer_file_gives_its_tokens_and_their_bytes(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    words = {"a": 0, "Ġb": 1, "Ã©": 2, "<|end|>": 3}
    added = [{"id": 3, "content": "<|end|>", "special": True}]
    file.write_text(json.dumps({"model": {"vocab": words}, "added_tokens": added}), encoding="utf-8")
    found = from_tokenizer("m", file, rows=8)
    assert (found.real, found.rows, found.special) == (4, 8, {"<|end|>": 3})
    assert token_bytes(found) == [b"a", b" b", "é".encode(), b""]
    with pytest.raises(ValueError, match="3 rows only"):
        from_tokenizer("m", file, rows=3)
    file.write_text("{}")
    with pytest.raises(ValueError, match="holds no vocabulary"):
        from_tokenizer("m", file)


def test_sequences_have_so_many_slots_and_idle_ones_give_theirs_up() -> None:
    now = [0.0]
    slots: Sequences[str] = Sequences(2, 10.0, lambda: now[0])
    slots.start(1, lambda: "one")
    now[0] = 5.0
    slots.start(2, lambda: "two")
    with pytest.raises(Refused, match="all 2 slots"):
        slots.start(3, lambda: "three")
    now[0] = 11.0
    slots.start(3, lambda: "three")
    assert list(slots) == [2, 3]
    with pytest.raises(Refused, match="is not open"):
        slots.find(1)
    slots.end(2)
    assert list(slots) == [3]


def test_a_sequence_that_starts_again_begins_anew() -> None:
    slots: Sequences[list[int]] = Sequences(1, 10.0, lambda: 0.0)
    slots.start(1, list).append(5)
    assert slots.start(1, list) == []


async def test_places_are_given_in_order_and_those_who_leave_make_room() -> None:
    seen: list[tuple[int, int]] = []
    admission = Admission(1, 2, lambda live, waiting: seen.append((live, waiting)))
    await admission.enter(lambda: False)
    order: list[str] = []

    async def wait(name: str) -> None:
        await admission.enter(lambda: False)
        order.append(name)

    first, second = asyncio.create_task(wait("first")), asyncio.create_task(wait("second"))
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="Exceeds maximum queue size 2"):
        await admission.enter(lambda: False)
    admission.leave()
    await first
    assert (order, admission.live) == (["first"], 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    admission.leave()
    assert seen[-1] == (0, 0)


async def test_a_client_that_has_left_waits_no_longer() -> None:
    admission = Admission(1, 1, lambda live, waiting: None)
    await admission.enter(lambda: False)
    with pytest.raises(Left):
        await admission.enter(lambda: True)
    admission.leave()
    await admission.enter(lambda: False)
    assert admission.live == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "no JSON object"),
        ("{", "no JSON"),
        ('{"temperture": 1}', "unknown options: temperture"),
        ('{"temperature": -1}', "temperature must be from 0"),
        ('{"depth": true}', "depth has to be of type int"),
        ('{"expected": [["a"]]}', "invalid literal"),
        ('{"expected": [3]}', "int"),
        (json.dumps({"expected": [[1]] * 17}), "more than 16 expected texts"),
        ('{"max_tokens": 0}', "max_tokens must be 1 or more"),
        ('{"stop": [""]}', "stop strings"),
        ('{"logit_bias": {"x": 1}}', "invalid literal"),
    ],
)
def test_options_that_mean_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        read_options(text, ends=frozenset({0}), most_tokens=10)


def test_options_have_the_profiles_bound_and_the_models_ends() -> None:
    found = read_options('{"max_tokens": 50, "stop_tokens": [7]}', ends=frozenset({0}), most_tokens=10)
    assert (found.stop.max_tokens, found.stop.tokens) == (10, frozenset({0, 7}))
    assert found.sampling.is_greedy
    assert read_options('{"ignore_end": true}', ends=frozenset({0}), most_tokens=10).stop.tokens == frozenset()


def test_a_draft_model_is_fed_only_what_it_has_not_seen() -> None:
    asked: list[tuple[int, list[int]]] = []

    class Port:
        def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
            asked.append((keep, list(tokens)))
            return [90 + number for number in range(count)], 0.0

        def close(self) -> None:
            return None

    drafter = ModelDrafter(Port())
    drafter.propose([1, 2, 3], 3, 1)  # drafts 90 91 92, of which the model has seen 90 and 91
    drafter.propose([1, 2, 3, 90, 7], 2, 1)  # 90 was right, then came 7
    drafter.propose([1, 2, 3, 90, 7, 90, 91], 3, 1)  # all right, one more than it has seen
    drafter.propose([1, 2, 3, 90, 7, 90, 91, 4, 5, 6], 1, 1)  # all wrong, and others drafted meanwhile
    assert asked == [(0, [1, 2, 3]), (4, [7]), (6, [91]), (7, [4, 5, 6])]
