"""Effect contracts: which calls may run ahead, what arguments decide, what a server's hints can change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.contracts import (
    EVERYTHING,
    Contract,
    Effect,
    Reason,
    ResourceTemplate,
    Scope,
    effective,
    is_barrier,
    lowered_by_hints,
    may_speculate,
    problems,
    read_templates,
    repeatable,
    shareable,
    staleness_seconds,
    unknown,
    write_templates,
)
from forerun.core.shell import DEFAULT_RULES

WORKSPACE = (ResourceTemplate("ws"),)
PURE = Contract("calculate", "math", Effect.PURE, speculate=True)
READ = Contract("get_user", "crm", Effect.READ, reads=(ResourceTemplate("users/{id}"),), speculate=True)
WRITE = Contract("set_user", "crm", Effect.WRITE, writes=(ResourceTemplate("users/{id}"),))
EDITOR = Contract(
    "editor",
    "box",
    Effect.WRITE,
    staged=True,
    speculate=True,
    writes=WORKSPACE,
    read_when={"command": ("view",)},
)
BASH = Contract("bash", "box", Effect.WRITE, staged=True, speculate=True, writes=WORKSPACE, shell_argument="command")


@pytest.mark.parametrize(
    ("contract", "allowed", "reason"),
    [
        (PURE, True, Reason.PURE),
        (READ, True, Reason.READ),
        (replace(READ, open_world=True), True, Reason.READ),
        (replace(READ, metered=True), True, Reason.METERED),
        (replace(READ, speculate=False), False, Reason.NOT_ALLOWED),
        (replace(PURE, speculate=False), False, Reason.NOT_ALLOWED),
        (replace(READ, consuming=True), False, Reason.CONSUMING),
        (replace(READ, max_staleness_seconds=0.0), False, Reason.TIME_DEPENDENT),
        (WRITE, False, Reason.PLAIN_WRITE),
        (replace(WRITE, speculate=True), False, Reason.PLAIN_WRITE),
        (replace(WRITE, idempotent=True, speculate=True), False, Reason.PLAIN_WRITE),
        (EDITOR, True, Reason.STAGED),
        (replace(EDITOR, speculate=False), False, Reason.NOT_ALLOWED),
        (replace(WRITE, transactional=True, speculate=True), True, Reason.TRANSACTIONAL),
        (replace(WRITE, transactional=True), False, Reason.NOT_ALLOWED),
        (replace(WRITE, compensated_by="undo", speculate=True), True, Reason.COMPENSATED),
        (unknown("made_up", "crm"), False, Reason.UNKNOWN_TOOL),
        (replace(unknown("made_up", "crm"), effect=Effect.READ, speculate=True), False, Reason.UNKNOWN_TOOL),
    ],
)
def test_what_may_run_ahead(contract: Contract, allowed: bool, reason: Reason) -> None:
    decision = may_speculate(contract)
    assert (decision.allowed, decision.reason) == (allowed, reason)


def test_an_unknown_tool_is_a_write_to_everything() -> None:
    contract = unknown("made_up", "crm")
    assert contract.effect is Effect.WRITE
    assert write_templates(contract) == EVERYTHING
    assert is_barrier(contract)
    assert not repeatable(contract)
    assert problems(contract) == []


@pytest.mark.parametrize(
    ("contract", "again", "together"),
    [
        (PURE, True, True),
        (READ, True, True),
        (replace(READ, consuming=True), False, False),
        (WRITE, False, False),
        (replace(WRITE, idempotent=True), True, True),
        (EDITOR, True, False),  # a fork can be thrown away and run again, but two edits are two edits
        (replace(WRITE, transactional=True), False, False),
    ],
)
def test_what_may_be_repeated_and_shared(contract: Contract, again: bool, together: bool) -> None:
    assert repeatable(contract) is again
    assert shareable(contract) is together


def test_what_is_not_declared_is_everything() -> None:
    assert read_templates(replace(READ, reads=())) == EVERYTHING
    assert read_templates(PURE) == ()
    assert write_templates(replace(WRITE, writes=())) == EVERYTHING
    assert is_barrier(replace(WRITE, writes=()))
    assert write_templates(READ) == ()
    assert write_templates(replace(READ, consuming=True)) == READ.reads
    assert not is_barrier(WRITE)


@pytest.mark.parametrize(
    ("declared", "open_world", "limit"),
    [(None, False, None), (None, True, 10.0), (30.0, True, 30.0), (0.0, False, 0.0)],
)
def test_age_limits(declared: float | None, open_world: bool, limit: float | None) -> None:
    assert staleness_seconds(replace(READ, max_staleness_seconds=declared, open_world=open_world)) == limit


@pytest.mark.parametrize(
    ("arguments", "effect"),
    [
        ({"command": "view", "path": "a"}, Effect.READ),
        ({"command": "create", "path": "a"}, Effect.WRITE),
        ({"command": "VIEW"}, Effect.WRITE),
        ({"command": ["view"]}, Effect.WRITE),
        ({"path": "view"}, Effect.WRITE),
        (["view"], Effect.WRITE),
        (None, Effect.WRITE),
    ],
)
def test_an_argument_decides_about_reading(arguments: JsonValue, effect: Effect) -> None:
    assert effective(EDITOR, arguments, None).effect is effect


def test_every_condition_must_hold() -> None:
    contract = replace(EDITOR, read_when={"command": ("view", "cat"), "dry": ("yes",)})
    assert effective(contract, {"command": "cat", "dry": "yes"}, None).effect is Effect.READ
    assert effective(contract, {"command": "cat"}, None).effect is Effect.WRITE


def test_a_read_of_the_shell_reads_what_the_tool_writes() -> None:
    call = effective(BASH, {"command": "cd src && grep -rn foo . | head -5"}, DEFAULT_RULES)
    assert call.effect is Effect.READ
    assert call.reads == WORKSPACE
    assert not (call.writes or call.staged)
    assert problems(replace(call, shell_argument=None)) == []
    assert may_speculate(call).reason is Reason.READ


def test_a_read_of_the_clock_is_never_served_later() -> None:
    call = effective(BASH, {"command": "date"}, DEFAULT_RULES)
    assert staleness_seconds(call) == 0.0
    assert may_speculate(call).reason is Reason.TIME_DEPENDENT


def test_a_command_that_reaches_out_is_a_plain_write_to_everything() -> None:
    contract = replace(BASH, idempotent=True, writes=(ResourceTemplate("ws", Scope.SHARED),))
    call = effective(contract, {"command": "ls && git push"}, DEFAULT_RULES)
    assert call.writes == (ResourceTemplate("*", Scope.SHARED),)
    assert call.open_world
    assert not repeatable(call)
    assert may_speculate(call).reason is Reason.PLAIN_WRITE


@pytest.mark.parametrize("arguments", [{"command": "make"}, {"command": ["ls"]}, {"cmd": "ls"}, {}])
def test_everything_else_stays_as_declared(arguments: JsonValue) -> None:
    assert effective(BASH, arguments, DEFAULT_RULES) == BASH
    assert effective(BASH, {"command": "ls"}, None) == BASH


def test_arguments_cannot_turn_a_read_into_anything() -> None:
    contract = replace(READ, read_when={"a": ("b",)})
    assert effective(contract, {"a": "b"}, DEFAULT_RULES) is contract


def test_hints_only_lower_trust() -> None:
    assert lowered_by_hints(READ) == READ
    raising = {"read_only_hint": True, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False}
    for contract in (READ, WRITE, EDITOR, replace(READ, open_world=True), unknown("x", "y")):
        assert lowered_by_hints(contract, **raising) == contract


def test_a_server_that_says_it_writes_is_believed() -> None:
    for hints in ({"read_only_hint": False}, {"destructive_hint": True}):
        lowered = lowered_by_hints(READ, **hints)
        assert lowered.effect is Effect.WRITE
        assert write_templates(lowered) == EVERYTHING
        assert not may_speculate(lowered).allowed
        assert problems(lowered) == []
    assert lowered_by_hints(READ, read_only_hint=True, destructive_hint=True) == READ
    assert not lowered_by_hints(replace(WRITE, idempotent=True), idempotent_hint=False).idempotent
    assert staleness_seconds(lowered_by_hints(READ, open_world_hint=True)) == limits.OPEN_WORLD_STALENESS_SECONDS


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        (replace(PURE, reads=WORKSPACE), "effect"),
        (replace(PURE, writes=WORKSPACE), "effect"),
        (replace(PURE, open_world=True), "open_world"),
        (replace(READ, writes=WORKSPACE), "writes"),
        (replace(WRITE, consuming=True), "consuming"),
        (replace(READ, staged=True), "staged"),
        (replace(READ, transactional=True), "transactional"),
        (replace(READ, compensated_by="undo"), "compensated_by"),
        (replace(READ, idempotent=True), "idempotent"),
        (replace(READ, read_when={"a": ("b",)}), "read_when"),
        (replace(EDITOR, open_world=True), "staged"),
        (replace(READ, consuming=True), "speculate"),
        (replace(WRITE, speculate=True), "speculate"),
        (replace(unknown("x", "y"), speculate=True), "speculate"),
        (replace(WRITE, compensated_by="set_user"), "compensated_by"),
        (replace(READ, max_staleness_seconds=-1.0), "max_staleness_seconds"),
        (replace(READ, max_staleness_seconds=float("nan")), "max_staleness_seconds"),
        (replace(READ, timeout_seconds=0.0), "timeout_seconds"),
        (replace(READ, timeout_seconds=1e9), "timeout_seconds"),
        (replace(READ, concurrency=0), "concurrency"),
        (replace(READ, output_cap_bytes=0), "output_cap_bytes"),
        (replace(READ, cost_money=float("inf")), "cost_money"),
        (replace(READ, tool=""), "tool"),
        (replace(READ, server="s" * 300), "server"),
        (replace(READ, reads=WORKSPACE * 33), "reads"),
        (replace(READ, nfc_fields=frozenset("a"), insensitive_fields=frozenset("a")), "nfc_fields"),
    ],
)
def test_contradictions_are_named(contract: Contract, field: str) -> None:
    assert field in {problem.partition(":")[0] for problem in problems(contract)}


@pytest.mark.parametrize(
    "contract",
    [PURE, READ, WRITE, EDITOR, BASH, replace(READ, consuming=True, writes=WORKSPACE, speculate=False)],
)
def test_sound_contracts_have_no_problems(contract: Contract) -> None:
    assert problems(contract) == []
    assert hash(contract) == hash(replace(contract))
