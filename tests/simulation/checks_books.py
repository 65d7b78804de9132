"""Invariants 2, 3 and 7: the books balance, nothing runs twice, budgets hold and come back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from forerun.v1 import common_pb2, ledger_pb2
from tests.simulation.evidence import HITS, Evidence, line_key, outcome_of
from tests.simulation.files import FILE_TOOLS
from tests.simulation.nemesis import CALM, REPLICAS
from tests.simulation.policy import PRICES
from tests.simulation.world import NOT_REPEATABLE, SPECULABLE, Execution

_BREATH_SECONDS: Final = 0.01
_ROUNDING: Final = 1e-6
_OPEN_MOST: Final = 16
_CREDITS_MOST: Final = 20.0


def ledger(evidence: Evidence) -> Iterator[str]:
    excused = set(evidence.lost_with_owner)
    for one in evidence.without_line:
        if one.key not in excused:
            yield f"2: execution {one.key} of {one.tool} at {one.started_at:.3f} has no line in the ledger"
    executions = Counter(one.key for one in evidence.world.log if one.speculative)
    for speculation, lines in evidence.ahead.items():
        if len(lines) != 1:
            yield f"2: speculation {speculation} has {len(lines)} lines: {[outcome_of(line) for line in lines]}"
        outcome = outcome_of(lines[0])
        if outcome == "unspecified":
            yield f"2: speculation {speculation} has no outcome"
        if executions[speculation] > 1:
            yield f"2: speculation {speculation} was executed {executions[speculation]} times"
        # What is issued early waits for its turn like every real call, and may be given up before.
        ran = {"ready", "joined"} | ({"miss", "expired"} if speculation in evidence.speculations else set())
        if executions[speculation] == 0 and outcome in ran and lines[0].tool not in FILE_TOOLS:
            yield f"2: speculation {speculation} ended {outcome} and was never executed"
    yield from _balance(evidence)
    ids = Counter(line.id for line in evidence.lines)
    for line_id, count in ids.items():
        if count > 1:
            yield f"2: line {line_id} is in the ledger {count} times"


def _balance(evidence: Evidence) -> Iterator[str]:
    """What the replicas counted, what the ledger says and what the server saw are the same."""
    for totals in evidence.totals:
        if totals.launched != sum(totals.outcomes.values()):
            yield f"2: {totals.launched} launched, outcomes {dict(totals.outcomes)}"
    if any(outage.what in REPLICAS for outage in evidence.nemesis.outages):
        return
    launched = sum(totals.launched for totals in evidence.totals)
    lines = sum(len(found) for found in evidence.speculations.values())
    calls = sum(line.kind == ledger_pb2.LEDGER_KIND_CALL for line in evidence.lines)
    counted = sum(totals.calls for totals in evidence.totals)
    if launched != lines or calls != counted:
        yield f"2: the replicas count {launched} launched and {counted} calls, the ledger {lines} and {calls}"
    for name in ("saved_estimated_seconds", "wasted_seconds"):
        booked = sum(getattr(line, name) for line in evidence.lines)
        told = sum(getattr(totals, name) for totals in evidence.totals)
        if abs(booked - told) > _ROUNDING:
            yield f"2: the replicas count {told:.3f} {name}, the ledger {booked:.3f}"
    served: Counter[str] = sum((Counter(totals.served) for totals in evidence.totals), Counter())
    if served != evidence.served:
        yield f"2: the replicas count calls served {dict(served)}, the ledger {dict(evidence.served)}"
    outcomes = sum((Counter(totals.outcomes) for totals in evidence.totals), Counter[str]())
    if outcomes != evidence.outcomes():
        yield f"2: the replicas count outcomes {dict(outcomes)}, the ledger {dict(evidence.outcomes())}"
    if any(epoch > 1 for epoch in evidence.tap.epochs.values()):
        return  # what an owner runs when it loses a session is on nobody's account until the agent asks again
    executions = sum(totals.executions for totals in evidence.totals)
    seen = sum(not one.audit for one in evidence.world.log)
    if executions < seen:
        yield f"2: the replicas count {executions} executions, the server saw {seen}"
    yield from _money(evidence)


def _money(evidence: Evidence) -> Iterator[str]:
    """A call costs what all of its executions cost, second attempts and retries included."""
    billed: dict[str, float] = defaultdict(float)
    for line in evidence.lines:
        if line.kind == ledger_pb2.LEDGER_KIND_CALL:
            billed[line_key(line)] += line.cost_money
    seen = Counter(one.key for one in evidence.world.log if one.tool in PRICES and "/" in one.key)
    tools = {one.key: one.tool for one in evidence.world.log}
    for key, count in seen.items():
        least = PRICES[tools[key]] * count
        if billed[key] < least - _ROUNDING:
            yield f"2: {tools[key]} {key} is billed with {billed[key]:.4f}, {count} executions cost {least:.4f}"


def repeats(evidence: Evidence) -> Iterator[str]:
    counts = Counter((one.tool, one.key) for one in evidence.world.log if one.tool in NOT_REPEATABLE)
    for (tool, key), count in counts.items():
        if count > 1:
            yield f"3: {tool} {key} may not be repeated and ran {count} times"
    for one in evidence.world.log:
        if not one.announced:
            yield f"3: {one.tool} {one.key} began before its intent was in the journal"
        if (one.speculative or one.audit) and one.tool not in SPECULABLE:
            yield f"3: {one.tool} {one.key} ran ahead or as an audit"
    if not evidence.forgetful:
        yield from (f"3: {text}" for text in evidence.diary.conflicts)
    for line in evidence.lines:
        unknown = line.kind == ledger_pb2.LEDGER_KIND_CALL and line.status == common_pb2.CALL_STATUS_OUTCOME_UNKNOWN
        # Of a staged call: what ran ahead of it may have been merged, or not.
        if unknown and line.tool not in NOT_REPEATABLE | {"add"}:
            yield f"3: {line.tool} {line_key(line)} may be repeated and ended outcome_unknown"


def budgets(evidence: Evidence) -> Iterator[str]:
    policies = evidence.nemesis.policies
    per_session = max(policy.concurrent_per_session for policy in policies)
    replica = len(REPLICAS) * max(policy.concurrent for policy in policies)
    ahead = evidence.guessed
    if _most_at_once(ahead) > replica:
        yield f"7: {_most_at_once(ahead)} speculations ran at once, the limit is {replica}"
    by_session: dict[str, list[Execution]] = defaultdict(list)
    by_owner: dict[str, list[Execution]] = defaultdict(list)
    for one in ahead:
        by_session[one.session].append(one)
        by_owner[one.key.rpartition(".")[0]].append(one)
    for owner, executions in by_owner.items():
        most = _most_at_once(executions)
        if most > per_session:
            yield f"7: {most} speculations of {owner} ran at once, the limit is {per_session}"
    for session, executions in by_session.items():
        lines = [line for one in executions for line in evidence.speculations.get(one.key, [])]
        wasted = sum(outcome_of(line) not in HITS for line in lines)
        asks = sum(count for key, count in evidence.tap.asks.items() if key[0] == session)
        owners = max(1, evidence.tap.epochs[session])
        bound = owners * max(policy.initial_credits for policy in policies)
        bound += asks * max(policy.credits_per_call for policy in policies)
        if wasted > bound:
            yield f"7: {wasted} speculations of {session} were wasted, its credits allow {bound:.1f}"


def purses(evidence: Evidence) -> Iterator[str]:
    """What was reserved comes back: nothing is refused for want of a place or a credit that is there.

    Judged where all decisions are in one owner's hands and under one policy.
    """
    if evidence.kinds - set(CALM) or len(evidence.nemesis.policies) > 1:
        return
    (policy,) = evidence.nemesis.policies
    started = {one.key: one for one in evidence.world.log if one.speculative}
    begun_at = evidence.wiretap.begun_at
    at = evidence.epoch_seconds
    for session in evidence.diary.sessions:
        if evidence.tap.epochs[session] != 1:
            continue
        lines = [line for line in evidence.lines if line.session == session]
        closed = [line for line in lines if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION]
        returned = [line.at_seconds for line in lines if line.reason in ("no_slot", "off", "being_written")]
        for line in lines:
            if line.kind != ledger_pb2.LEDGER_KIND_DECISION or line.reason not in ("bound", "no_credit"):
                continue
            now = line.at_seconds - at
            # What was taken in the same breath and came back because the tool was not reached counts too.
            back = sum(abs(one - line.at_seconds) <= _BREATH_SECONDS for one in returned)
            begun = [one for one in closed if begun_at.get(one.speculation, 0.0) <= now + _BREATH_SECONDS]
            if line.reason == "bound":
                taken = sum(_ended(started.get(one.speculation), one.at_seconds - at) >= now for one in begun)
                taken += back
                limit = policy.concurrent_per_session
                if taken < limit and len(begun) < _OPEN_MOST:
                    yield f"7: {session} was refused a place at {now:.3f} with {taken} of {limit} taken"
                continue
            asked = sum(
                1
                for key in evidence.tap.asks
                if key[0] == session
                and evidence.tap.asked_at[key] < now - _BREATH_SECONDS
                and key not in evidence.tap.planned  # they earn when the plan asks for them, whenever that is
            )
            # What was refused for its arguments or its tool has earned nothing.
            asked -= sum(_rejected(one) and one.at_seconds - at <= now for one in lines)
            wasted = sum(outcome_of(one) not in HITS or one.at_seconds - at >= now - _BREATH_SECONDS for one in begun)
            credit = min(
                _CREDITS_MOST - len(begun), policy.initial_credits + policy.credits_per_call * asked - wasted - back
            )
            if credit >= 1.0 + policy.credits_per_call * 2:
                yield f"7: {session} was refused a credit at {now:.3f} and had {credit:.1f}"


def _rejected(line: ledger_pb2.LedgerLine) -> bool:
    return line.kind == ledger_pb2.LEDGER_KIND_CALL and line.status == common_pb2.CALL_STATUS_REJECTED


def _ended(execution: Execution | None, closed_at: float) -> float:
    if execution is None or execution.ended_at is None:
        return closed_at
    return min(closed_at, execution.ended_at)


def _most_at_once(executions: Sequence[Execution]) -> int:
    """Executions at the same time; one that begins when another ends is not at the same time."""
    changes = sorted(
        change
        for one in executions
        for change in ((one.started_at, 1), (one.ended_at if one.ended_at is not None else float("inf"), -1))
        if one.started_at != one.ended_at
    )
    running = most = 0
    for _, step in changes:
        running += step
        most = max(most, running)
    return most
