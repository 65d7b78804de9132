"""Planted bugs: each is one function of the production code, replaced while some seeds run. Every one has to be caught.

The production code knows nothing of them. A bug that no invariant notices means that an invariant, or the work that
would show it, is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from forerun.core.contracts import Decision, Reason
from forerun.core.freshness import Recorded
from forerun.core.order import Placement
from forerun.core.outcomes import CallStatus, Mode, Outcome
from forerun.core.session import CancelExecution
from forerun.core.session.effects import Answer
from forerun.core.session.events import CallFinished, CallIntent
from forerun.core.session.speculated import Stage

Planting = Callable[[Any], Callable[..., Any]]
"""Makes the function that is planted from the one that stands there."""

_LINES_DROPPED: Final = 5


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: What it is called on the command line.
        place: `module:path` of the function that is replaced.
        plant: Makes the replacement.
    """

    name: str
    place: str
    plant: Planting


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """The bug is there inside of the block.

    Raises:
        AttributeError, ImportError: its place is gone.
    """
    if mutant is None:
        yield
        return
    module, _, path = mutant.place.partition(":")
    owner: Any = importlib.import_module(module)
    *above, name = path.split(".")
    for part in above:
        owner = getattr(owner, part)
    kept = owner.__dict__[name]
    fixed = isinstance(kept, staticmethod)
    planted_one: Any = mutant.plant(getattr(owner, name))
    setattr(owner, name, staticmethod(planted_one) if fixed else planted_one)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _returns(value: object) -> Planting:
    return lambda _: lambda *_, **__: value


def _does_nothing(_: object) -> Callable[..., Any]:
    async def nothing(*_: object, **__: object) -> None:
        return None

    return nothing


# ------------------------------------------------------------ freshness


def _without_marks(fresh: Any) -> Callable[..., Any]:
    return lambda _was, *rest: fresh(Recorded({}), *rest)


def _without_age(fresh: Any) -> Callable[..., Any]:
    return lambda was, generations, age, _limit: fresh(was, generations, age, None)


def _shared_unchecked(commit: Any) -> Callable[..., Any]:
    return lambda self, speculation, outcome, _: commit(self, speculation, outcome, dict(speculation.shared))


# ------------------------------------------------------------ calls that may not be repeated


def _intent_afterwards(start: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any) -> None:
        if call.prepared.repeatable:
            start(self, call)
            return
        call.stage = type(call.stage).PREPARING
        self._announce(call, True)
        self._c.append(CallIntent(call.id, call.prepared.digest))

    return planted_one


def _intent_forgotten(start: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any) -> None:
        call.stage = type(call.stage).PREPARING
        self._announce(call, True)

    return planted_one


def _retries_anything(may_retry: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any, result: Any) -> bool:
        if result.status is CallStatus.OUTCOME_UNKNOWN:
            result = replace(result, status=CallStatus.UNAVAILABLE)
        return bool(may_retry(self, call, replace(result, not_started=True)))

    return planted_one


# ------------------------------------------------------------ speculations


def _commits_twice(close: Any) -> Callable[..., Any]:
    def planted_one(self: Any, speculation: Any, outcome: Outcome, reason: str) -> None:
        close(self, speculation, outcome, reason)
        if outcome.hit:
            speculation.stage = Stage.READY
            self._open[speculation.id] = self._by_identity[speculation.prepared.identity] = speculation

    return planted_one


def _delivers_anything(hand_over: Any) -> Callable[..., Any]:
    def planted_one(speculation: Any, outcome: Outcome | None) -> None:
        hand_over(speculation, Outcome.READY if outcome is None and speculation.result is not None else outcome)

    return planted_one


def _without_cancellations(perform: Any) -> Callable[..., Any]:
    return lambda self, effect: None if isinstance(effect, CancelExecution) else perform(self, effect)


def _executes_in_shadow(admit: Any) -> Callable[..., Any]:
    def planted_one(self: Any, *rest: object) -> None:
        mode = self._c.mode
        self._c.mode = Mode.EXACT if mode is Mode.SHADOW else mode
        admit(self, *rest)
        self._c.mode = mode

    return planted_one


def _never_behind(find: Any) -> Callable[..., Any]:
    def planted_one(self: Any, fork: str) -> Any:
        found = find(self, fork)
        found.base_version = self.version
        return found

    return planted_one


def _merges_nothing(_merge: Any) -> Callable[..., Any]:
    async def planted_one(self: Any, *_: object, **__: object) -> int:
        return int(self.version)

    return planted_one


def _without_answers(write: Any) -> Callable[..., Any]:
    def planted_one(self: Any, effect: Any) -> None:
        if effect.token is not None or not isinstance(effect.event, CallFinished):
            write(self, effect)

    return planted_one


# ------------------------------------------------------------ whose it is


def _without(*names: str) -> Planting:
    return lambda identity_of: lambda **given: identity_of(**given | dict.fromkeys(names, ""))


def _in_the_order_of_keys(_canonical: Any) -> Callable[..., Any]:
    return lambda value, *_, **__: repr(value).encode()


def _same_epoch(raised: Any) -> Callable[..., Any]:
    def planted_one(*given: Any) -> Any:
        claim = raised(*given)
        return replace(claim, epoch=claim.epoch - 1)

    return planted_one


class _Unfenced:
    """A bus that does not care who wrote last."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def append(self, *given: Any, **named: Any) -> Any:
        return await self._bus.append(*given, **named | {"expected_last_sequence": None})


def _without_fence(make: Any) -> Callable[..., Any]:
    return lambda self, bus, *given, **named: make(self, _Unfenced(bus), *given, **named)


# ------------------------------------------------------------ order, keys, time


def _all_at_once(place: Any) -> Callable[..., Any]:
    return lambda self, call: Placement(frozenset(), place(self, call).same_as)


def _conflicts_unseen(sent_before: Any) -> Callable[..., Any]:
    def planted_one(self: Any, turn: int, asked: Any) -> bool:
        known = self._keys.answered.get((turn, asked.index))
        if known is None:
            return bool(sent_before(self, turn, asked))
        self._c.emit(Answer(known.answer))
        return True

    return planted_one


# ------------------------------------------------------------ books


def _counts_joined_as_ready(add: Any) -> Callable[..., Any]:
    def planted_one(self: Any, entry: Any) -> None:
        add(self, replace(entry, outcome=Outcome.READY) if entry.outcome is Outcome.JOINED else entry)

    return planted_one


def _drops_lines(put: Any) -> Callable[..., Any]:
    def planted_one(self: Any, subject: str, data: bytes, line_id: str) -> None:
        if sum(line_id.encode()) % _LINES_DROPPED:
            put(self, subject, data, line_id)

    return planted_one


def _doubles_lines(put: Any) -> Callable[..., Any]:
    def planted_one(self: Any, subject: str, data: bytes, line_id: str) -> None:
        put(self, subject, data, line_id)
        put(self, subject, data, f"{line_id}-again")

    return planted_one


_SESSION: Final = "forerun.core.session"
_ORCHESTRATOR: Final = "forerun.orchestrator"

MUTANTS: Final = (
    Mutant("generations-unchecked", f"{_SESSION}.speculation:fresh", _without_marks),
    Mutant("shared-generations-unchecked", f"{_SESSION}.speculation:Speculations._commit_shared", _shared_unchecked),
    Mutant("memo-outlives-writes", f"{_SESSION}.lookup:fresh", _without_marks),
    Mutant("memo-never-too-old", f"{_SESSION}.lookup:fresh", _without_age),
    Mutant("end-of-write-uncounted", f"{_SESSION}.direct:Direct._bump_private", _returns(None)),
    Mutant("shared-write-uncounted", f"{_ORCHESTRATOR}.shared:SharedGenerations._bump", _does_nothing),
    Mutant("intent-not-journalled", f"{_SESSION}.direct:Direct.start", _intent_forgotten),
    Mutant("intent-after-start", f"{_SESSION}.direct:Direct.start", _intent_afterwards),
    Mutant("unrepeatable-retried", f"{_SESSION}.direct:Direct._may_retry", _retries_anything),
    Mutant("intents-forgotten-at-take-over", f"{_ORCHESTRATOR}.restore:History.unknown", _returns({})),
    Mutant("commit-twice", f"{_SESSION}.speculation:Speculations.close", _commits_twice),
    Mutant("discarded-delivered", f"{_SESSION}.speculation:Speculations._hand_over", _delivers_anything),
    Mutant("promotion-lost", f"{_ORCHESTRATOR}.workers:Workers.promote", _does_nothing),
    Mutant("cancellation-lost", f"{_ORCHESTRATOR}.runner:Runner._perform", _without_cancellations),
    Mutant("shadow-executes", f"{_SESSION}.proposals:Proposals._admit", _executes_in_shadow),
    Mutant("mode-of-session-ignored", f"{_ORCHESTRATOR}.opening:mode_of", _returns(Mode.EXACT)),
    Mutant("writes-run-ahead", f"{_SESSION}.admission:may_speculate", _returns(Decision(True, Reason.READ))),
    Mutant("taint-ignored", f"{_SESSION}.proposals:taint_of", _returns(())),
    Mutant("kill-switch-ignored", f"{_ORCHESTRATOR}.switch:Switch.off", _returns(None)),
    Mutant("place-not-returned", "forerun.core.governor:Purse.stopped", _returns(None)),
    Mutant("credit-not-returned", "forerun.core.governor:Purse.give_back", _returns(None)),
    Mutant("budget-ignored", "forerun.core.governor:Purse.refusal", _returns(None)),
    Mutant("key-order-in-identity", "forerun.core.identity:canonical", _in_the_order_of_keys),
    Mutant("principal-not-in-identity", f"{_ORCHESTRATOR}.preparation:identity_of", _without("principal")),
    Mutant("rights-not-in-identity", f"{_ORCHESTRATOR}.preparation:identity_of", _without("credential_scope")),
    Mutant("strangers-admitted", f"{_ORCHESTRATOR}.engine:_same_caller", _returns(None)),
    Mutant("epoch-not-raised", f"{_ORCHESTRATOR}.ownership:Ownership._next", _same_epoch),
    Mutant("old-owner-not-fenced", f"{_ORCHESTRATOR}.journal:Journal.__init__", _without_fence),
    Mutant("lost-race-merged", "forerun.sandbox.workspaces.workspace:Workspace._found", _never_behind),
    Mutant("merge-lost", "forerun.sandbox.workspaces.workspace:Workspace.merge", _merges_nothing),
    Mutant("late-effects-ignored", f"{_SESSION}.lingering:Lingering.touches", _returns(False)),
    Mutant("answers-not-journalled", f"{_ORCHESTRATOR}.journal:Journal.write", _without_answers),
    Mutant("barrier-ignored", f"{_SESSION}.calls:is_barrier", _returns(False)),
    Mutant("order-ignored", "forerun.core.order:Plan.place", _all_at_once),
    Mutant("key-conflict-unseen", f"{_SESSION}.calls:Calls._sent_before", _conflicts_unseen),
    Mutant("deadline-ignored", f"{_SESSION}.calls:Calls.next_time", _returns(None)),
    Mutant("outcome-miscounted", "forerun.core.ledger:Totals.add", _counts_joined_as_ready),
    Mutant("line-dropped", f"{_ORCHESTRATOR}.ledger:Outbox.put", _drops_lines),
    Mutant("line-doubled", f"{_ORCHESTRATOR}.ledger:Outbox.put", _doubles_lines),
)
"""All planted bugs."""

BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}
"""The same by name."""
