"""The pool that an installation's own settings ask for: made, kept, taken back; the size of a person stays."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from forerun.operator.default_pool import DefaultPool
from forerun.operator.settings import OperatorSettings
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.virtual import run_virtual
from tests.unit.operator.fakes import Object, client, refused, said

POOLS = "/apis/forerun.dev/v1alpha1/namespaces/here/speculationpools"
WANTED: dict[str, Any] = {
    "name": "forerun-sandbox",
    "target": "forerun-sandbox",
    "min_replicas": 2,
    "max_replicas": 9,
    "slots_per_replica": 12,
}


class Server:
    """Keeps pools as an API server does: an apply changes the fields that it holds, and fills in a default."""

    def __init__(self) -> None:
        self.pools: dict[str, Object] = {}
        self.asked: list[str] = []
        self.failing = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.failing:
            return refused(403, "Forbidden")
        name = request.url.path.rpartition("/")[2]
        if request.method == "DELETE":
            del self.pools[name]
            return said({"kind": "Status"})
        body = json.loads(request.content)
        assert request.headers["content-type"] == "application/apply-patch+yaml"
        found = self.pools.setdefault(name, {"metadata": {}, "spec": {"scaling": {"scaleDownSeconds": 300}}})
        found["metadata"] |= body["metadata"]
        found["spec"] |= {**body["spec"], "scaling": {**found["spec"]["scaling"], **body["spec"]["scaling"]}}
        return said(found)

    @property
    def now(self) -> list[Object]:
        return copy.deepcopy(list(self.pools.values()))


def settings(wanted: dict[str, Any] | None, **more: object) -> OperatorSettings:
    return OperatorSettings.model_validate(
        {"lease_name": "forerun-operator", **({} if wanted is None else {"default_pool": wanted}), **more}
    )


def live(main: Callable[[Server, Callable[..., DefaultPool]], Coroutine[Any, Any, None]]) -> None:
    """Runs under virtual time, with a server and a maker of keepers for it."""

    async def run(clock: LoopClock, _: SeededIds) -> None:
        server = Server()

        def keeper(wanted: dict[str, Any] | None = WANTED, *, leads: bool = True, **more: object) -> DefaultPool:
            return DefaultPool(
                client(server), settings(wanted, **more), "here",
                metrics=Metrics("operator"), clock=clock, may_write=lambda: leads,
            )  # fmt: skip

        await main(server, keeper)

    run_virtual(run)


def test_it_is_made_with_every_field_but_the_size_and_then_left_alone() -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        kept = keeper()
        await kept.look([])
        (pool,) = server.now
        assert pool["metadata"]["name"] == "forerun-sandbox"
        spec = pool["spec"]
        assert "replicas" not in spec, "the size follows the load, or is a person's"
        assert spec["target"] == {"kind": "Deployment", "name": "forerun-sandbox"}
        assert (spec["minReplicas"], spec["maxReplicas"], spec["scaling"]["slotsPerReplica"]) == (2, 9, 12)
        for _ in range(5):
            await asyncio.sleep(60.0)
            await kept.look(server.now)
        assert server.asked == [f"PATCH {POOLS}/forerun-sandbox"]

    live(main)


def test_what_others_changed_of_its_fields_is_put_right_and_the_rest_is_theirs() -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        kept = keeper()
        await kept.look([])
        spec = server.pools["forerun-sandbox"]["spec"]
        spec |= {"replicas": 7, "maxReplicas": 1, "speculation": {"maxSlots": 3}}
        await asyncio.sleep(60.0)
        await kept.look(server.now)
        assert spec["maxReplicas"] == 9
        assert (spec["replicas"], spec["speculation"]) == (7, {"maxSlots": 3})

    live(main)


def test_another_upgrade_changes_it() -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        await keeper().look([])
        await keeper({**WANTED, "max_replicas": 20}).look(server.now)
        assert server.pools["forerun-sandbox"]["spec"]["maxReplicas"] == 20

    live(main)


@pytest.mark.parametrize("wanted", [None, {**WANTED, "name": "other"}])
def test_one_that_is_not_asked_for_any_more_goes_and_nobody_elses(wanted: dict[str, Any] | None) -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        await keeper().look([])
        await keeper({**WANTED, "name": "of-another"}, lease_name="another-operator").look([])
        server.pools["by-hand"] = {"metadata": {"name": "by-hand", "namespace": "here"}, "spec": {}}
        elsewhere = copy.deepcopy(server.pools["forerun-sandbox"])
        elsewhere["metadata"] |= {"name": "elsewhere", "namespace": "there"}
        await keeper(wanted).look([*server.now, elsewhere])
        expected = {"of-another", "by-hand"} | ({wanted["name"]} if wanted else set())
        assert set(server.pools) == expected

    live(main)


def test_only_a_leader_writes() -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        await keeper(leads=False).look([])
        assert not server.asked

    live(main)


def test_a_server_that_refuses_is_asked_again_but_not_with_every_look() -> None:
    async def main(server: Server, keeper: Callable[..., DefaultPool]) -> None:
        kept, server.failing = keeper(), True
        for _ in range(20):
            await kept.look([])
            await asyncio.sleep(1.0)
        assert 2 <= len(server.asked) <= 4
        server.failing = False
        await asyncio.sleep(10.0)
        await kept.look([])
        assert set(server.pools) == {"forerun-sandbox"}

    live(main)


@pytest.mark.parametrize(
    ("wanted", "more", "said"),
    [
        ({**WANTED, "target": ""}, {}, "target"),
        ({**WANTED, "min_replicas": 10}, {}, "min_replicas"),
        (WANTED, {"namespaces": "one,two", "lease_namespace": "platform"}, "platform"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(wanted: dict[str, Any], more: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(wanted, **more)
