"""Keeps the coupled models of a server answering: real probes, healing of what died, and safe switches of generations.

Readiness as the server reports it is no evidence: the process of a model can be dead while the server says ready, and
loading an unchanged model again does nothing. So a probe is an inference, and healing is to end the process, unload and
load: the server waits for what a process is doing, and one that hangs is never done.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.runtime.kserve import Inference, KServeClient, StreamBounds, Tensor
from forerun.serving.probes import LOADED_ANEW, Ask, Health, Probe, asks_of
from forerun.serving.render.coupled import CHAT, DRAFT, SERVED, TARGET
from forerun.serving.render.repository import Files, place
from forerun.serving.reporting import exposition, role_of
from forerun.serving.watching import Watch

_DRAIN_POLL_SECONDS: Final = 0.05
_ERASE_SECONDS: Final = 10.0
_GONE: Final = ("", "UNAVAILABLE")


class Keeper:
    """Watches over the coupled models of one server.

    Args:
        client: Asks it.
        repository: Its model repository.
        probe_seconds: Until a probe counts as busy.
        drain_seconds: A generation that was replaced has so long to end its texts.
        watch: What else is seen of the server; None sees nothing hang, and ends no process.
    """

    def __init__(
        self,
        client: KServeClient,
        repository: Path,
        *,
        probe_seconds: float = 5.0,
        drain_seconds: float = 120.0,
        watch: Watch | None = None,
    ) -> None:
        self._client = client
        self._repository = repository
        self._probe_seconds = probe_seconds
        self._drain_seconds = drain_seconds
        self._models: tuple[str, ...] = ()
        self._asks: Mapping[str, Ask] = {}
        self._versions: Mapping[str, str] = {}
        self._watch = Watch() if watch is None else watch
        # What is loaded changes in one place at a time; generations drain beside the checks.
        self._changing = asyncio.Lock()
        self._reloads: Counter[tuple[str, str]] = Counter()

    @property
    def healed(self) -> int:
        """Models that were loaded anew."""
        return self._reloads.total()

    def metrics(self) -> str:
        """What this has to say to Prometheus, in its text format."""
        stalled: dict[str, float] = {}
        for model in self._models:
            role = role_of(model)
            stalled[role] = max(stalled.get(role, 0.0), self._watch.seconds(model))
        return exposition(self._reloads, stalled)

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
        async with self._changing:
            old = self._models
            await self._load(models, old, files)
            self._models, self._asks = models, asks_of(files)
            self._versions = {model: _version(files, model) for model in models}
        if old and SERVED in models:
            await self._drained(self._versions[SERVED])
        async with self._changing:
            for model in old:
                if model not in models:
                    await self._client.unload(model)
                    shutil.rmtree(self._repository / model, ignore_errors=True)

    async def _load(self, models: Sequence[str], old: Sequence[str], files: Files) -> None:
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

    async def check(self) -> list[Probe]:
        """Probes every model, and loads those anew whose process is gone or hangs. What was found before healing.

        A generation that is being loaded meanwhile, which takes minutes, holds up nothing but healing.

        Raises:
            ServerHung: Not the models but the server has not answered for too long.
            ForerunError: The server does not answer now, or a model could not be loaded anew.
        """
        found, asks = [], self._asks
        for model in self._models:  # the loop comes last: by then what it needs is healed, and it may be well
            probe = await self._watch.judge(await asks[model].probe(self._client, self._probe_seconds), asks)
            if probe.health in LOADED_ANEW:
                async with self._changing:
                    if model not in self._models:
                        continue  # replaced meanwhile
                    probe = await self._healed(model)
            found.append(probe)
        return found

    async def _healed(self, model: str) -> Probe:
        """Loads a model anew, unless somebody has done so. What was found before."""
        probe = await self._watch.judge(await self.probe(model), self._asks)
        if probe.health not in LOADED_ANEW:
            return probe
        if probe.health is not Health.ABSENT:
            # A process that was stopped counts as dead to the server, and would keep its memory for ever.
            self._watch.end(model, self._versions[model])
            await self._client.unload(model)
        await self._client.load(model)
        self._reloads[role_of(model), probe.health.value] += 1
        self._watch.begin_anew()
        return probe

    async def erase(self, tenant: str, erasure: str) -> Mapping[str, int]:
        """Makes the loop forget a tenant, in memory and on disk; what is gone: `histories`, `tokens` and `files`.

        A generation that is being loaded is waited for: it may have read what has to go. One that only ends its texts
        hears of it from the orders.

        Raises:
            ForerunError: The loop does not answer now, or nothing is loaded yet.
        """
        async with self._changing:
            if not self._models:
                raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "no model is loaded yet")
            if SERVED not in self._models:
                return {}  # engines keep nothing of ours
            options = json.dumps({"tenant": tenant, "erase": True, "erasure": erasure}).encode()
            inputs = [Tensor("PROMPT", "INT32", [0]), Tensor("OPTIONS", "BYTES", [options])]
            asked = Inference(model=SERVED, inputs=inputs, id="erase")
            gone: dict[str, int] = {}
            async for response in self._client.stream(asked, StreamBounds(first_seconds=_ERASE_SECONDS)):
                (event,) = response.tensors["EVENT"].values
                assert isinstance(event, bytes)
                gone |= json.loads(event)["erased"]
            if not gone:
                raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "the loop has not said that it forgot the tenant")
            return gone

    async def probe(self, model: str) -> Probe:
        """Asks a model for the smallest real inference."""
        return await self._asks[model].probe(self._client, self._probe_seconds)

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


def _in_order(models: set[str]) -> tuple[str, ...]:
    """Loading order: what others need comes first."""
    roles = (TARGET, DRAFT, CHAT, SERVED)
    return tuple(sorted(models, key=lambda name: (roles.index(name.partition("-")[0]), name)))


def _version(files: Files, model: str) -> str:
    (version,) = {name.split("/")[1] for name in files if name.startswith(f"{model}/") and name.count("/") >= 2}
    return version
