"""What a run leaves behind, in the forms in which the checks look at it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from google.protobuf.message import Message

from forerun.runtime.bus_memory import MemoryBroker
from forerun.runtime.topology import EVENTS, LEDGER
from forerun.v1 import common_pb2, event_pb2, ledger_pb2, session_pb2
from tests.simulation.diary import Asked, Diary
from tests.simulation.nemesis import REPLICAS, Nemesis
from tests.simulation.reports import Reports
from tests.simulation.tap import Tap
from tests.simulation.wiretap import Wiretap
from tests.simulation.world import Execution, World

HITS: Final = frozenset({"ready", "joined"})
"""Outcomes of speculations and early issues whose result an agent got."""
NOT_RUN: Final = frozenset({"skipped", "rejected"})
"""Ends of tasks that were never begun."""
_AHEAD: Final = (ledger_pb2.LEDGER_KIND_SPECULATION, ledger_pb2.LEDGER_KIND_EARLY)


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
    wiretap: Wiretap
    commands_open: int
    reports: Reports
    slots: tuple[int, int]
    quiet_at: float

    def __post_init__(self) -> None:
        """Says how the tasks of plans were served, of which only the ledger tells."""
        self.diary.asked = [
            replace(one, served=self._served(one)) if not one.served else one for one in self.diary.asked
        ]

    def _served(self, one: Asked) -> str:
        """From the line of the call; `unknown` where it was lost with its owner."""
        if one.status in NOT_RUN:
            return "unspecified"
        lines = self._calls.get(key_of(one), [])
        digest = f"sha256:{hashlib.sha256(one.content).hexdigest()}"
        lines = [line for line in lines if line.digest == digest] or lines
        return common_pb2.Served.Name(lines[-1].served).removeprefix("SERVED_").lower() if lines else "unknown"

    @cached_property
    def _calls(self) -> dict[str, list[ledger_pb2.LedgerLine]]:
        found: dict[str, list[ledger_pb2.LedgerLine]] = defaultdict(list)
        for line in self.lines:
            if line.kind == ledger_pb2.LEDGER_KIND_CALL:
                found[line_key(line)].append(line)
        return found

    @cached_property
    def forgetful(self) -> bool:
        """An owner went without having written everything: killed, or another one came while the broker took nothing.

        What may be repeated is not written before it is answered, so a key may then be new to the next owner.
        """
        broker = "appends" in self.kinds or "broker" in self.kinds
        taken_over = any(epoch > 1 for epoch in self.tap.epochs.values())
        return bool(self.nemesis.killed) or (taken_over and broker)

    @cached_property
    def lines(self) -> list[ledger_pb2.LedgerLine]:
        """The ledger."""
        return [ledger_pb2.LedgerLine.FromString(data) for data in stored(self.broker, LEDGER)]

    @cached_property
    def speculations(self) -> dict[str, list[ledger_pb2.LedgerLine]]:
        """Ledger lines of speculations, by execution."""
        return {key: lines for key, lines in self.ahead.items() if lines[0].kind == ledger_pb2.LEDGER_KIND_SPECULATION}

    @cached_property
    def ahead(self) -> dict[str, list[ledger_pb2.LedgerLine]]:
        """Ledger lines of everything that ran ahead of its call, guessed or issued early, by execution."""
        found: dict[str, list[ledger_pb2.LedgerLine]] = defaultdict(list)
        for line in self.lines:
            if line.kind in _AHEAD:
                found[line.speculation].append(line)
        return dict(found)

    @cached_property
    def guessed(self) -> list[Execution]:
        """Executions of speculations; where an owner was killed only those that have a line can be told apart."""
        ahead = (one for one in self.world.log if one.speculative)
        return [one for one in ahead if one.key in self.speculations or one.key not in self.ahead]

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
        own = [execution for execution in given if execution.key == key_of(one)]
        if own and one.served in ("direct", "unknown"):
            return own[-1]
        for execution in reversed(given):
            lines = self.ahead.get(execution.key, [])
            committed = any(outcome_of(line) in HITS for line in lines) or not lines
            may = {"ready", "joined", "early", "memo", "shared"} if execution.speculative else {"memo", "shared"}
            if one.served in may | {"unknown"} and (committed or not execution.speculative):
                return execution
        return None

    @cached_property
    def epoch_seconds(self) -> float:
        """Epoch seconds at loop time 0."""
        clock = self.broker.clock
        return clock.now() - clock.monotonic()

    @cached_property
    def without_line(self) -> list[Execution]:
        """Speculative executions that the ledger does not know."""
        return [one for one in self.world.log if one.speculative and one.key not in self.ahead]

    @cached_property
    def lost_with_owner(self) -> list[str]:
        """Speculative executions without a line whose owner was killed: what it knew died with it.

        So did what an orderly stop could not hand to a broker that took nothing in time.
        """
        ends = list(self.nemesis.killed)
        if self.lines_lost:
            ends += [outage.end for outage in self.nemesis.outages if outage.what in REPLICAS]
        return [one.key for one in self.without_line if any(end >= one.started_at for end in ends)]

    def outcomes(self) -> Counter[str]:
        """Speculations by outcome."""
        return Counter(outcome_of(line) for lines in self.speculations.values() for line in lines)

    @cached_property
    def served(self) -> Counter[str]:
        """Calls by how they were served."""
        names = (common_pb2.Served.Name(line.served) for line in self.lines if line.kind == ledger_pb2.LEDGER_KIND_CALL)
        return Counter(name.removeprefix("SERVED_").lower() for name in names)

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
        counts["plans"] = len(self.diary.graphs)
        for run in self.diary.graphs:
            counts[f"plan {run.status or 'not ended'}"] += 1
        counts["second attempts"] = sum(one.second for one in self.world.log)
        counts["races"] = sum(line.kind == ledger_pb2.LEDGER_KIND_RACE for line in self.lines)
        counts["staged commits"] = self.wiretap.merges
        counts["sessions"] = len(self.diary.sessions)
        for reason in self.diary.lost:
            counts[f"session lost {reason}"] += 1
        counts["lines lost with a killed owner"] = len(self.lost_with_owner)
        return counts

    def trace(self) -> list[str]:
        """Server's log, journal and ledger, for the digest of the run."""
        log = [
            f"{one.number} {one.tool} {one.key} {one.started_at!r} {one.ended_at!r} {one.end}" for one in self.world.log
        ]
        # The bytes of a message have its maps in an order that differs between processes.
        written: list[Message] = [event_pb2.SessionEvent.FromString(data) for data in stored(self.broker, EVENTS)]
        written += [ledger_pb2.LedgerLine.FromString(data) for data in stored(self.broker, LEDGER)]
        return log + [hashlib.sha256(one.SerializeToString(deterministic=True)).hexdigest() for one in written]


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


def key_of(one: Asked) -> str:
    """The key of a call, as the server's log has it."""
    return f"{one.session}/{one.turn}/{one.index}"


def split_key(key: str) -> tuple[str, int, int]:
    """Session, turn and index of a key; nobody's of an execution that is not a call's own."""
    session, turn, index = key.split("/") if "/" in key else ("", "0", "0")
    return session, int(turn), int(index)


def end_of(execution: Execution) -> float:
    """When an execution ended; never, where it still runs."""
    return float("inf") if execution.ended_at is None else execution.ended_at


def name_of(one: Asked) -> str:
    """A call in the words of a complaint."""
    return f"{one.call.tool}{json.dumps(one.call.arguments)} {key_of(one)}"


def line_key(line: ledger_pb2.LedgerLine) -> str:
    """The key of the call that a ledger line is about."""
    return f"{line.call.session}/{line.call.turn}/{line.call.index}"


def outcome_of(line: ledger_pb2.LedgerLine) -> str:
    """The outcome of a speculation, in lower case."""
    return common_pb2.Outcome.Name(line.outcome).removeprefix("OUTCOME_").lower()


def stored(broker: MemoryBroker, stream: str) -> Iterator[bytes]:
    """The messages of a stream, in order."""
    kept = broker.streams[stream]
    for sequence in range(1, kept.last_sequence + 1):
        message = kept.get(sequence)
        if message is not None:
            yield message.data
