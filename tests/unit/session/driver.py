"""Drives a session machine in virtual time: performs its effects with scripted tools, a verifier and a broker."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forerun.core.candidates import Candidate
from forerun.core.contracts import Contract, Effect, ResourceTemplate, Scope, unknown
from forerun.core.freshness import UNSETTLED, bumps
from forerun.core.governor import Limits, Prices
from forerun.core.identity import identity_of
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus, Mode, Outcome
from forerun.core.race import Race
from forerun.core.resources import footprint
from forerun.core.session import (
    Answer,
    Append,
    AskedCall,
    AwaitStored,
    BeginShared,
    BumpShared,
    CallAnswer,
    CallFinished,
    CallIntent,
    CancelExecution,
    Certificate,
    Certify,
    DropFork,
    Execute,
    ExecutionResult,
    Failure,
    JournalEvent,
    MergeFork,
    PreparedCall,
    Promote,
    Proposal,
    ReadShared,
    Record,
    SessionFacts,
    SessionMachine,
    SessionPolicy,
)
from forerun.core.session import effects as fx

ORDERS = ResourceTemplate("orders/{id}")
SOURCE = ResourceTemplate("orders/{of}")
SHARED = ResourceTemplate("stock/{id}", Scope.SHARED)

CONTRACTS = {
    "race": Contract("race", "s", Effect.READ, reads=(ORDERS,), race=Race(after_quantile=0.9, most_extra=0.1)),
    "dash": Contract("dash", "s", Effect.READ, reads=(ORDERS,), race=Race(after_quantile=0.5, most_extra=0.1)),
    "get": Contract("get", "s", Effect.READ, reads=(ORDERS,), speculate=True),
    "set": Contract("set", "s", Effect.WRITE, writes=(ORDERS,)),
    "put": Contract("put", "s", Effect.WRITE, writes=(ORDERS,), idempotent=True),
    "copy": Contract("copy", "s", Effect.WRITE, reads=(SOURCE,), writes=(ORDERS,), idempotent=True),
    "stock": Contract("stock", "s", Effect.READ, reads=(SHARED,), speculate=True),
    "sell": Contract("sell", "s", Effect.WRITE, writes=(SHARED,)),
    "fill": Contract("fill", "s", Effect.WRITE, writes=(SHARED,), idempotent=True),
    "ship": Contract("ship", "s", Effect.WRITE, reads=(ResourceTemplate("ws"),), writes=(ORDERS,), idempotent=True),
    "build": Contract("build", "s", Effect.WRITE, writes=(ResourceTemplate("ws"),), staged=True, speculate=True),
    "look": Contract("look", "s", Effect.READ, reads=(ResourceTemplate("ws"),), speculate=True),
    "web": Contract("web", "s", Effect.READ, reads=(ResourceTemplate("web"),), open_world=True, speculate=True),
    "clock": Contract("clock", "s", Effect.READ, reads=(), max_staleness_seconds=0.0, speculate=True),
}
IN_WORKSPACE = frozenset({"build", "look"})
POLICY = SessionPolicy(
    name="test",
    version="1",
    prices=Prices(alpha=1.0, lambda_per_second=4.0),
    limits=Limits(concurrent=4, credits_per_call=0.3, initial_credits=4.0),
    audit_share=0.0,
)


def prepared(tool: str, **arguments: object) -> PreparedCall:
    """A prepared call of one of the tools above, or of an unknown one."""
    data = json.dumps(arguments).encode()
    contract = CONTRACTS.get(tool) or unknown(tool, "s")
    identity = identity_of(
        tenant="t",
        tool=tool,
        version="1",
        arguments=arguments,  # type: ignore[arg-type]
        principal="p",
        credential_scope="c",
        workspace="",
    )
    return PreparedCall(
        tool=tool,
        version="1",
        arguments=data,
        value=arguments,  # type: ignore[arg-type]
        contract=contract,
        identity=identity,
        digest=identity.digest(),
        private=footprint(contract, arguments, scope=Scope.SESSION),  # type: ignore[arg-type]
        shared=footprint(contract, arguments, scope=Scope.SHARED),  # type: ignore[arg-type]
        uses_workspace=tool in IN_WORKSPACE,
    )


def asked(index: int, tool: str, **arguments: object) -> AskedCall:
    """A call of a message."""
    call = prepared(tool, **arguments)
    return AskedCall(index, f"id{index}", tool, call.arguments, call)


def proposal(
    tool: str, *, probability: float = 0.95, evidence: float = 100.0, seconds: float = 2.0, **arguments: object
) -> Proposal:
    """A candidate that is worth it, unless told otherwise."""
    call = prepared(tool, **arguments)
    candidate = Candidate(tool, call.arguments, probability, evidence, 0, f"site-{tool}", "because", seconds)
    return Proposal(candidate, call, draw=0.5)


@dataclass
class Driver:
    """The world around one machine.

    Attributes:
        seconds: How long each tool takes; `tool@1` at its second provider.
        results: What executions give instead of the default, by the same names.
        uncertain: Tools of which nobody knows whether they go on after they were stopped.
        stop_seconds: How long tools take to stop that are waited for.
        unstorable: Tools whose answers the journal can never store.
        now: Virtual time.
    """

    policy: SessionPolicy = POLICY
    mode: Mode = Mode.EXACT
    seconds: dict[str, float] = field(default_factory=dict)
    results: dict[str, ExecutionResult] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)
    stop_seconds: float = 0.0
    unstorable: set[str] = field(default_factory=set)
    merges: bool = True
    journal_up: bool = True
    verifier: Certificate = field(default_factory=lambda: Certificate(certified=True))
    now: float = 0.0

    def __post_init__(self) -> None:
        facts = SessionFacts(
            tenant="t", principal="p", credential_scope="c", agent="a", session="S", epoch=1, mode=self.mode
        )
        self.machine = SessionMachine(facts, self.policy)
        self.answers: dict[tuple[int, int], CallAnswer] = {}
        self.answer_order: list[tuple[int, int]] = []
        self.entries: list[LedgerEntry] = []
        self.journal: list[JournalEvent] = []
        self.executed: list[tuple[str, bytes, bool]] = []
        self.running: dict[str, Execute] = {}
        self.cancelled: list[str] = []
        self.promoted: list[str] = []
        self.dropped: list[str] = []
        self.merged: list[tuple[str, str]] = []
        self.shared: dict[str, int] = {}
        self.unsettled: set[str] = set()
        self.begun: dict[str, BeginShared] = {}
        self.broker_up = True
        self._never_again = itertools.count(UNSETTLED)
        self.world: dict[str, int] = {}
        self.log: list[str] = []
        self._events: list[tuple[float, int, Callable[[], list[fx.Effect]]]] = []
        self._count = 0
        self._held: list[int] | None = None
        self._lost_answer = 0

    # -- time

    def hold_journal(self) -> Callable[[], None]:
        """From now on the journal acknowledges nothing; what is returned lets it catch up."""
        self._held = []

        def store() -> None:
            held, self._held = self._held or [], None
            for token in held:
                self.do(self.machine.resume(token, self.journal_up, self.now))

        return store

    def at(self, delay: float, what: Callable[[], list[fx.Effect]]) -> None:
        """Does something later."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what))

    def run(self, until: float | None = None) -> None:
        """Lets time pass: until nothing is left to do, or until a time."""
        for _ in range(100_000):
            due = self.machine.next_time()
            next_event = self._events[0][0] if self._events else None
            times = [time for time in (due, next_event) if time is not None]
            if not times or (until is not None and min(times) > until):
                break
            if next_event is not None and (due is None or next_event <= due):
                self.now, _, what = heapq.heappop(self._events)
                self.do(what())
            else:
                self.now = max(self.now, due or 0.0)
                self.do(self.machine.tick(self.now))
        else:
            raise AssertionError("it never ends")
        if until is not None:
            self.now = until

    def settle(self) -> None:
        """Everything that takes no time happens."""
        self.run(until=self.now)

    # -- inputs

    def ask(self, turn: int, *calls: AskedCall, timeout_seconds: float | None = None) -> None:
        """The agent asks."""
        self.do(self.machine.asked(turn, calls, self.now, timeout_seconds=timeout_seconds))
        self.settle()

    def propose(self, *proposals: Proposal, model_seconds: float = 10.0) -> None:
        """A model request starts, and the predictor speaks."""
        self.do(self.machine.model_started(1, self.now))
        based_on = self.machine.number
        self.do(
            self.machine.candidates(proposals, based_on=based_on, expected_model_seconds=model_seconds, now=self.now)
        )
        self.settle()

    # -- effects

    def do(self, effects: list[fx.Effect]) -> None:
        """Performs effects."""
        for effect in effects:
            self._perform(effect)

    def _resume(self, token: int, answer: object) -> None:
        """Answers an effect, in the same instant but later."""
        self.at(0.0, lambda: self.machine.resume(token, answer, self.now))

    def _perform(self, effect: fx.Effect) -> None:
        machine = self.machine
        match effect:
            case Append(number, event, token):
                if isinstance(event, CallFinished) and event.answer.tool in self.unstorable:
                    self._lost_answer = number
                if isinstance(event, CallIntent) and effect.since is not None and self._lost_answer >= effect.since:
                    assert token is not None
                    self._resume(token, False)
                    return
                self.journal.append(event)
                self.log.append(type(event).__name__)
                if token is not None and self._held is not None:
                    self._held.append(token)
                elif token is not None:
                    self._resume(token, self.journal_up)
            case AwaitStored(token, since):
                if self._held is not None:
                    self._held.append(token)
                else:
                    self._resume(token, self.journal_up and self._lost_answer < since)
            case Execute():
                self._execute(effect)
            case CancelExecution(execution, settle):
                self.cancelled.append(execution)
                stopped = self.running.pop(execution, None)
                if stopped is not None:
                    result = ExecutionResult(
                        status=CallStatus.CANCELLED,
                        failure=Failure("CALL_CANCELLED", ""),
                        may_continue=not settle or stopped.prepared.tool in self.uncertain,
                    )
                    seconds = self.stop_seconds if settle else 0.0
                    self.at(seconds, lambda: machine.execution_finished(execution, result, self.now))
            case Promote(execution, _):
                self.promoted.append(execution)
            case MergeFork(fork, as_fork, token):
                self.merged.append((fork, as_fork))
                self._resume(token, self.merges)
            case DropFork(fork):
                self.dropped.append(fork)
            case ReadShared(marks, token):
                touched = self.unsettled.union(*(bumps(one.keys) for one in self.begun.values()))
                values: Mapping[str, int] = {
                    mark: next(self._never_again) if mark in touched else self.shared.get(mark, 0) for mark in marks
                }
                self._resume(token, values)
            case BeginShared(write, keys, _, token):
                self.log.append(f"begin {' '.join(keys)}")
                self.begun[write] = effect
                self._count_shared(keys)
                self._resume(token, self.broker_up)
            case BumpShared(keys, token, unsettled, write):
                self.log.append(f"count {' '.join(keys)}{' unsettled' if unsettled else ''}")
                if unsettled:
                    self.unsettled.update(bumps(keys))
                self.begun.pop(write, None)
                self._count_shared(keys)
                if token is not None:
                    self._resume(token, True)
            case Certify():
                self._resume(effect.token, self.verifier)
            case Answer(answer):
                assert answer.call not in self.answers or self.answers[answer.call] == answer
                self.answers[answer.call] = answer
                self.answer_order.append(answer.call)
            case Record(entry, _, _):
                self.entries.append(entry)

    def _count_shared(self, keys: tuple[str, ...]) -> None:
        for mark in bumps(keys):
            self.shared[mark] = self.shared.get(mark, 0) + 1

    def _execute(self, effect: Execute) -> None:
        call = effect.prepared
        self.executed.append((call.tool, call.arguments, effect.speculative))
        self.log.append(f"run {call.tool}{' ahead' if effect.speculative else ''}")
        self.running[effect.execution] = effect
        seconds = self.seconds.get(f"{call.tool}@{effect.provider}", self.seconds.get(call.tool, 2.0))
        snapshot = dict(self.world)
        self.at(seconds, lambda: self._finish(effect, snapshot, seconds))

    def _finish(self, effect: Execute, snapshot: dict[str, int], seconds: float) -> list[fx.Effect]:
        if self.running.pop(effect.execution, None) is None:
            return []
        call = effect.prepared
        result = self.results.get(f"{call.tool}@{effect.provider}", self.results.get(call.tool))
        if result is None:
            if call.contract.effect is Effect.WRITE:
                for key in (*call.private.writes, *call.shared.writes):
                    self.world[key] = self.world.get(key, 0) + 1
            seen = {key: snapshot.get(key, 0) for key in (*call.private.reads, *call.shared.reads)}
            content = json.dumps([call.tool, call.arguments.decode(), seen]).encode()
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            result = ExecutionResult(status=CallStatus.OK, content=content, digest=digest, seconds=seconds)
        return self.machine.execution_finished(effect.execution, result, self.now)

    # -- what came of it

    def outcomes(self) -> dict[Outcome, int]:
        """Speculations by outcome."""
        found: dict[Outcome, int] = {}
        for entry in self.entries:
            if entry.kind is EntryKind.SPECULATION and entry.outcome is not None:
                found[entry.outcome] = found.get(entry.outcome, 0) + 1
        return found

    def refusals(self) -> list[str]:
        """Reasons of candidates that were not launched."""
        return [entry.reason for entry in self.entries if entry.kind is EntryKind.DECISION]

    def intents(self) -> int:
        """Intents in the journal."""
        return sum(isinstance(event, CallIntent) for event in self.journal)
