"""Answers through the real processes: gRPC, secrets by name, candidates, and a client that leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from forerun.cli.up import Platform
from forerun.client import AsyncClient, ChatMessage, Scorer, Search
from tests.integration.models.server import Exchange, forever, serving
from tests.integration.up.processes import until_gone

QUESTION = [ChatMessage("user", "What is six times seven?")]


async def test_a_platform_answers_from_its_models_and_hangs_up_when_its_client_does(tmp_path: Path) -> None:
    hangs = False

    async def behave(exchange: Exchange) -> None:
        if hangs:
            await exchange.head()
            await exchange.token("so")
            await forever(exchange)
        await exchange.say({1: "41", 2: "42", 3: "42"}.get(exchange.body.get("seed"), "forty two"), usage=(10, 2))

    async with serving(behave) as (server,):
        provider = {"name": "p", "url": server.url, "secret": "model-key", "inputPrice": 1, "outputPrice": 1}
        policy = {"name": "p", "mode": "MODE_EXACT", "answers": {"on": True, "worth": 1}}
        file = tmp_path / "policy.yaml"
        models = [{"name": "m", "providers": [provider]}]
        file.write_text(json.dumps({"policies": [policy], "models": models, "servers": []}))
        async with Platform(tmp_path / "data", file, port=0) as platform:
            secrets = platform.directory.tool_secrets
            secrets.mkdir(parents=True, exist_ok=True)
            (secrets / "model-key").write_text("sk-local")
            async with AsyncClient(platform.address, platform.token) as client:
                answers = client.answers("a")
                heard: list[str] = []
                answer = await answers.generate("m", QUESTION, on_text=heard.append)
                assert (answer.text, heard) == ("forty two", ["forty", " two"])
                assert answer.cost == pytest.approx(12e-6)
                assert server.asked[0].headers["authorization"] == "Bearer sk-local"
                best = await answers.generate("m", QUESTION, seed=1, search=Search(count=3, scorer=Scorer.votes()))
                assert (best.text, [one.end for one in best.candidates]) == ("42", ["beaten", "chosen", "beaten"])
                hangs = True
                first = asyncio.Event()
                task = asyncio.ensure_future(answers.generate("m", QUESTION, on_text=lambda _: first.set()))
                await asyncio.wait_for(first.wait(), 20.0)
                left_at = asyncio.get_running_loop().time()
                task.cancel()
                await server.wait_for(lambda: len(server.hang_ups) == 1)
                assert server.hang_ups[0] - left_at < 1.0
    await until_gone(tmp_path / "data")
