"""`forerun models` against a real server: tables that are measured, configurations that the server reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.core.tokens.depth import StepTable
from forerun.runtime.errors import FailedPrecondition
from forerun.serving.profile import read_profile
from forerun.serving.render.repository import Link, place, render
from forerun.serving.server import HOME, Installation, Options, running
from tests.integration.serving.conftest import REPOSITORY


@pytest.mark.timeout(300)
def test_the_declared_times_of_the_toy_pair_are_measured(installation: Installation, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    command = [
        sys.executable, "-m", "forerun.cli.main", "models", "calibrate", "toy",
        "--quick", "--json", "--out", str(out), "--triton", str(REPOSITORY / HOME),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == json.loads(out.read_text())["rows"]
    table = StepTable.from_json(json.loads(out.read_text()))
    bucket = table.bucket("target", 16, 100)
    assert bucket is not None
    # 16 texts with 4 tokens each are 64 rows: 32 are free, each further one takes 0.6 ms.
    assert table.cells["target"][bucket].seconds[3] == pytest.approx(0.02 + 32 * 0.0006)
    assert table.cells["target+draft"][bucket].seconds[3] == pytest.approx(0.02 + 32 * 0.0006 + 3 * 0.002)


@pytest.mark.parametrize(
    ("profile", "lacks"),
    [("one-gpu", "unable to find backend library for backend 'vllm'"), ("several-gpus", "only in its image")],
)
async def test_a_real_server_reads_the_configurations_for_gpus_and_lacks_only_the_engine(
    installation: Installation, tmp_path: Path, profile: str, lacks: str
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    engine = "raise RuntimeError('only in its image')"
    files = {
        name: engine if isinstance(content, Link) else content
        for name, content in render(read_profile(profile), [(4, 3)], base=REPOSITORY).items()
    }
    place(files, repository).keep()
    async with running(installation, repository, tmp_path / "log", Options(stop_seconds=2.0)) as server:
        with pytest.raises(FailedPrecondition, match=lacks):
            await server.client.load("target")
        # A type that does not exist: the server says so before it looks for the engine.
        place({name: content.replace("TYPE_BOOL", "TYPE_NONE") for name, content in files.items()}, repository).keep()
        with pytest.raises(FailedPrecondition, match="failed to poll from model repository"):
            await server.client.load("target")
