"""The level `pod` in a whole worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    FailedPrecondition,
)
from forerun.runtime.network import rpc_errors
from forerun.v1 import common_pb2, sandbox_pb2
from tests.integration.sandbox.runner_processes import (
    Authority,
    RunnerProcess,
    ended,
    runners,
)
from tests.integration.sandbox.test_commands import alive
from tests.integration.sandbox.test_service import Worker, running


@asynccontextmanager
async def worker_with(
    found: Sequence[RunnerProcess], authority: Authority, folder: Path, **settings: object
) -> AsyncIterator[Worker]:
    bus = MemoryBus(MemoryBroker(SystemClock()))
    more = {
        "isolation": "pod",
        "runners": ",".join(one.address for one in found),
        "runners_certificate_file": authority.folder / "tls.crt",
        "runners_key_file": authority.folder / "tls.key",
        "runners_ca_file": authority.folder / "ca.crt",
        "runners_wait_seconds": 2.0,
        "runners_kept": 0,
        **settings,
    }
    os.mkdir(folder)
    async with running(folder, bus, **more) as worker:  # type: ignore[arg-type]
        yield worker


async def test_a_worker_s_calls_run_in_runners(tmp_path: Path, authority: Authority) -> None:
    ahead = {"priority": sandbox_pb2.PRIORITY_SPECULATIVE}
    with runners(tmp_path / "runners", authority, 2) as found:
        async with worker_with(found, authority, tmp_path / "worker") as worker:
            described = await worker.stub.Describe(sandbox_pb2.DescribeRequest(), timeout=5.0)
            assert described.isolation == "pod"
            (pod,) = [level for level in described.levels if level.name == "pod"]
            assert pod.available
            assert "trial command ran in a runner" in pod.why
            assert "each command in it at level process" in pod.gives
            # Forks as at every other level: a merge shows, what was ahead does not before it.
            assert (await worker.sh("echo more >> file; cat file", fork="f1", merge_on_success=True))[
                0
            ] == "seeded\nmore\n"
            await worker.sh("echo ahead > ahead", fork="g1", **ahead)
            assert "No such file" in (await worker.sh("cat ahead"))[0]
            with rpc_errors():
                await worker.stub.MergeFork(
                    sandbox_pb2.MergeForkRequest(session="s1", fork="g1"), timeout=5.0, metadata=worker.metadata
                )
            assert (await worker.sh("cat ahead file"))[0] == "ahead\nseeded\nmore\n"
            await asyncio.gather(
                *(worker.sh(f"echo {n} > n{n}", fork=f"p{n}", merge_on_success=True) for n in range(4))
            )
            assert (await worker.sh("cat n?"))[0] == "0\n1\n2\n3\n"
            assert (await worker.sh("cat file", session="s2"))[0] == "seeded\n", "another session's workspace"
            # A time limit, and a session's end.
            _, late = await worker.sh("sleep 768", timeout_seconds=0.5)
            assert late.status == common_pb2.CALL_STATUS_TIMEOUT
            assert alive("sleep\x00768") == []
            # Nobody starts other runners here: the third session is told what to do.
            _, none = await worker.sh("true", session="s3")
            assert (none.status, none.not_started) == (common_pb2.CALL_STATUS_UNAVAILABLE, True)
            assert none.failure.reason == "NO_FREE_RUNNER"
            assert none.failure.metadata["setting"] == "FORERUN_SANDBOX_RUNNERS_WAIT_SECONDS"
            for session in ("s1", "s2", "s3"):
                await worker.stub.CloseSession(
                    sandbox_pb2.CloseSessionRequest(session=session), timeout=5.0, metadata=worker.metadata
                )
        for one in found:
            await one.over()


async def test_a_worker_refuses_to_start_without_its_level(tmp_path: Path, authority: Authority) -> None:
    from forerun.sandbox.runners import pool as module

    patch = pytest.MonkeyPatch()
    patch.setattr(module, "TRIAL_SECONDS", 0.3)
    with runners(tmp_path / "runners", authority, 1) as found:
        ended(found[0])
        try:
            with pytest.raises(FailedPrecondition, match=r"isolation is pod.*no command runs in a runner"):
                async with worker_with(found, authority, tmp_path / "worker"):
                    pass
        finally:
            patch.undo()


async def test_trusted_servers_and_stronger_wishes(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 1) as found:
        async with worker_with(found, authority, tmp_path / "trusting", trusted_servers="other, bench") as worker:
            assert str(tmp_path / "trusting" / "data") in (await worker.sh("pwd"))[0]
        assert found[0].process.poll() is None, "nobody has taken it"
