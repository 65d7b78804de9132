"""What has to hold after every run, whatever went wrong in it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from forerun.runtime.bus_memory import MemoryBroker
from forerun.runtime.topology import EVENTS, LEDGER
from forerun.v1 import common_pb2, event_pb2, ledger_pb2, session_pb2
from tests.simulation.agents import Asked, Diary
from tests.simulation.nemesis import REPLICAS, Nemesis
from tests.simulation.policy import TOOL_SECONDS
from tests.simulation.tap import Tap
from tests.simulation.world import NOT_REPEATABLE, SPECULABLE, Execution, World

_SETTLE_SECONDS: Final = 16.0
_RESTART_SECONDS: Final = 16.0
_STALENESS_SECONDS: Final = 10.0
_SWITCH_SECONDS: Final = 1.0
_OFFLINE: Final = frozenset({"DEADLINE_EXCEEDED"})
_HITS: Final = frozenset({"ready", "joined"})
_BREATH_SECONDS: Final = 0.01
_OPEN_MOST: Final = 16
_CREDITS_MOST: Final = 20.0
_SHOWN: Final = 12


@dataclass
class Evidence:
    """Everything that a run left behind."""

    world: World
    tap: Tap
    diary: Diary
    nemesis: Nemesis
    broker: MemoryBroker
    leaked: Sequence[str]
    kinds: frozenset[str]
    lines_lost: bool
    totals: Sequence[session_pb2.Totals]

    @cached_property
    def forgetful(self) -> bool:
        """An owner went without having written everything: killed, or stopped while the broker took nothing.

        What may be repeated is not written before it is answered, so a key may then be new to the next owner.
        """
        broker = "appends" in self.kinds or "broker" in self.kinds
        stopped = any(outage.what in REPLICAS for outage in self.nemesis.outages)
        return bool(self.nemesis.killed) or (stopped and broker)

    @cached_property
    def lines(self) -> list[ledger_pb2.LedgerLine]:
        """The ledger."""
        return [ledger_pb2.LedgerLine.FromString(data) for data in _stored(self.broker, LEDGER)]

    @cached_property
    def speculations(self) -> dict[str, list[ledger_pb2.LedgerLine]]:
        """Ledger lines of speculations, by execution."""
        found: dict[str, list[ledger_pb2.LedgerLine]] = defaultdict(list)
        for line in self.lines:
            if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION:
                found[line.speculation].append(line)
        return found

    @cached_property
    def effects(self) -> dict[str, list[tuple[int, Execution]]]:
        """Resource -> (epoch, execution that made it), in order."""
        found: dict[str, list[tuple[int, Execution]]] = defaultdict(list)
        for one in self.world.log:
            for resource, epoch in one.effects.items():
                found[resource].append((epoch, one))
        return found

    @cached_property
    def answered_at(self) -> dict[str, float]:
        """Call key -> when its agent had the platform's answer, whatever it said."""
        return {
            f"{one.session}/{one.turn}/{one.index}": one.answered_at
            for one in self.diary.asked
            if (one.session, one.turn, one.index) in self.tap.answers
        }

    @cached_property
    def _given(self) -> dict[tuple[str, str, str], list[Execution]]:
        found: dict[tuple[str, str, str], list[Execution]] = defaultdict(list)
        for one in self.world.log:
            if one.end == "ok" and not one.audit:
                found[one.session, one.tool, one.digest].append(one)
        return found

    def source(self, one: Asked) -> Execution | None:
        """The execution that gave a call its answer; None where none of those that may have did.

        An answer may come from the call's own execution, from a committed speculation, or, where it was shared or
        remembered, from another execution that was given to an agent. What is equal to the byte is equal here.
        """
        given = self._given[one.session, one.call.tool, hashlib.sha256(one.content).hexdigest()]
        own = [execution for execution in given if execution.key == _key(one)]
        if own and one.served == "direct":
            return own[-1]
        for execution in reversed(given):
            lines = self.speculations.get(execution.key, [])
            committed = any(_outcome(line) in _HITS for line in lines) or not lines
            may = {"ready", "joined", "memo", "shared"} if execution.speculative else {"memo", "shared"}
            if one.served in may and (committed or not execution.speculative):
                return execution
        return None

    def outcomes(self) -> Counter[str]:
        """Speculations by outcome."""
        return Counter(_outcome(line) for lines in self.speculations.values() for line in lines)

    def counts(self) -> Counter[str]:
        """Calls by how they ended and how they were served, and what else is worth a number."""
        counts: Counter[str] = Counter()
        for one in self.diary.asked:
            counts["calls"] += 1
            counts[f"status {one.status}"] += 1
            counts[f"served {one.served}"] += 1
        counts["executions"] = len(self.world.log)
        counts["speculative executions"] = sum(one.speculative for one in self.world.log)
        counts["audits"] = sum(one.audit for one in self.world.log)
        for line in self.lines:
            if line.kind == ledger_pb2.LEDGER_KIND_AUDIT:
                counts[f"audit {line.audit_result}"] += 1
        counts["take-overs"] = sum(epoch - 1 for epoch in self.tap.epochs.values())
        counts["sessions"] = len(self.diary.sessions)
        for reason in self.diary.lost:
            counts[f"session lost {reason}"] += 1
        counts["lines lost with a killed owner"] = len(lost_with_owner(self))
        return counts

    def trace(self) -> list[str]:
        """Server's log, journal and ledger, for the digest of the run."""
        log = [
            f"{one.number} {one.tool} {one.key} {one.started_at!r} {one.ended_at!r} {one.end}" for one in self.world.log
        ]
        stored = [hashlib.sha256(data).hexdigest() for name in (EVENTS, LEDGER) for data in _stored(self.broker, name)]
        return log + stored


class Intents:
    """The intents in the journal, as they are stored."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._stream = broker.streams[EVENTS]
        self._seen = 0
        self._keys: set[str] = set()

    def stored(self, key: str) -> bool:
        """Whether the intent of a call is in the journal now."""
        while self._seen < self._stream.last_sequence:
            self._seen += 1
            message = self._stream.get(self._seen)
            event = event_pb2.SessionEvent.FromString(message.data if message is not None else b"")
            if event.HasField("intent"):
                self._keys.add(f"{event.session}/{event.intent.call.turn}/{event.intent.call.index}")
        return key in self._keys


def _stored(broker: MemoryBroker, stream: str) -> Iterator[bytes]:
    kept = broker.streams[stream]
    for sequence in range(1, kept.last_sequence + 1):
        message = kept.get(sequence)
        if message is not None:
            yield message.data


def _outcome(line: ledger_pb2.LedgerLine) -> str:
    return common_pb2.Outcome.Name(line.outcome).removeprefix("OUTCOME_").lower()


def violations(evidence: Evidence) -> list[str]:
    """Everything that does not hold, one sentence each, the number of the invariant first."""
    found: list[str] = []
    for check in (
        _observations,
        _staleness,
        _ledger,
        _repeats,
        _answers,
        _deadlines,
        _discarded,
        _remains,
        _budgets,
        _purses,
        _switch,
        _audits,
    ):
        every = list(check(evidence))
        found += every[:_SHOWN]
        if len(every) > _SHOWN:
            found.append(f"... and {len(every) - _SHOWN} more of {check.__name__}")
    return found


# ---------------------------------------------------------------- 1: the same results


def _observations(evidence: Evidence) -> Iterator[str]:
    for one in evidence.diary.asked:
        if one.status != "ok" or one.tool_error:
            continue
        if one.call.tool == "nowhere":
            yield f"1: {_name(one)}: a tool that does not exist answered"
            continue
        answer = json.loads(one.content)
        execution = evidence.source(one)
        if execution is None:
            yield f"1: {_name(one)} served {one.served}: no execution that it may come from gave these bytes"
            continue
        for resource, epoch in execution.reads.items():
            yield from _read_in_order(evidence, one, resource, epoch)
        for resource, epoch in execution.effects.items():
            yield from _written_in_order(evidence, one, resource, epoch, execution)
        if one.call.tool == "calc" and answer["sum"] != one.call.arguments["a"] + one.call.arguments["b"]:
            yield f"1: {_name(one)}: wrong sum"
        if one.call.tool == "clock" and answer["at"] < one.asked_at:
            yield f"1: {_name(one)}: the time is from before the ask"


def _read_in_order(evidence: Evidence, one: Asked, resource: str, epoch: int) -> Iterator[str]:
    """A read sees every write that was complete before it in the sequential order, and none that comes after it."""
    if resource.startswith("news/"):
        return  # written elsewhere: its age is what is bounded
    for written, execution in evidence.effects[resource]:
        if execution.key == _key(one):
            continue
        if written > epoch and _before(evidence, execution, one):
            yield (
                f"1: {_name(one)} served {one.served} saw epoch {epoch} of {resource}, but {execution.tool} "
                f"{execution.key} had made it {written} before (asked at {one.asked_at:.3f}, it ended at "
                f"{execution.ended_at})"
            )
        if written <= epoch and _after(execution, one):
            yield f"1: {_name(one)} saw epoch {epoch} of {resource}, made by the later call {execution.key}"


def _written_in_order(evidence: Evidence, one: Asked, resource: str, epoch: int, own: Execution) -> Iterator[str]:
    for written, execution in evidence.effects[resource]:
        if execution is own or execution.key == own.key:
            continue
        if written > epoch and _before(evidence, execution, one) and own.key == _key(one):
            yield f"1: {_name(one)} wrote epoch {epoch} of {resource} before the earlier call {execution.key}"
        if written < epoch and _after(execution, one) and own.key == _key(one):
            yield f"1: {_name(one)} wrote epoch {epoch} of {resource} after the later call {execution.key}"


def _before(evidence: Evidence, execution: Execution, one: Asked) -> bool:
    """The execution's call comes before this one in the order that the agents can know."""
    session, turn, index = _split(execution.key)
    if session == one.session:
        if turn == one.turn and one.index < 900 and index < one.index:
            return execution.end == "ok" and execution.key in evidence.answered_at
        return (turn, index) < (one.turn, one.index) and _over(execution, one.asked_at)
    done = evidence.answered_at.get(execution.key)
    return done is not None and done < one.asked_at and _over(execution, done)


def _after(execution: Execution, one: Asked) -> bool:
    session, turn, index = _split(execution.key)
    return session == one.session and (turn, index) > (one.turn, one.index)


def _over(execution: Execution, now: float) -> bool:
    return execution.ended_at is not None and execution.ended_at < now


def _split(key: str) -> tuple[str, int, int]:
    session, turn, index = key.split("/")
    return session, int(turn), int(index)


def _key(one: Asked) -> str:
    return f"{one.session}/{one.turn}/{one.index}"


def _name(one: Asked) -> str:
    return f"{one.call.tool}{json.dumps(one.call.arguments)} {_key(one)}"


def _staleness(evidence: Evidence) -> Iterator[str]:
    """What is also written elsewhere is served for a bounded time only, and what depends on the time not at all."""
    epoch = evidence.broker.clock.now() - _loop_time()
    given = {
        (line.call.session, line.call.turn, line.call.index): line.at_seconds - epoch
        for line in evidence.lines
        if line.kind == ledger_pb2.LEDGER_KIND_CALL
    }
    for one in evidence.diary.asked:
        if one.status != "ok" or one.tool_error or one.served in ("direct", "shared"):
            continue
        if one.call.tool == "clock":
            yield f"1: {_name(one)}: served {one.served} although it depends on the time"
        if one.call.tool in NOT_REPEATABLE or one.call.tool not in SPECULABLE:
            yield f"5: {_name(one)}: served {one.served}, which the policy does not allow"
        if one.call.tool != "news" or (one.session, one.turn, one.index) not in given:
            continue
        execution = evidence.source(one)
        if execution is None:
            continue
        age = given[one.session, one.turn, one.index] - execution.started_at
        if age > _STALENESS_SECONDS + 0.5:
            yield f"1: {_name(one)}: served {one.served} at the age of {age:.3f} s"


def _loop_time() -> float:
    import asyncio

    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------- 2: the ledger


def lost_with_owner(evidence: Evidence) -> list[str]:
    """Speculative executions without a line whose owner was killed: what it knew died with it.

    So did what an orderly stop could not hand to a broker that took nothing in time.
    """
    ends = list(evidence.nemesis.killed)
    if evidence.lines_lost:
        ends += [outage.end for outage in evidence.nemesis.outages if outage.what in REPLICAS]
    return [one.key for one in _without_line(evidence) if any(end >= one.started_at for end in ends)]


def _without_line(evidence: Evidence) -> list[Execution]:
    return [one for one in evidence.world.log if one.speculative and one.key not in evidence.speculations]


def _ledger(evidence: Evidence) -> Iterator[str]:
    excused = set(lost_with_owner(evidence))
    for one in _without_line(evidence):
        if one.key not in excused:
            yield f"2: execution {one.key} of {one.tool} at {one.started_at:.3f} has no line in the ledger"
    executions = Counter(one.key for one in evidence.world.log if one.speculative)
    for speculation, lines in evidence.speculations.items():
        if len(lines) != 1:
            yield f"2: speculation {speculation} has {len(lines)} lines: {[_outcome(line) for line in lines]}"
        outcome = _outcome(lines[0])
        if outcome == "unspecified":
            yield f"2: speculation {speculation} has no outcome"
        if executions[speculation] > 1:
            yield f"2: speculation {speculation} was executed {executions[speculation]} times"
        if executions[speculation] == 0 and outcome in {"ready", "joined", "miss", "expired"}:
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
    executions = sum(totals.executions for totals in evidence.totals)
    seen = sum(not one.audit for one in evidence.world.log)
    if executions < seen:
        yield f"2: the replicas count {executions} executions, the server saw {seen}"


# ---------------------------------------------------------------- 3: nothing twice


def _repeats(evidence: Evidence) -> Iterator[str]:
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
        if unknown and line.tool not in NOT_REPEATABLE:
            yield f"3: {line.tool} {_line_key(line)} may be repeated and ended outcome_unknown"


# ---------------------------------------------------------------- 4: one answer, in time


def _answers(evidence: Evidence) -> Iterator[str]:
    tap = evidence.tap
    for key, count in tap.answered.items():
        if count > tap.asks[key]:
            yield f"4: {key} was asked {tap.asks[key]} times and answered {count} times"
        different = set(tap.answers[key])
        if len(different) > 1 and not evidence.forgetful:
            yield f"4: {key} was answered in {len(different)} ways: {sorted(map(str, different))}"
    if evidence.diary.open:
        yield f"4: {evidence.diary.open} calls are still open"


def _deadlines(evidence: Evidence) -> Iterator[str]:
    for one in evidence.diary.asked:
        own = one.timeout_seconds
        bound = TOOL_SECONDS * one.calls if own is None else own
        # Each owner gives a call without a deadline of its own its tool's time anew.
        for outage in evidence.nemesis.outages:
            if outage.begin < one.answered_at and outage.end > one.asked_at:
                bound += outage.end - outage.begin + _RESTART_SECONDS + (0.0 if own is not None else bound)
        if one.answered_at - one.asked_at > bound + _SETTLE_SECONDS:
            yield f"4: {_name(one)} took {one.answered_at - one.asked_at:.1f} s, its bound is {bound:.1f} s"
        if one.reason in _OFFLINE and not _away(evidence, one):
            yield f"4: {_name(one)} got no answer of the platform although nothing was away"
        if one.status != "ok" and not one.reason:
            yield f"4: {_name(one)} ended {one.status} without a reason"
        if not evidence.kinds and one.status == "unavailable":
            yield f"4: {_name(one)} ended {one.status} ({one.reason}) although nothing went wrong"
    if not evidence.kinds and evidence.diary.lost:
        yield f"4: sessions were lost although nothing went wrong: {evidence.diary.lost}"


def _away(evidence: Evidence, one: Asked) -> bool:
    return any(
        outage.begin < one.answered_at and outage.end + _RESTART_SECONDS > one.asked_at
        for outage in evidence.nemesis.outages
    )


# ---------------------------------------------------------------- 5: what was discarded


def _discarded(evidence: Evidence) -> Iterator[str]:
    hits = {
        _line_key(line): line for lines in evidence.speculations.values() for line in lines if line.HasField("call")
    }
    for one in evidence.diary.asked:
        if one.status != "ok" or one.served not in _HITS:
            continue
        line = hits.get(_key(one))
        if line is None:
            if not evidence.nemesis.killed and not evidence.lines_lost:
                yield f"5: {_name(one)} served {one.served}, and no line of the ledger says from what"
        elif _outcome(line) != one.served or line.digest != f"sha256:{hashlib.sha256(one.content).hexdigest()}":
            yield f"5: {_name(one)} served {one.served}, and the ledger says {_outcome(line)} with another answer"
    for execution in evidence.world.log:
        if execution.speculative and execution.effects:
            yield f"5: {execution.tool} {execution.key} changed something ahead of its call"
        plan = evidence.diary.sessions.get(execution.session)
        if execution.speculative and plan is not None and plan.mode is not None:
            yield f"5: {execution.tool} ran ahead in {execution.session}, which asked for mode {plan.mode}"


def _line_key(line: ledger_pb2.LedgerLine) -> str:
    return f"{line.call.session}/{line.call.turn}/{line.call.index}"


# ---------------------------------------------------------------- 6: nothing is left


def _remains(evidence: Evidence) -> Iterator[str]:
    if evidence.leaked:
        yield f"6: tasks are left: {evidence.leaked}"
    if evidence.world.open:
        yield f"6: {evidence.world.open} executions are open"
    if evidence.broker.clients:
        yield f"6: bus connections are open: {[client.name for client in evidence.broker.clients]}"
    for name, stream in evidence.broker.streams.items():
        for consumer in stream.consumers.values():
            if consumer.takers:
                yield f"6: {name} is still consumed by {len(consumer.takers)}"


# ---------------------------------------------------------------- 7: budgets


def _budgets(evidence: Evidence) -> Iterator[str]:
    policies = evidence.nemesis.policies
    per_session = max(policy.concurrent_per_session for policy in policies)
    replica = len(REPLICAS) * max(policy.concurrent for policy in policies)
    ahead = [one for one in evidence.world.log if one.speculative]
    if _most_at_once(ahead) > replica:
        yield f"7: {_most_at_once(ahead)} speculations ran at once, the limit is {replica}"
    by_session: dict[str, list[Execution]] = defaultdict(list)
    for one in ahead:
        by_session[one.session].append(one)
    for session, executions in by_session.items():
        most = _most_at_once(executions)
        if most > per_session:
            yield f"7: {most} speculations of {session} ran at once, the limit is {per_session}"
        lines = [line for one in executions for line in evidence.speculations.get(one.key, [])]
        wasted = sum(_outcome(line) not in _HITS for line in lines)
        asks = sum(count for key, count in evidence.tap.asks.items() if key[0] == session)
        owners = max(1, evidence.tap.epochs[session])
        bound = owners * max(policy.initial_credits for policy in policies)
        bound += asks * max(policy.credits_per_call for policy in policies)
        if wasted > bound:
            yield f"7: {wasted} speculations of {session} were wasted, its credits allow {bound:.1f}"


def _purses(evidence: Evidence) -> Iterator[str]:
    """What was reserved comes back: nothing is refused for want of a place or a credit that is there.

    Judged where all decisions are in one owner's hands and under one policy.
    """
    if evidence.kinds - {"tools", "messages"} or len(evidence.nemesis.policies) > 1:
        return
    (policy,) = evidence.nemesis.policies
    started = {one.key: one for one in evidence.world.log if one.speculative}
    at = evidence.broker.clock.now() - _loop_time()
    for session in evidence.diary.sessions:
        if evidence.tap.epochs[session] != 1:
            continue
        lines = [line for line in evidence.lines if line.session == session]
        closed = [line for line in lines if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION]
        returned = [line.at_seconds for line in lines if line.reason in ("no_slot", "off")]
        for line in lines:
            if line.kind != ledger_pb2.LEDGER_KIND_DECISION or line.reason not in ("bound", "no_credit"):
                continue
            now = line.at_seconds - at
            # What was taken in the same breath and came back because the worker had no slot counts too.
            back = sum(abs(one - line.at_seconds) <= _BREATH_SECONDS for one in returned)
            begun = [one for one in closed if _begun(started.get(one.speculation)) <= now + _BREATH_SECONDS]
            if line.reason == "bound":
                taken = sum(_ended(started.get(one.speculation), one.at_seconds - at) >= now for one in begun)
                taken += back
                limit = policy.concurrent_per_session
                if taken < limit and len(begun) < _OPEN_MOST:
                    yield f"7: {session} was refused a place at {now:.3f} with {taken} of {limit} taken"
                continue
            asked = sum(
                count
                for key, count in evidence.tap.asks.items()
                if key[0] == session and evidence.tap.asked_at[key] < now - _BREATH_SECONDS
            )
            wasted = sum(_outcome(one) not in _HITS or one.at_seconds - at >= now - _BREATH_SECONDS for one in begun)
            credit = min(
                _CREDITS_MOST - len(begun), policy.initial_credits + policy.credits_per_call * asked - wasted - back
            )
            if credit >= 1.0 + policy.credits_per_call * 2:
                yield f"7: {session} was refused a credit at {now:.3f} and had {credit:.1f}"


def _begun(execution: Execution | None) -> float:
    return float("-inf") if execution is None else execution.started_at


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


# ---------------------------------------------------------------- the switch, and audits


def _switch(evidence: Evidence) -> Iterator[str]:
    away = [outage for outage in evidence.nemesis.outages if outage.what in ("broker", *REPLICAS)]
    for begin, end in evidence.nemesis.switched:
        for one in evidence.world.log:
            late = begin + _SWITCH_SECONDS < one.started_at < end
            excused = any(o.begin < one.started_at < o.end + _RESTART_SECONDS for o in away)
            if one.speculative and late and not excused:
                yield f"5: {one.tool} {one.key} ran ahead {one.started_at - begin:.2f} s after it was switched off"


def _audits(evidence: Evidence) -> Iterator[str]:
    answers = {f"sha256:{one.digest}" for one in evidence.world.log if one.end == "ok"}
    for line in evidence.lines:
        different = line.kind == ledger_pb2.LEDGER_KIND_AUDIT and line.audit_result == "different"
        if different and line.digest in answers:
            yield f"1: an audit of {line.tool} {line.speculation} found another result"
