"""Whose histories are kept: never across tenants, bounded, shared fairly, erased with the tenant."""

from __future__ import annotations

from collections import Counter

from forerun.core.tokens.evidence import EvidenceWeights
from forerun.core.tokens.histories import Histories, HistoryKey
from forerun.core.tokens.history import History
from forerun.core.tokens.recall import RecallDrafter
from tests.unit.tokens.test_recall import MODEL, history


def drafter(*histories: History) -> RecallDrafter:
    return RecallDrafter(EvidenceWeights(), histories, limit=10_000)


def histories() -> Histories:
    return Histories(tokens_each=10_000, most=8, most_of_tenant=8)


def test_nothing_of_one_tenant_is_proposed_to_another_one() -> None:
    kept = histories()
    kept.append("acme", "agent", MODEL, (), [1, 2, 3, 4])
    assert kept.of("umbrella", "agent", MODEL) == []
    assert kept.of("acme", "agent", "other model") == []
    made = drafter(*kept.of("acme", "agent", MODEL))
    made.extend([1, 2])
    assert list(made.propose(2).tokens) == [3, 4]


def test_an_agent_drafts_from_its_own_history_and_the_tenants() -> None:
    kept = histories()
    kept.append("acme", "first", MODEL, (), [1, 2, 3])
    assert len(kept.of("acme", "first", MODEL)) == 1, "the tenant's would be the same again"
    kept.append("acme", "second", MODEL, (), [7, 8, 9])
    own, shared = kept.of("acme", "second", MODEL)
    assert len(own) < len(shared)
    assert len(kept.of("acme", "third", MODEL)) == 1


def test_an_output_of_no_agent_is_kept_and_searched_once() -> None:
    kept = histories()
    kept.append("acme", "", MODEL, (), [1, 2, 3])
    (only,) = kept.of("acme", "", MODEL)
    assert len(only) == len(history([1, 2, 3]))
    kept.append("acme", "agent", MODEL, (), [7, 8, 9])
    assert kept.of("acme", "", MODEL) == [only]


def test_a_tenant_is_erased_whole() -> None:
    kept = histories()
    for tenant in ("acme", "umbrella"):
        for agent in ("first", "second"):
            kept.append(tenant, agent, MODEL, (), [1, 2, 3])
    gone = kept.erase("acme")
    assert {key.agent: tokens for key, tokens in gone.items()} == {"first": 4, "second": 4, "": 8}
    assert kept.of("acme", "first", MODEL) == []
    assert {key.tenant for key, _ in kept} == {"umbrella"}
    assert kept.erase("acme") == {}


def test_a_text_that_is_decoded_while_its_tenant_is_erased_drafts_from_nothing() -> None:
    kept = histories()
    kept.append("acme", "agent", MODEL, (), [1, 2, 3, 4])
    made = drafter(*kept.of("acme", "agent", MODEL))
    kept.erase("acme")
    made.extend([1, 2])
    assert list(made.propose(2).tokens) == []


def test_an_erasure_that_is_heard_of_again_leaves_what_began_after_it() -> None:
    kept = histories()
    kept.append("acme", "agent", MODEL, (), [1, 2, 3])
    assert kept.erase("acme", "first")
    kept.append("acme", "agent", MODEL, (), [4, 5, 6])
    assert kept.erase("acme", "first") == {}
    assert len(kept.of("acme", "agent", MODEL)) == 1
    assert kept.erase("acme", "second")
    assert kept.erasure("acme") == "second"


def test_what_was_saved_before_an_erasure_is_not_restored_after_it() -> None:
    key, kept = HistoryKey("acme", MODEL, "agent"), histories()
    kept.append("acme", "agent", MODEL, (), [1, 2, 3])
    old = kept.of("acme", "agent", MODEL)[0].to_bytes()
    kept.erase("acme", "first")
    kept.append("acme", "agent", MODEL, (), [4, 5, 6])
    (new,) = kept.of("acme", "agent", MODEL)
    again = histories()
    again.erase("acme", "first")
    assert again.restore(key, History.from_bytes(old, MODEL)) == [key]
    assert again.restore(key, History.from_bytes(new.to_bytes(), MODEL, "first")) == []
    assert len(again.of("acme", "agent", MODEL)) == 1


def test_the_least_recently_used_history_is_forgotten() -> None:
    kept = Histories(tokens_each=1_000, most=4, most_of_tenant=4)
    for number in range(10):
        kept.append("acme", f"agent {number}", MODEL, (), [1, 2, 3])
        assert len(kept) <= 4
        kept.of("acme", "agent 0", MODEL)
    assert "agent 0" in {key.agent for key, _ in kept}


def test_a_tenant_with_many_agents_crowds_out_itself_alone() -> None:
    kept = Histories(tokens_each=1_000, most=20, most_of_tenant=6)
    kept.append("few", "only", MODEL, (), [1, 2, 3])
    for number in range(20):
        kept.append("many", f"agent {number}", MODEL, (), [1, 2, 3])
        held = Counter(key.tenant for key, _ in kept)
        assert held["few"] == 2
        assert held["many"] <= 6, "the bound of one tenant, although there is room"
    assert {key.agent for key, _ in kept if key.tenant == "many"} == {"", *(f"agent {one}" for one in range(15, 20))}


def test_whoever_holds_most_makes_room_for_others() -> None:
    kept = Histories(tokens_each=1_000, most=8, most_of_tenant=8)
    for number in range(9):
        kept.append("first", f"agent {number}", MODEL, (), [1, 2, 3])
    assert Counter(key.tenant for key, _ in kept) == {"first": 8}
    gone = [key for number in range(2) for key in kept.append("second", f"agent {number}", MODEL, (), [1, 2, 3])]
    assert Counter(key.tenant for key, _ in kept) == {"first": 5, "second": 3}
    assert [key.agent for key in gone] == ["agent 2", "agent 3", "agent 4"], "least recently used first"
    for number in range(20):
        kept.append("second", f"agent {number}", MODEL, (), [1, 2, 3])
    assert Counter(key.tenant for key, _ in kept) == {"first": 4, "second": 4}


def test_an_agent_without_room_drafts_from_its_tenants_history() -> None:
    kept = Histories(tokens_each=1_000, most=2, most_of_tenant=2)
    kept.append("acme", "agent", MODEL, (), [1, 2, 3])
    kept.append("umbrella", "agent", MODEL, (), [4, 5, 6])
    assert [len(one) for one in kept.of("acme", "agent", MODEL)] == [4]
    assert [len(one) for one in kept.of("umbrella", "agent", MODEL)] == [4]


def test_a_restored_history_does_not_replace_a_newer_one() -> None:
    kept = histories()
    key = HistoryKey("acme", MODEL, "agent")
    kept.append("acme", "agent", MODEL, (), [1, 2, 3])
    kept.restore(key, history([9, 9, 9]))
    assert len(kept.of("acme", "agent", MODEL)[0]) == 4
    kept.restore(HistoryKey("acme", MODEL, "other"), history([9, 9, 9]))
    assert len(kept.of("acme", "other", MODEL)) == 2
    kept.restore(HistoryKey("acme", "another model", "agent"), history([9, 9, 9]))
    assert kept.of("acme", "agent", "another model") == []
