"""How a platform starts, does not start, and stops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from forerun.cli.up import Platform
from forerun.client import AsyncClient
from forerun.runtime.errors import FailedPrecondition, ForerunError
from tests.integration.up.processes import processes_of, until_gone


async def test_a_service_that_cannot_start_is_named_with_its_log(tmp_path: Path) -> None:
    platform = Platform(tmp_path, port=0, environment={"FORERUN_PREDICTOR_CANDIDATES": "many"})
    with pytest.raises(FailedPrecondition, match=r"(?s)predictor ended at its start.*FORERUN_PREDICTOR_CANDIDATES"):
        await platform.start()
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "run.json").exists()


async def test_a_wrong_policy_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("policies: [{name: x, mode: MODE_FAST}]")
    with pytest.raises(ForerunError, match="MODE_FAST"):
        await Platform(tmp_path / "data", file, port=0).start()
    assert processes_of(tmp_path) == []


async def test_the_command_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.main", "up", "--data", str(tmp_path), "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    seen = b""
    async with asyncio.timeout(90):
        while b"ready at" not in seen:
            line = await process.stdout.readline()
            assert line, seen.decode()
            seen += line
    address = seen.partition(b"ready at ")[2].partition(b";")[0].decode()
    async with AsyncClient(address, (tmp_path / "token").read_text().strip()) as client:
        assert (await client.get_totals()).calls == 0
        process.send_signal(signal.SIGINT)
        rest = await process.stdout.read()
    assert await process.wait() == 0, rest.decode()
    assert b"stopping" in rest
    await until_gone(tmp_path, 1.0)
    assert not (tmp_path / "run.json").exists()


async def test_check_says_what_is_missing(tmp_path: Path, unused_tcp_port: int) -> None:
    async def check(*arguments: str, **settings: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forerun.cli.main", "up", "--check", "--data", str(tmp_path), *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, **settings},
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode or 0, " ".join(output.decode().split())

    code, text = await check("--port", str(unused_tcp_port))
    assert code == 0, text
    for part in ("Python ok", "nats-server ok", f"{unused_tcp_port} is free", "isolation in use ok"):
        assert part in text
    code, text = await check("--port", "0", FORERUN_SANDBOX_ISOLATION="gvisor", FORERUN_SANDBOX_RUNSC="/absent")
    assert code == 3 and "isolation in use missing isolation is gvisor" in text and "`make gvisor`" in text
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", unused_tcp_port)
    (tmp_path / "broken.yaml").write_text("policies: 7")
    code, text = await check("--port", str(unused_tcp_port), "--policy", str(tmp_path / "broken.yaml"))
    server.close()
    assert code == 3 and "port missing" in text and "policy file missing" in text and "--port" in text
