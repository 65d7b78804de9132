"""Makes the functions that planted bugs put in the place of the production's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from forerun.core.freshness import Recorded
from forerun.core.order import BatchCall, Placement
from forerun.core.outcomes import CallStatus, Mode, Outcome
from forerun.core.plan.model import Early
from forerun.core.session import CancelExecution
from forerun.core.session.effects import Answer
from forerun.core.session.events import CallFinished, CallIntent
from forerun.core.session.speculated import Stage

Planting = Callable[[Any], Callable[..., Any]]
"""Makes the function that is planted from the one that stands there."""

_LINES_DROPPED: Final = 5


def returns(value: object) -> Planting:
    return lambda _: lambda *_, **__: value


def does_nothing(_: object) -> Callable[..., Any]:
    async def nothing(*_: object, **__: object) -> None:
        return None

    return nothing


# ------------------------------------------------------------ freshness


def without_marks(fresh: Any) -> Callable[..., Any]:
    return lambda _was, *rest: fresh(Recorded({}), *rest)


def without_age(fresh: Any) -> Callable[..., Any]:
    return lambda was, generations, age, _limit: fresh(was, generations, age, None)


def shared_unchecked(commit: Any) -> Callable[..., Any]:
    return lambda self, speculation, outcome, _: commit(self, speculation, outcome, dict(speculation.shared))


# ------------------------------------------------------------ calls that may not be repeated


def intent_afterwards(start: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any) -> None:
        if call.prepared.repeatable:
            start(self, call)
            return
        call.stage = type(call.stage).PREPARING
        self._announce(call, True)
        self._c.append(CallIntent(call.id, call.prepared.digest))

    return planted_one


def intent_forgotten(start: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any) -> None:
        call.stage = type(call.stage).PREPARING
        self._announce(call, True)

    return planted_one


def retries_anything(may_retry: Any) -> Callable[..., Any]:
    def planted_one(self: Any, call: Any, result: Any) -> bool:
        if result.status is CallStatus.OUTCOME_UNKNOWN:
            result = replace(result, status=CallStatus.UNAVAILABLE)
        return bool(may_retry(self, call, replace(result, not_started=True)))

    return planted_one


# ------------------------------------------------------------ speculations


def commits_twice(close: Any) -> Callable[..., Any]:
    def planted_one(self: Any, speculation: Any, outcome: Outcome, reason: str) -> None:
        close(self, speculation, outcome, reason)
        if outcome.hit:
            speculation.stage = Stage.READY
            self._open[speculation.id] = self._by_identity[speculation.prepared.identity] = speculation

    return planted_one


def delivers_anything(hand_over: Any) -> Callable[..., Any]:
    def planted_one(speculation: Any, outcome: Outcome | None) -> None:
        hand_over(speculation, Outcome.READY if outcome is None and speculation.result is not None else outcome)

    return planted_one


def without_cancellations(perform: Any) -> Callable[..., Any]:
    return lambda self, effect: None if isinstance(effect, CancelExecution) else perform(self, effect)


def executes_in_shadow(admit: Any) -> Callable[..., Any]:
    def planted_one(self: Any, *rest: object) -> None:
        mode = self._c.mode
        self._c.mode = Mode.EXACT if mode is Mode.SHADOW else mode
        admit(self, *rest)
        self._c.mode = mode

    return planted_one


def never_behind(find: Any) -> Callable[..., Any]:
    def planted_one(self: Any, fork: str) -> Any:
        found = find(self, fork)
        found.base_version = self.version
        return found

    return planted_one


def merges_nothing(_merge: Any) -> Callable[..., Any]:
    async def planted_one(self: Any, *_: object, **__: object) -> int:
        return int(self.version)

    return planted_one


def without_answers(write: Any) -> Callable[..., Any]:
    def planted_one(self: Any, effect: Any) -> None:
        if effect.token is not None or not isinstance(effect.event, CallFinished):
            write(self, effect)

    return planted_one


# ------------------------------------------------------------ whose it is


def without(*names: str) -> Planting:
    return lambda identity_of: lambda **given: identity_of(**given | dict.fromkeys(names, ""))


def in_the_order_of_keys(_canonical: Any) -> Callable[..., Any]:
    return lambda value, *_, **__: repr(value).encode()


def same_epoch(raised: Any) -> Callable[..., Any]:
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


def without_fence(make: Any) -> Callable[..., Any]:
    return lambda self, bus, *given, **named: make(self, _Unfenced(bus), *given, **named)


# ------------------------------------------------------------ order, keys, time


def all_at_once(place: Any) -> Callable[..., Any]:
    return lambda self, call: Placement(frozenset(), place(self, call).same_as)


def conflicts_unseen(sent_before: Any) -> Callable[..., Any]:
    def planted_one(self: Any, turn: int, asked: Any) -> bool:
        known = self._keys.answered.get((turn, asked.index))
        if known is None:
            return bool(sent_before(self, turn, asked))
        self._c.emit(Answer(known.answer))
        return True

    return planted_one


# ------------------------------------------------------------ books


def counts_joined_as_ready(add: Any) -> Callable[..., Any]:
    def planted_one(self: Any, entry: Any) -> None:
        add(self, replace(entry, outcome=Outcome.READY) if entry.outcome is Outcome.JOINED else entry)

    return planted_one


def drops_lines(put: Any) -> Callable[..., Any]:
    def planted_one(self: Any, subject: str, data: bytes, line_id: str) -> None:
        if sum(line_id.encode()) % _LINES_DROPPED:
            put(self, subject, data, line_id)

    return planted_one


def doubles_lines(put: Any) -> Callable[..., Any]:
    def planted_one(self: Any, subject: str, data: bytes, line_id: str) -> None:
        put(self, subject, data, line_id)
        put(self, subject, data, f"{line_id}-again")

    return planted_one


# ------------------------------------------------------------ races


def loser_runs_on(finished: Any) -> Callable[..., Any]:
    def planted_one(self: Any, execution: str, result: Any) -> bool:
        before = set(self._racing._lost)
        ours = bool(finished(self, execution, result))
        for loser in set(self._racing._lost) - before:
            self._c.effects.remove(CancelExecution(loser))
        return ours

    return planted_one


def loser_unbilled(finished: Any) -> Callable[..., Any]:
    def planted_one(self: Any, execution: str, result: Any) -> bool:
        return self._lost.pop(execution, None) is not None

    return planted_one


def only_once(_executions: Any) -> Any:
    return property(lambda self: min(1, self.attempts))


# ------------------------------------------------------------ plans


def conflicts_unordered(ordering: Any) -> Callable[..., Any]:
    def planted_one(*given: Any, **named: Any) -> Any:
        ordered = ordering(*given, **named)
        return replace(ordered, call=BatchCall(same=ordered.call.same))

    return planted_one


def after_ignored(place: Any) -> Callable[..., Any]:
    def planted_one(self: Any, checked: Any, *rest: Any) -> None:
        place(self, replace(checked, task=replace(checked.task, after=())), *rest)

    return planted_one


def never_held(offer: Any) -> Callable[..., Any]:
    def planted_one(self: Any, node: Any) -> None:
        options, self._options = self._options, replace(self._options, early=Early.ALL)
        offer(self, node)
        self._options = options

    return planted_one
