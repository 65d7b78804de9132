"""Used runners are replaced; others stay."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from forerun.operator.engine.runner_pods import served
from forerun.operator.runner_pods import RunnerPods
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.virtual import run_virtual
from tests.unit.operator.fakes import Object, client, refused, said

NOW = 1_900_000_000.0
JUST_NOW, LONG_AGO = "2030-03-17T17:46:30Z", "2030-03-17T17:46:00Z"


def pod(
    container: dict[str, Any] | None, *, started: str = JUST_NOW, phase: str = "Running", **metadata: str
) -> Object:
    return {
        "metadata": {"name": "one", **metadata},
        "status": {"phase": phase, "startTime": started, "containerStatuses": [] if container is None else [container]},
    }


RUNS = {"state": {"running": {}}, "restartCount": 0}
ENDED = {"state": {"terminated": {"exitCode": 0}}, "restartCount": 0}
AGAIN = {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 0}}, "restartCount": 1}
KILLED = {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137}}, "restartCount": 1}
FORGOTTEN = {"state": {"running": {}}, "restartCount": 1}


@pytest.mark.parametrize(
    ("found", "over"),
    [
        (pod(RUNS), False),
        (pod(RUNS, started=LONG_AGO), False),
        (pod(None, phase="Pending"), False),
        (pod(ENDED), True),
        (pod(AGAIN), True),
        (pod(AGAIN, deletionTimestamp=JUST_NOW), False),
        (pod(KILLED, started=LONG_AGO), True),
        (pod(FORGOTTEN, started=LONG_AGO), True),
        # One that fails at its start would fail again: not in a tight circle.
        (pod(KILLED), False),
        (pod(None, phase="Failed"), True),
    ],
)
def test_a_pod_is_over_when_its_runner_has_ended_once(found: Object, over: bool) -> None:
    assert served([found], NOW) == (["one"] if over else [])


def test_only_a_leader_deletes_and_failures_are_counted() -> None:
    asked: list[str] = []
    failing = False

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        if failing:
            return refused(403, "Forbidden")
        if request.method == "GET":
            assert request.url.params["labelSelector"] == "a=b"
            return said({"items": [pod(ENDED), pod(RUNS, name="two")]})
        return refused(404, "NotFound")  # somebody else was faster

    async def main(clock: LoopClock, _: SeededIds) -> None:
        nonlocal failing
        leads = False
        metrics = Metrics("operator")

        def made(selector: str) -> RunnerPods:
            return RunnerPods(
                client(server), "here", selector, metrics=metrics, clock=clock, may_write=lambda: leads
            )  # fmt: skip

        await made("a=b").look()
        await made("").look()
        assert asked == []
        leads = True
        await made("a=b").look()
        assert asked == ["GET /api/v1/namespaces/here/pods", "DELETE /api/v1/namespaces/here/pods/one"]
        failing = True
        await made("a=b").look()
        await asyncio.sleep(0)

    run_virtual(main)
