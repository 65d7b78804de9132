"""The journal of one session: events in order, each append fenced by the session's last sequence.

A writer that finds somebody else's event after its own last one has been replaced, and stops. What the broker cannot
take now is owed and written when it is back; only events with a token make somebody wait, and not for ever. An event
that may be stored already stays owed, because what follows has to know its sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.core.session import Append, CallFinished, CallIntent, CallsAsked
from forerun.orchestrator.records import EventContext, to_event
from forerun.runtime.bus import EVENT_TYPE_HEADER, Bus, Message
from forerun.runtime.bus_errors import AppendUncertain, SequenceMismatch
from forerun.runtime.errors import ForerunError, Unavailable
from forerun.v1 import event_pb2

_LOG: Final = logging.getLogger(__name__)

OWNER_HEADER = "Forerun-Owner"
"""The replica that owns the session: candidates go there."""

_APPEND_SECONDS = 2.0
_TOKEN_SECONDS = 4.0
_RETRY_SECONDS = 0.1
_RETRY_MAX_SECONDS = 2.0


@dataclass(slots=True)
class _Owed:
    """One event to be written.

    Attributes:
        effect: The event. Its message is made when it is written, because whoever is answered now comes first.
        id: Of the event.
        at_seconds: When it happened.
        token: Who waits, if anybody still does.
        patience: Ends the wait.
        perhaps_stored: An append of it is under way or was not acknowledged.
        behind: Who waits for it and everything before it, by token: from which event on, and what ends the wait.
    """

    effect: Append
    id: str
    at_seconds: float
    token: int | None
    patience: asyncio.TimerHandle | None = None
    perhaps_stored: bool = False
    behind: dict[int, tuple[int, asyncio.TimerHandle]] = field(default_factory=dict)


def _at_once(callback: Callable[[], None]) -> None:
    callback()


class Journal:
    """Writes one session's events.

    Args:
        bus: Where to.
        subject: The session's subject.
        context: What every event says.
        acknowledged: Told (token, stored) for events that somebody waits for.
        lost: Called once when another owner has written.
        owner: This replica.
        sequence: Sequence of the subject's last message, 0 for a new session.

    Attributes:
        after_answers: Calls back when no answer waits for the client any more, or after a moment.
    """

    def __init__(
        self,
        bus: Bus,
        subject: str,
        context: EventContext,
        *,
        acknowledged: Callable[[int, bool], None],
        lost: Callable[[], None],
        owner: str,
        sequence: int = 0,
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._context = context
        self._acknowledged = acknowledged
        self._lost = lost
        self._headers = {OWNER_HEADER: owner}
        self._sequence = sequence
        self._queue: deque[_Owed] = deque()
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._space = asyncio.Event()
        self.after_answers: Callable[[Callable[[], None]], None] = _at_once
        self._finishing = False
        self._lost_answer = 0
        """Number of the latest event with an answer that will never be stored."""
        self.closed = False
        self.replaced = False

    @property
    def owed(self) -> int:
        """Events that are not stored yet."""
        return len(self._queue)

    async def room(self) -> None:
        """Waits while too much is owed: until then no more is taken from the client, which is pushed back by that."""
        while len(self._queue) >= limits.SESSION_INBOX_EVENTS and not self.closed:
            self._space.clear()
            await self._space.wait()

    def write(self, effect: Append) -> None:
        """Takes an event; returns at once."""
        if self.closed or len(self._queue) >= limits.OUTBOX_MESSAGES:
            self._missing(effect)
            if effect.token is not None:
                # Not at once: whoever writes is still performing effects.
                asyncio.get_running_loop().call_soon(self._acknowledged, effect.token, False)
            return
        context = self._context
        owed = _Owed(effect, effect.event_id or context.ids.uuid7(), context.clock.now(), effect.token)
        if effect.token is not None:
            owed.patience = asyncio.get_running_loop().call_later(_TOKEN_SECONDS, self._give_up_waiting, owed)
        self._queue.append(owed)
        self._idle.clear()
        if effect.token is None and isinstance(effect.event, CallsAsked | CallFinished):
            # A turn later it is known what is answered now; that comes first, which an append beside it would delay.
            asyncio.get_running_loop().call_soon(self.after_answers, self._more.set)
        else:
            self._more.set()

    def tell_stored(self, token: int, since: int) -> None:
        """Acknowledges when everything that was taken so far is stored: soon, where nothing is owed.

        Never, where an answer in the event with the number `since` or in one after it cannot be.
        """
        loop = asyncio.get_running_loop()
        if self.closed or not self._queue:
            loop.call_soon(self._acknowledged, token, not (self.closed or self._lost_since(since)))
            return
        last = self._queue[-1]
        last.behind[token] = since, loop.call_later(_TOKEN_SECONDS, self._give_up_behind, last, token)
        self._more.set()

    async def run(self) -> None:
        """Writes until cancelled, replaced, or finished."""
        while not self.closed:
            if self._queue:
                await self._write_first()
                continue
            self._idle.set()
            if self._finishing:
                self.closed = True
                return
            self._more.clear()
            await self._more.wait()

    def finish(self) -> None:
        """Nothing more will be written: `run` ends when what is owed is stored."""
        self._finishing = True
        self._more.set()

    async def drain(self, timeout_seconds: float) -> bool:
        """Waits until everything is stored; False when the time was not enough."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return not self._queue

    async def _write_first(self) -> None:
        owed = self._queue[0]
        wait = _RETRY_SECONDS
        while not self._void(owed):
            uncertain, owed.perhaps_stored = owed.perhaps_stored, True
            try:
                self._sequence = await self._append(owed)
            except SequenceMismatch as error:
                stored = await self._stored_before(owed) if uncertain else False
                if stored is None and error.actual is None:
                    # The broker still replicates the first try, and refuses a second one beside it.
                    await asyncio.sleep(wait)
                    wait = min(_RETRY_MAX_SECONDS, wait * 2)
                    continue
                if not stored:
                    self._replaced()
                    return
            except Unavailable as error:
                owed.perhaps_stored = uncertain or isinstance(error, AppendUncertain)
                await asyncio.sleep(wait)
                wait = min(_RETRY_MAX_SECONDS, wait * 2)
                continue
            except Exception as error:
                # It can never be stored (too large, stream full, or a fault of ours): the next one may be. Nobody
                # knows when a fault came.
                _LOG.error(
                    "an event was not written into its session's journal",
                    exc_info=not isinstance(error, ForerunError),
                    extra={"fields": {"error.type": getattr(error, "reason", type(error).__name__)}},
                )
                perhaps = uncertain or not isinstance(error, ForerunError)
                self._done(owed, stored=perhaps and await self._stored_before(owed) is True)
                return
            waited_for = owed.token is not None or bool(owed.behind)
            self._done(owed, stored=True)
            if waited_for:
                await asyncio.sleep(0)  # what waited goes on before the next event is written
            return
        self._done(owed, stored=False)

    async def _append(self, owed: _Owed) -> int:
        """Makes the event's message and appends it; its sequence."""
        effect = owed.effect
        message = to_event(self._context, effect.number, effect.event, event_id=owed.id, at_seconds=owed.at_seconds)
        await self._large_to_store(message)
        return await self._bus.append(
            self._subject,
            message.SerializeToString(),
            headers=self._headers | {EVENT_TYPE_HEADER: message.WhichOneof("event") or ""},
            # Without a message id: the sequence keeps doubles out, and the broker would hold every id of its
            # dedupe window in memory, which at a few hundred events a second is most of what it holds.
            expected_last_sequence=self._sequence,
            timeout_seconds=_APPEND_SECONDS,
        )

    async def _stored_before(self, owed: _Owed) -> bool | None:
        """Whether the event after our last one is this one, whose acknowledgement was lost; None: none is there."""
        following: list[Message] | None = None
        while following is None:
            try:
                following = await self._bus.read(self._subject, after_sequence=self._sequence, limit=1)
            except Unavailable:
                await asyncio.sleep(_RETRY_SECONDS)
        if not following:
            return None
        if event_pb2.SessionEvent.FromString(following[0].data).id != owed.id:
            return False
        self._sequence = following[0].sequence or self._sequence
        return True

    def _give_up_waiting(self, owed: _Owed) -> None:
        """Whoever waits has waited long enough. What was only announced does not happen; everything else stays owed."""
        token, owed.token = owed.token, None
        if token is not None:
            self._acknowledged(token, False)

    def _give_up_behind(self, owed: _Owed, token: int) -> None:
        del owed.behind[token]
        self._acknowledged(token, False)

    async def _large_to_store(self, message: event_pb2.SessionEvent) -> None:
        """An observation above the in-line limit goes to the object store and travels by digest."""
        if message.WhichOneof("event") != "call_finished":
            return
        observation = message.call_finished.observation
        if len(observation.content) > limits.INLINE_OBSERVATION_BYTES:
            await self._bus.objects("results").put(observation.content, self._context.tenant)
            observation.content = b""

    def _void(self, owed: _Owed) -> bool:
        """It only says what is about to happen, and that does not: it comes too late, or an answer before it is lost.

        Where that call ran, the next owner would execute the one of the lost answer after it.
        """
        if not isinstance(owed.effect.event, CallIntent) or owed.perhaps_stored:
            return False
        return owed.token is None or self._lost_since(owed.effect.since)

    def _missing(self, effect: Append) -> None:
        if isinstance(effect.event, CallFinished):
            self._lost_answer = max(self._lost_answer, effect.number)

    def _lost_since(self, since: int | None) -> bool:
        return since is not None and self._lost_answer >= since

    def _done(self, owed: _Owed, *, stored: bool) -> None:
        if not stored:
            self._missing(owed.effect)
        self._queue.popleft()
        self._space.set()
        self._tell(owed, stored=stored)
        self._tell_behind(owed, stored=stored)

    def _tell(self, owed: _Owed, *, stored: bool) -> None:
        if owed.patience is not None:
            owed.patience.cancel()
        token, owed.token = owed.token, None
        if token is not None:
            self._acknowledged(token, stored)

    def _tell_behind(self, owed: _Owed, *, stored: bool) -> None:
        behind, owed.behind = owed.behind, {}
        for token, (since, patience) in behind.items():
            patience.cancel()
            self._acknowledged(token, stored and not self._lost_since(since))

    def _replaced(self) -> None:
        self.closed = self.replaced = True
        waiting, self._queue = self._queue, deque()
        self._idle.set()
        self._space.set()
        # What a tool has answered still reaches its agent. What has not begun is the new owner's: it must not end here.
        for owed in waiting:
            if not isinstance(owed.effect.event, CallIntent):
                self._tell(owed, stored=False)
        self._lost()
        for owed in waiting:
            self._tell(owed, stored=False)
            self._tell_behind(owed, stored=False)
