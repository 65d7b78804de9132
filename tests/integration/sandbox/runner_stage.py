"""Commands, pools and sessions for tests of runners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import grpc.aio
import pytest

from forerun.cli.credentials.certificates import Purpose, issue
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.sandbox.commands.runner import CommandPlan
from forerun.sandbox.demand import Demand
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.pool import Runners
from forerun.sandbox.runners.remote import Remote
from forerun.v1 import runner_pb2_grpc
from tests.integration.sandbox.runner_processes import (
    AS_IN_A_POD,
    Authority,
    RunnerProcess,
)
from tests.integration.sandbox.test_commands import alive

CLAIM = b"c" * 32
ANN, BOB, EVE = Owner("acme", "s1"), Owner("acme", "s2"), Owner("acme", "s3")
in_a_pod = pytest.mark.skipif(not AS_IN_A_POD, reason="needs root, unshare and setpriv: a process namespace of its own")


def plan(
    script: str, workspace: Path | None = None, owner: Owner = ANN, *, speculative: bool = False, **limits: float
) -> CommandPlan:
    bounds = CommandLimits(**{"pids": 64, "wall_seconds": 20.0, **limits})  # type: ignore[arg-type]
    bind = None if workspace is None else Bind(str(workspace))
    return CommandPlan(("/bin/sh", "-c", script), {}, bind, (), None, bounds, owner, Demand(not speculative))


@asynccontextmanager
async def taken(runner: RunnerProcess, authority: Authority) -> AsyncIterator[Remote]:
    remote = await Remote.take(runner.address, authority.worker_tls, CLAIM)
    try:
        yield remote
    finally:
        await remote.end()


class Addressed(Protocol):
    """A runner that can be found."""

    @property
    def address(self) -> str: ...


@asynccontextmanager
async def pool(
    found: Sequence[Addressed],
    authority: Authority,
    *,
    wait: float = 1.0,
    idle: float = 60.0,
    kept: int = 0,
    sweeps: bool = True,
) -> AsyncIterator[Runners]:
    clock, tasks = SystemClock(), TaskScope("test", metrics=Metrics("test"))

    async def discover() -> list[str]:
        return [one.address for one in found]

    made = Runners(
        discover, authority.worker_tls, clock=clock, ids=SystemIds(clock), tasks=tasks, wait_seconds=wait,
        idle_seconds=idle, kept=kept,
    )  # fmt: skip
    if sweeps:
        made.start()
    try:
        yield made
    finally:
        await made.close()
        await tasks.stop(1.0)


@asynccontextmanager
async def served(authority: Authority, servicer: runner_pb2_grpc.RunnerServiceServicer) -> AsyncIterator[str]:
    """A runner with a certificate of its own that is not ours; its address."""
    pair = issue(authority.pair, ["127.0.0.1"], datetime.now(UTC), purposes=(Purpose.SERVER,))
    server = grpc.aio.server()
    runner_pb2_grpc.add_RunnerServiceServicer_to_server(servicer, server)
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(pair.key, pair.certificate)], root_certificates=authority.pair.certificate, require_client_auth=True
        ),
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0.1)


async def begun(where: str) -> None:
    """A command with this in its arguments runs."""
    for _ in range(500):
        if alive(where):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the command did not begin")


def runs(one: RunnerProcess, where: str) -> bool:
    """A command with this in its arguments runs below the runner; others of its children are none of ours."""
    pending = [one.pid]
    while pending:
        pid = pending.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            if where.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
            for task in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return False
