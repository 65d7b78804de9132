"""The operator as a whole, before an API server that says yes: what it does by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from forerun.operator.service import Operator
from forerun.operator.settings import DefaultPoolSettings, OperatorSettings
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import Failure
from forerun.runtime.virtual import run_virtual
from tests.unit.operator.fakes import Object, client, refused, said


class _Silence(httpx.AsyncByteStream):
    """A watch in which nothing happens."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(30.0)
        yield b""


class Server:
    """Has nothing, takes everything, and remembers what was applied and which rights were asked about."""

    def __init__(self) -> None:
        self.applied: dict[str, Object] = {}
        self.rights: set[tuple[str, str]] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else {}
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            self.rights.add((asked["resource"], asked["verb"]))
            return said({"status": {"allowed": True}})
        if request.method == "PATCH":
            self.applied[path] = body
            return said(body)
        if request.method in ("POST", "PUT"):
            return said(body)
        if "/leases/" in path or "/deployments/" in path:
            return refused(404, "NotFound")
        if request.url.params.get("watch") == "true":
            return httpx.Response(200, stream=_Silence())
        return said({"items": [], "metadata": {"resourceVersion": "1"}})


@pytest.mark.parametrize("asked", [True, False])
def test_it_makes_the_pool_that_its_settings_ask_for_and_asks_for_the_rights(asked: bool) -> None:
    pool = DefaultPoolSettings(name="forerun-sandbox", target="forerun-sandbox") if asked else DefaultPoolSettings()

    async def run(clock: LoopClock, ids: SeededIds) -> Server:
        server = Server()
        operator = Operator(
            OperatorSettings(namespaces="here", default_pool=pool), client(server),
            MemoryBus(MemoryBroker(clock), "operator"),
            metrics=Metrics("operator"), clock=clock, ids=ids, failed=Failure(),
        )  # fmt: skip
        await operator.start()
        await asyncio.sleep(5.0)
        await operator.stop(5.0)
        return server

    server = run_virtual(run)
    made = [path for path in server.applied if "/speculationpools/" in path]
    prefix = "/apis/forerun.dev/v1alpha1/namespaces/here/speculationpools"
    assert made == ([f"{prefix}/forerun-sandbox"] if asked else [])
    assert ("speculationpools", "delete") in server.rights
    assert (("speculationpools", "create") in server.rights) is asked
