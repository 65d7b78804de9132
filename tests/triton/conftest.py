"""`make test-triton`: real weights, and model servers that break, hang and are replaced, all on a real Triton."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forerun.serving.profile import read_profile
from forerun.serving.server import Installation
from tests.integration.serving.conftest import REPOSITORY, Served, installation, serving, toy

__all__ = ["installation", "toy"]


@pytest.fixture(scope="session")
def weights() -> Path:
    """The small real model, fetched where it is not there yet."""
    fetch = REPOSITORY / "scripts" / "models" / "fetch"
    done = subprocess.run([str(fetch), "smollm2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(
    installation: Installation,
    weights: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Served]:
    async with serving(installation, tmp_path_factory.mktemp("real"), read_profile("cpu-test")) as served:
        yield served
