"""The served toy pair at length: 2,000 tokens of every drafter, depth and option."""

from __future__ import annotations

import pytest

from tests.integration.serving.conftest import Served
from tests.integration.serving.equality import check, check_rejection

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_100)]


@pytest.mark.parametrize("depth", range(8))
async def test_two_thousand_tokens_of_every_drafter_and_option(toy: Served, depth: int) -> None:
    assert await check(toy, (depth,), tokens=2_000, at_once=48) == []


async def test_rejection_at_every_depth(toy: Served) -> None:
    assert await check_rejection(toy, range(1, 8), tokens=150) == []
