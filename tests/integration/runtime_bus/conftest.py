"""A real broker for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.runtime_bus.platforms import NatsPlatform


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsPlatform]:
    """A broker with everything declared."""
    platform = NatsPlatform(tmp_path / "broker")
    try:
        await platform.start()
        yield platform
    finally:
        await platform.close()
