"""A verifier that does not answer costs one wait, not one for every call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import Served
from forerun.verifier.service import VerificationServicer
from tests.integration.bounds.conftest import RULES
from tests.integration.cases.conftest import Play, Stage


def test_nothing_runs_ahead_while_the_verifier_is_silent_and_again_when_it_is_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = True
    plain = VerificationServicer.Certify

    async def certify(self: VerificationServicer, request: Any, context: Any) -> Any:
        if hanging:
            await asyncio.sleep(3600.0)
        return await plain(self, request, context)

    monkeypatch.setattr(VerificationServicer, "Certify", certify)

    async def scene(s: Stage) -> None:
        nonlocal hanging
        async with s.client.session("a") as session:

            async def call(number: int) -> tuple[float, Served]:
                """The seconds that a call takes whose prefetch would have run for one second."""
                await s.ahead(session, ("get", b'{"id":%d}' % number))
                await asyncio.sleep(1.0)
                began = s.now()
                result = await session.call_tool("get", {"id": number})
                assert result.json() == {"asked": {"id": number}}
                return round(s.now() - began, 1), result.served

            # The one that had joined when it fell silent waits for the verifier's two seconds.
            assert await call(1) == (1.0 + 2.0 + 2.0, Served.DIRECT)
            # From then on nothing is launched, and nobody waits, however long it takes.
            assert [await call(number) for number in range(2, 12)] == [(2.0, Served.DIRECT)] * 10
            assert len(s.tools.runs) == 12
            hanging = False
            await asyncio.sleep(5.0)
            assert [await call(number) for number in (20, 21)] == [(1.0, Served.JOINED)] * 2

    play(scene, RULES)
