"""What of an answer is in the ledger where its orchestrator goes before the answer has come."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from forerun.client import PlatformUnavailable, Scorer, Search
from forerun.v1 import ledger_pb2
from tests.integration.models.server import forever
from tests.integration.orchestrator.test_answers import ON, QUESTION, Stage, play


def test_a_replica_that_stops_in_order_writes_what_an_open_answer_has_cost(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        (server,) = stage.servers
        answers = stage.client.answers("a", session="session-1")
        task = asyncio.ensure_future(answers.generate("m", QUESTION, search=Search(count=3, scorer=Scorer.votes())))
        await server.wait_for(lambda: len(server.asked) == 3)
        lines = await stage.lines("session-1")
        assert Counter(line.kind for line in lines) == {ledger_pb2.LEDGER_KIND_CANDIDATE: 3}
        assert all(line.input_tokens for line in lines), "the prompts were read"
        with pytest.raises(PlatformUnavailable):
            await task

    play(test, tmp_path, forever, answers=ON)
