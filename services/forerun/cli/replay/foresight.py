"""Stand-ins for the predictor: one that knows the recorded future, and one that is always wrong.

They listen where the predictor listens, speak when it speaks (at the start of a model request), and their candidates
pass through the same governor, budget, slots and certification. What perfect prediction saves is the ceiling of any
predictor of this machinery; what an always wrong one costs is the price of being wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forerun.cli.replay.arms import REHEARSAL
from forerun.cli.replay.positions import Recording
from forerun.cli.replay.toolserver import label_of
from forerun.cli.replay.traces import RecordedCall, Step
from forerun.runtime import subjects
from forerun.runtime.bus import EVENT_TYPE_HEADER, Bus, Message, Subscription
from forerun.v1 import common_pb2, event_pb2, prediction_pb2

VERSION = "replay-foresight-1"
_CERTAIN_EVIDENCE = 1e9
_OWNER_HEADER = "Forerun-Owner"
_PENDING_MESSAGES = 8_192

Foresee = Callable[[Step], Sequence[RecordedCall]]
"""The calls that are predicted for a step, given what it really asks for."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What an arm is told of its future.

    Attributes:
        foresee: What is predicted for the scored sessions.
        rehearsed: What was predicted for the same sessions when they ran once before, unscored. None: they did not.
    """

    foresee: Foresee
    rehearsed: Foresee | None = None

    def told(self, arm: str, recordings: Sequence[Recording]) -> dict[str, tuple[Recording, Foresee]]:
        """The sessions of the arm, and of its rehearsal, by their labels."""
        told = {label_of(arm, number): (one, self.foresee) for number, one in enumerate(recordings)}
        if self.rehearsed is not None:
            told |= {label_of(REHEARSAL, number): (one, self.rehearsed) for number, one in enumerate(recordings)}
        return told


def perfect(step: Step) -> Sequence[RecordedCall]:
    """Exactly what the step asks for."""
    return step.calls


def all_wrong(step: Step) -> Sequence[RecordedCall]:
    """The step's tools with arguments that nobody asks for."""
    return [
        RecordedCall(call.tool, b'{"forerun_never_asked":true}', "", False, call.seconds, "") for call in step.calls
    ]


class Foresight:
    """Publishes candidates for recorded sessions.

    Args:
        bus: Where sessions are heard and candidates are published.
        told: The sessions and what is predicted for them, by their labels.
    """

    def __init__(self, bus: Bus, told: Mapping[str, tuple[Recording, Foresee]]) -> None:
        self._bus = bus
        self._told = told
        self._labels: dict[str, str] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Starts to listen."""
        self._subscription = await self._bus.subscribe(
            f"{subjects.PREFIX}.event.>", self._hear, pending_messages=_PENDING_MESSAGES
        )

    async def stop(self) -> None:
        """Stops listening."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _hear(self, message: Message) -> None:
        kind = message.headers.get(EVENT_TYPE_HEADER)
        if kind not in {"opened", "model_started", "closed"}:
            return
        event = event_pb2.SessionEvent.FromString(message.data)
        if kind == "opened":
            self._labels[event.session] = event.opened.label
        elif kind == "closed":
            self._labels.pop(event.session, None)
        else:
            await self._predict(event, message.headers.get(_OWNER_HEADER, ""))

    async def _predict(self, event: event_pb2.SessionEvent, owner: str) -> None:
        told = self._told.get(self._labels.get(event.session, ""))
        if told is None:
            return
        recording, foresee = told
        step = recording.session.steps[event.model_started.turn - 1]
        candidates = prediction_pb2.Candidates(
            tenant=event.tenant,
            session=event.session,
            based_on=event.number,
            candidates=[_candidate(rank, call) for rank, call in enumerate(foresee(step), start=1)],
            expected_model_seconds=step.model_seconds,
            predictor_version=VERSION,
        )
        await self._bus.notify(subjects.candidates(owner), candidates.SerializeToString())


def _candidate(rank: int, call: RecordedCall) -> prediction_pb2.Candidate:
    return prediction_pb2.Candidate(
        action=common_pb2.Action(tool=call.tool, arguments=call.arguments),
        probability=1.0,
        evidence=_CERTAIN_EVIDENCE,
        rank=rank,
        site=f"foresight/{call.tool}",
        explanation="the recorded future",
        expected_seconds=call.seconds,
    )
