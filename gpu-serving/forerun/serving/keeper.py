"""Keeps the coupled models of a server answering: real probes, healing of what died, and safe switches of generations.

Readiness as the server reports it is no evidence: the process of a model can be dead while the server says ready, and
loading an unchanged model again does nothing. So a probe is an inference, and healing is unload and load.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from forerun.runtime.errors import DeadlineExceeded, ErrorReason, ForerunError, NotFound, ResourceExhausted
from forerun.runtime.kserve import Inference, KServeClient, SequenceStep, StreamBounds, Tensor, backend_died
from forerun.serving.render.coupled import CHAT, DRAFT, SERVED, TARGET
from forerun.serving.render.repository import Files, place

_PROBE_SEQUENCE: Final = (1 << 62) + 1
"""Sequence of probes: far above those that loops count up."""

_DRAIN_POLL_SECONDS: Final = 0.05
_GONE: Final = ("", "UNAVAILABLE")

_LOOP_PROBE: Final = Inference(
    model=SERVED,
    inputs=[
        Tensor("PROMPT", "INT32", [1]),
        Tensor("OPTIONS", "BYTES", [b'{"max_tokens": 1, "speculate": false}']),
    ],
    id="probe",
)

_CHAT_PROBE: Final = Inference(
    model=CHAT,
    inputs=[Tensor("REQUEST", "BYTES", [b'{"messages": [{"role": "user", "content": "probe"}]}'])],
    id="probe",
)


class Health(StrEnum):
    """What a probe found."""

    ANSWERS = "answers"
    """It gave a result: everything it needs works."""
    BUSY = "busy"
    """It had no slot or no place in its queue in time: it works, and has too much to do."""
    DEAD = "dead"
    """Its process is gone. Only loading it anew helps."""
    ABSENT = "absent"
    """It is not loaded."""
    FAILS = "fails"
    """It answers with an error."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a model.

    Attributes:
        model: Its name.
        health: What was found.
        reason: In words, where it does not answer.
    """

    model: str
    health: Health
    reason: str = ""


class Keeper:
    """Watches over the coupled models of one server.

    Args:
        client: Asks it.
        repository: Its model repository.
        probe_seconds: Until a probe counts as busy.
        drain_seconds: A generation that was replaced has so long to end its texts.
    """

    def __init__(
        self, client: KServeClient, repository: Path, *, probe_seconds: float = 5.0, drain_seconds: float = 120.0
    ) -> None:
        self._client = client
        self._repository = repository
        self._probe_seconds = probe_seconds
        self._drain_seconds = drain_seconds
        self._models: tuple[str, ...] = ()
        self.healed = 0
        self.last_failure: ForerunError | None = None

    @property
    def models(self) -> Sequence[str]:
        """What has to answer, in the order of loading: the loop comes last, as it needs the others."""
        return self._models

    async def deploy(self, files: Files) -> None:
        """Makes a generation the one that is served, beside whatever is served now.

        New requests go to it from the moment that it is ready; texts of the old one end where they began. Where it
        cannot be loaded, the old one goes on serving, on disk too.

        Raises:
            ForerunError: It cannot be loaded; the message says why.
        """
        models = _in_order({name.partition("/")[0] for name in files})
        old = self._models
        replaced = place(files, self._repository)
        loaded: list[str] = []
        try:
            for model in models:
                await self._client.load(model)
                loaded.append(model)
        except BaseException:
            replaced.undo()
            for model in loaded:
                # What has served before goes on serving; what was new goes.
                await (self._client.load(model) if model in old else self._client.unload(model))
            raise
        replaced.keep()
        self._models = models
        version = _version(files)
        if old:
            await self._drained(version)
            for model in old:
                if model not in models:
                    await self._client.unload(model)
                    shutil.rmtree(self._repository / model, ignore_errors=True)

    async def check(self) -> list[Probe]:
        """Probes every model, and loads those anew whose process is gone. What was found before healing."""
        found = []
        for model in self._models:  # the loop comes last: by then what it needs is healed, and it may be well
            probe = await self.probe(model)
            found.append(probe)
            if probe.health is Health.DEAD:
                await self._client.unload(model)
            if probe.health in (Health.DEAD, Health.ABSENT):
                await self._client.load(model)
                self.healed += 1
        return found

    async def watch(self, *, interval_seconds: float) -> None:
        """Checks for ever. A check that fails is the next one's business."""
        while True:
            try:
                await self.check()
            except ForerunError as error:
                self.last_failure = error
            await asyncio.sleep(interval_seconds)

    async def probe(self, model: str) -> Probe:
        """Asks a model for the smallest real inference: one token after one token."""
        try:
            if model == SERVED:
                async for _ in self._client.stream(_LOOP_PROBE, StreamBounds(first_seconds=self._probe_seconds)):
                    pass
            else:
                asked = _CHAT_PROBE if model == CHAT else _stateful_probe(model)
                await self._client.infer(asked, seconds=self._probe_seconds)
        except ForerunError as error:
            return Probe(model, _health(error), error.message)
        return Probe(model, Health.ANSWERS)

    async def _drained(self, version: str) -> None:
        """Waits until no other version of the loop is loaded: its texts have ended."""
        try:
            async with asyncio.timeout(self._drain_seconds):
                while True:
                    loops = [one for one in await self._client.index() if one.name == SERVED]
                    if all(one.version == version or one.state in _GONE for one in loops):
                        return
                    await asyncio.sleep(_DRAIN_POLL_SECONDS)
        except TimeoutError:
            return  # what still runs fails when its target goes, with an error that says so


def _health(error: ForerunError) -> Health:
    if backend_died(error):
        return Health.DEAD
    if isinstance(error, NotFound) or "is not ready" in error.message or "no available versions" in error.message:
        return Health.ABSENT
    if isinstance(error, DeadlineExceeded | ResourceExhausted) or error.reason is ErrorReason.QUEUE_FULL:
        return Health.BUSY
    return Health.FAILS


def _stateful_probe(model: str) -> Inference:
    return Inference(
        model=model,
        inputs=[
            Tensor("TOKENS", "INT32", [1], (1, 1)),
            Tensor("CONTROL", "INT32", [0, 0, 1], (1, 3)),
            Tensor("OPTIONS", "BYTES", [b"{}"], (1, 1)),
        ],
        id="probe",
        sequence=SequenceStep(_PROBE_SEQUENCE, start=True, end=True),
    )


def _in_order(models: set[str]) -> tuple[str, ...]:
    """Loading order: what others need comes first."""
    roles = (TARGET, DRAFT, CHAT, SERVED)
    return tuple(sorted(models, key=lambda name: (roles.index(name.partition("-")[0]), name)))


def _version(files: Files) -> str:
    (version,) = {name.split("/")[1] for name in files if name.startswith(f"{SERVED}/") and name.count("/") == 2}
    return version
