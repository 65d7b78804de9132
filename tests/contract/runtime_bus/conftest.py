"""Every test of this folder that takes `platform` runs on both buses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.runtime_bus.platforms import MemoryPlatform, NatsPlatform, Platform


@pytest.fixture(params=["memory", "nats"])
async def platform(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Platform]:
    if request.param == "memory":
        memory = MemoryPlatform()
        yield memory
        await memory.close()
        return
    real = NatsPlatform(tmp_path / "broker")
    try:
        await real.start()
        yield real
    finally:
        await real.close()
