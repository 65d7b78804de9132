"""Drafts from context, histories and expected calls."""

from __future__ import annotations

import json
import struct
import tracemalloc
from array import array

import pytest

from forerun.core.errors import CoreError
from forerun.core.tokens.context import SEPARATOR, ContextIndex, Occurrence
from forerun.core.tokens.drafts import NOTHING, ROOT, Draft, chain
from forerun.core.tokens.evidence import Evidence, EvidenceWeights
from forerun.core.tokens.history import History, SortedRun, merge
from forerun.core.tokens.noise import fraction, mixed
from forerun.core.tokens.recall import RecallDrafter
from forerun.core.tokens.sources import Offer, best

MODEL = "vocabulary"


def noise(size: int, seed: int, vocabulary: int = 50) -> list[int]:
    return [int(fraction(mixed(seed), at) * vocabulary) for at in range(size)]


def drafter(*histories: History) -> RecallDrafter:
    return RecallDrafter(EvidenceWeights(), histories, limit=10_000)


def history(*outputs: list[int], limit: int = 10_000, merged: bool = False) -> History:
    made = History(MODEL, limit)
    for output in outputs:
        made.append((), output)
    if merged:
        run, fresh, bound = made.to_merge()
        made.install(merge(run, fresh, bound), len(fresh))
    return made


# ---------------------------------------------------------------- what is proposed


def test_a_text_that_repeats_itself_is_continued() -> None:
    made = drafter()
    made.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    draft = made.propose(5)
    assert list(draft.tokens) == [4, 5, 6, 7, 8]
    assert draft.is_chain
    assert list(draft.reach) == sorted(draft.reach, reverse=True)


def test_nothing_is_proposed_where_nothing_is_known() -> None:
    made = drafter(history([70, 71, 72]))
    assert made.propose(7) is NOTHING
    made.extend([1, 2, 3])
    assert made.propose(7) == NOTHING
    assert made.propose(0) == NOTHING


@pytest.mark.parametrize("merged", [False, True])
def test_earlier_outputs_are_continued(merged: bool) -> None:
    made = drafter(history([9, 9, 1, 2, 3, 4, 5], [8, 1, 7], merged=merged))
    made.extend([50, 1, 2])
    assert list(made.propose(7).tokens) == [3, 4, 5]


def test_no_draft_runs_over_the_end_of_an_output_or_matches_across_it() -> None:
    made = drafter(history([1, 2], [3, 4], merged=True))
    made.extend([1, 2])
    assert made.propose(7) == NOTHING
    made.extend([99, 2, 3])
    assert SEPARATOR not in made.propose(7).tokens
    found: list[Occurrence] = []
    history([5, 6], [6, 7], merged=True).find([5, 6], 0, found)
    assert max(match for _, match, _, _ in found) == 2, "the second 6 has no 5 before it"


def test_the_longest_equal_context_wins() -> None:
    made = drafter(history([4, 5, 6, 7, 8, 1, 2, 3, 40], [9, 2, 3, 41], [8, 2, 3, 41], merged=True))
    made.extend([4, 5, 6, 7, 8, 1, 2, 3])
    assert made.propose(1).tokens[0] == 40


def test_the_agents_own_history_counts_more_than_the_tenants() -> None:
    own, others = history([5, 6, 40], merged=True), history([5, 6, 41], merged=True)
    taught = EvidenceWeights()
    made = RecallDrafter(taught, [own, others], limit=100)
    for _ in range(3_000):
        places: list[Occurrence] = []
        own.find([5, 6], Evidence.OWN_HISTORY, places)
        others.find([5, 6], Evidence.TENANT_HISTORY, places)
        taught.learn(places, [41], [40])
    made.extend([5, 6])
    assert made.propose(1).tokens[0] == 40


def test_an_expected_call_is_one_more_source() -> None:
    made = drafter()
    made.extend([1, 2])
    made.expect([[1, 2, 30, 31, 32]])
    assert list(made.propose(7).tokens) == [30, 31, 32]
    made.expect([])
    assert made.propose(7) == NOTHING


# ---------------------------------------------------------------- trees


def test_a_tree_holds_the_likeliest_paths_of_all_branches() -> None:
    made = drafter(history([1, 2, 10, 11], [1, 2, 20, 21], [1, 2, 20, 22], merged=True))
    made.extend([1, 2])
    tree = made.propose(5, branches=2)
    paths = {tuple(_path(tree, node)) for node in range(len(tree))}
    assert {(20,), (10,), (20, 21), (20, 22), (10, 11)} == paths
    assert not tree.is_chain
    assert list(tree.reach) == sorted(tree.reach, reverse=True)


def _path(draft: Draft, node: int) -> list[int]:
    return [*(_path(draft, draft.parents[node]) if draft.parents[node] >= 0 else []), draft.tokens[node]]


def test_trees_and_chains_keep_their_bounds() -> None:
    past = history(*(noise(80, seed, 6) for seed in range(20)), merged=True)
    made = drafter(past)
    made.extend(noise(200, 99, 6))
    for nodes in (1, 3, 7, 15):
        for branches in (1, 2, 4):
            draft = made.propose(nodes, branches)
            assert 0 < len(draft) <= nodes
            below = draft.children()
            assert max(len(one) for one in below) <= branches
            assert all(len({draft.tokens[child] for child in one}) == len(one) for one in below)
    assert made.propose(15, 4).expected > made.propose(15, 1).expected


def test_a_chain_is_the_first_path_of_the_tree() -> None:
    past = history(*(noise(80, seed, 6) for seed in range(20)), merged=True)
    made = drafter(past)
    for seed in range(30):
        made.extend(noise(20, 200 + seed, 6))
        single, grown = made.propose(9, 1), made._grow(made._places(), 9, 1)
        assert list(single.tokens) == list(grown.tokens)
        assert list(single.reach) == pytest.approx(list(grown.reach))


def test_a_draft_that_cannot_be_walked_is_refused() -> None:
    for parents in ([0], [-2], [-1, 1], [-1]):
        with pytest.raises(CoreError, match="draft"):
            Draft([1] * (2 if len(parents) == 2 else 1), [*parents, -1][: len(parents) + (parents == [-1])], [0.0], "x")
    with pytest.raises(CoreError):
        chain([1, 2], "x", reach=[0.5])


# ---------------------------------------------------------------- learning


def test_weights_learn_which_evidence_is_right() -> None:
    """The session lies, the history is right: after some passes the history wins; promises become what is kept."""
    weights = EvidenceWeights()
    past = history([1, 2, 40, 41, 42], merged=True)
    promised = kept = 0.0
    for turn in range(8_000):
        made = RecallDrafter(weights, [past], limit=100)
        made.extend([1, 2, 50, 9, 9, 1, 2])
        draft = made.propose(1)
        right = 40 if turn % 10 else 60
        if turn >= 7_000:
            promised, kept = promised + draft.expected, kept + (draft.tokens[0] == right)
        made.extend([right])
    assert kept == 900
    assert promised == pytest.approx(kept, rel=0.1)


def test_weights_survive_json_and_damaged_ones_are_refused() -> None:
    weights = EvidenceWeights()
    again = EvidenceWeights.from_json(json.loads(json.dumps(weights.as_json())))
    assert again.begin[0][4] == pytest.approx(weights.begin[0][4], rel=1e-3)
    for stored in ({}, {"version": 2, "logs": []}, {"version": 1, "logs": [[0.0]]}, {"version": 1, "logs": None}):
        with pytest.raises(CoreError):
            EvidenceWeights.from_json(stored)


# ---------------------------------------------------------------- the index of the context


def test_every_pair_is_found_where_it_stood() -> None:
    tokens = noise(400, 3, 12)
    index = ContextIndex(1_000)
    for at, token in enumerate(tokens):
        found: list[Occurrence] = []
        index.find(index.tokens, 0, found)
        for _, match, place, _ in found:
            assert tokens[place - match : place] == tokens[at - match : at]
            assert place < at
        pairs = {one for one in range(2, at) if tokens[one - 2 : one] == tokens[at - 2 : at]} if at >= 2 else set()
        assert {place for _, match, place, _ in found if match >= 2} == set(sorted(pairs)[-32:])
        index.extend([token])


def test_a_context_beyond_its_bound_drops_the_older_half() -> None:
    index = ContextIndex(100)
    for token in range(1_000):
        index.extend([token])
        assert len(index) <= 100
    assert list(index.tokens)[-50:] == list(range(950, 1_000))
    assert index.dropped + len(index) == 1_000
    made = RecallDrafter(EvidenceWeights(), limit=50)
    made.extend([1, 2, 3, 4, 5])
    for _ in range(40):
        made.extend([1, 2, 3, 4, 5])
        assert list(made.propose(2).tokens) == [1, 2]


# ---------------------------------------------------------------- sorted histories


def test_a_sorted_run_finds_the_longest_equal_context_there_is() -> None:
    tokens = array("i", noise(600, 5, 6))
    run = SortedRun(tokens)
    for seed in range(200):
        tail = noise(20, 1_000 + seed, 6)
        found: list[Occurrence] = []
        run.find(tail, 0, found)
        longest = max(_equal(tokens, place, tail) for place in range(1, 600))
        assert max(match for _, match, _, _ in found) == longest
        for _, match, place, _ in found:
            assert match <= _equal(tokens, place, tail)


def _equal(tokens: array[int], place: int, tail: list[int]) -> int:
    count = 0
    while count < min(16, place, len(tail)) and tokens[place - 1 - count] == tail[len(tail) - 1 - count]:
        count += 1
    return count


def test_merging_gives_the_run_of_all_tokens_at_once() -> None:
    parts = [array("i", [SEPARATOR, *noise(150, seed, 8)]) for seed in range(6)]
    run, together = None, array("i")
    for part in parts:
        together.extend(part)
        run = merge(run, part, 10_000)
    assert run is not None
    assert list(run.tokens) == list(together)
    assert list(run.order) == list(SortedRun(together).order)


def test_a_history_beyond_its_bound_forgets_the_oldest_outputs_whole() -> None:
    made = History(MODEL, 500)
    for number in range(40):
        made.append((1, 2), [100 + number] * 30)
        if made.merge_is_due or number % 7 == 0:
            run, fresh, bound = made.to_merge()
            made.install(merge(run, fresh, bound), len(fresh))
        assert len(made) <= 1_000
    run, fresh, bound = made.to_merge()
    kept = merge(run, fresh, bound)
    assert len(kept) <= 500
    assert kept.tokens[0] == SEPARATOR
    assert kept.tokens[-1] == 139


def test_a_history_that_nobody_merges_is_bounded_too() -> None:
    made = History(MODEL, 300)
    for number in range(100):
        made.append((), noise(50, number))
    assert len(made) <= 600
    made.append((), noise(5_000, 1))
    assert len(made) <= 600


def test_what_comes_during_a_merge_is_not_lost() -> None:
    made = history([1, 2, 3, 4])
    run, fresh, bound = made.to_merge()
    made.append((), [7, 8, 9])
    made.install(merge(run, fresh, bound), len(fresh))
    drafts = drafter(made)
    drafts.extend([7, 8])
    assert drafts.propose(1).tokens[0] == 9
    drafts.extend([2, 3])
    assert drafts.propose(1).tokens[0] == 4


def test_a_history_survives_its_bytes() -> None:
    made = history(noise(300, 1), noise(300, 2), merged=True)
    made.append((3, 4), noise(100, 3))
    again = History.from_bytes(made.to_bytes(), MODEL)
    for seed in range(40):
        tail, one, two = noise(10, 500 + seed), list[Occurrence](), list[Occurrence]()
        made.find(tail, 1, one)
        again.find(tail, 1, two)
        assert max((match for _, match, _, _ in one), default=0) == max((match for _, match, _, _ in two), default=0)
    assert len(again) == len(made)
    assert History.from_bytes(History(MODEL, 10).to_bytes(), MODEL).limit == 10


def test_damaged_and_foreign_histories_are_refused() -> None:
    data = history(noise(100, 1)).to_bytes()
    body = struct.calcsize("<8sHI")
    damaged = {
        "empty": b"",
        "magic": b"x" + data[1:],
        "version": data[:8] + b"\x63\x00" + data[10:],
        "cut off": data[:-8],
        "half a token": data[:-3],
        "header": data[:body] + b"{" * 20 + data[body + 20 :],
        "token": data[:-4] + b"\xff\xff\xff\xff",
    }
    for what, one in damaged.items():
        with pytest.raises(CoreError) as refused:
            History.from_bytes(one, MODEL)
        assert refused.value.reason == "invalid_history", what
    with pytest.raises(CoreError) as refused:
        History.from_bytes(data, "another vocabulary")
    assert refused.value.reason == "other_model"


def test_a_token_of_history_costs_at_most_a_hundred_bytes() -> None:
    made, outputs = History(MODEL, 1_000_000), [noise(3_000, number, 5_000) for number in range(12)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for output in outputs:
        made.append((1, 2, 3, 4), output)
        if made.merge_is_due:
            run, fresh, bound = made.to_merge()
            made.install(merge(run, fresh, bound), len(fresh))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used / len(made) <= 100.0


# ---------------------------------------------------------------- competition of sources


def test_sources_compete_by_expected_tokens_a_second() -> None:
    free = Offer("recall", 0.8, 1.0)
    assert best([free, Offer("model", 2.0, 2.0)], 1.0) is free
    assert best([free, Offer("model", 2.8, 2.0)], 1.0) == Offer("model", 2.8, 2.0)
    assert best([Offer("recall", 0.1, 1.2)], 1.0) is None
    assert best([], 1.0) is None


def test_a_path_of_a_tree_holds_what_stands_before_its_node() -> None:
    tree = Draft([5, 6, 7, 8], [ROOT, 0, 0, 2], [0.0] * 4, "test")
    assert [tree.path(node) for node in (ROOT, 0, 1, 2, 3)] == [[], [5], [5, 6], [5, 7], [5, 7, 8]]
