"""The bench of drafts measures what it says: nothing of the future, nothing of the same task, the right walk."""

from __future__ import annotations

import time
from array import array

from forerun.core.tokens.context import SEPARATOR
from forerun.core.tokens.drafts import Draft, chain
from forerun.core.tokens.history import SortedRun
from tests.bench.drafts import random_target, score_set
from tests.bench.drafts_baselines import PatternIndex, PromptLookup, SuffixDecoding
from tests.bench.drafts_data import FOLDS, Message, Run, Tokens
from tests.bench.drafts_passes import Past, accepted

TOKENS = Tokens(None, (1, 2), 3)


def soon() -> float:
    return time.monotonic() + 100.0


def test_a_target_that_nobody_can_know_gives_one_token_per_pass() -> None:
    rows = [row for row in random_target(Tokens(None, (1, 2), 150_000), wanted=2_000) if "drafter" in row.more]
    assert len(rows) == 12
    assert all(row.value == 1.0 and row.n > 1_000 for row in rows)


def test_a_target_that_repeats_itself_is_drafted() -> None:
    phrase = list(range(10, 60))
    runs = [Run(f"task {number}", "agent", [[5, 6], Message(phrase, phrase)]) for number in range(12)]
    for row in score_set("repeating", runs, TOKENS, 100_000, soon()):
        if row.more.get("drafted") == 7 and "Forerun" in row.more["drafter"]:
            assert row.value is not None
            assert row.value > 5.0


def test_other_runs_of_one_task_are_never_in_its_history() -> None:
    """Each task has a text of its own: knowing it would need another run of the same task."""
    runs = [
        Run(
            f"task {number % 8}", f"agent {number % 2}", [Message([100 + number % 8 * 40 + at for at in range(30)], [])]
        )
        for number in range(48)
    ]
    rows = [row for row in score_set("tasks", runs, TOKENS, 100_000, soon()) if "drafter" in row.more]
    assert all(row.value == 1.0 for row in rows)
    assert {run.fold for run in runs} <= set(range(FOLDS))


def test_a_past_knows_whose_outputs_it_holds() -> None:
    runs = [Run("a", "first", [Message([11, 12], [])]), Run("b", "second", [Message([21, 22], [])])]
    past = Past(runs, TOKENS)
    own, shared = past.of("first")
    assert 11 in own.to_merge()[0].tokens  # type: ignore[union-attr]
    assert 21 not in own.to_merge()[0].tokens  # type: ignore[union-attr]
    assert len(shared) == past.size
    assert len(past.of("third")) == 2


def test_the_walk_takes_the_branch_of_the_target() -> None:
    tree = Draft([5, 6, 7, 8], [-1, -1, 1, 0], [0.0] * 4, "x")
    assert accepted(tree, [6, 7, 9]) == 2
    assert accepted(tree, [5, 7]) == 1
    assert accepted(tree, [9]) == 0
    assert accepted(tree, []) == 0
    assert accepted(chain([1, 2, 3], "x"), [1, 2]) == 2


def test_the_baselines_do_what_they_are_named_after() -> None:
    lookup = PromptLookup()
    lookup.extend([1, 2, 3, 4, 9, 1, 2])
    assert list(lookup.propose(2).tokens) == [3, 4]
    outputs = [SEPARATOR, 7, 1, 2, 50, 51, SEPARATOR, 8, 1, 2, 50, 52, SEPARATOR, 9, 1, 2, 60, 61]
    suffix = SuffixDecoding(PatternIndex(SortedRun(array("i", outputs))), 4.0)
    suffix.extend([30, 1, 2])
    assert suffix.propose(1).tokens[0] == 50, "two of three went on with it"
    tree = suffix.propose(6, branches=4)
    assert {tree.tokens[node] for node in range(len(tree)) if tree.parents[node] == -1} == {50, 60}
    assert abs(tree.reach[0] - 2 / 3) < 1e-9
    short = SuffixDecoding(PatternIndex(SortedRun(array("i", outputs))), 1.0)
    short.extend([2])
    assert len(short.propose(7)) <= 1, "one token of pattern allows one drafted token"
