"""The served toy pair at length: every drafter, depth and option."""

from __future__ import annotations

import pytest

from tests.integration.serving.conftest import Served
from tests.integration.serving.equality import check, check_rejection

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_100)]


async def test_every_drafter_depth_and_option(toy: Served) -> None:
    assert await check(toy, range(8), tokens=200, at_once=48) == []


async def test_two_thousand_tokens_of_every_drafter_and_option(toy: Served) -> None:
    assert await check(toy, (5,), tokens=2_000, at_once=48) == []


async def test_rejection_at_every_depth(toy: Served) -> None:
    assert await check_rejection(toy, range(1, 8), tokens=150) == []
