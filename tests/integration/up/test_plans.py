"""The example plans on a real platform with their real tools, as their README says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forerun.cli.up import Platform
from tests.integration.up.processes import until_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "plans"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    directory = tmp_path_factory.mktemp("plans")
    tools = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "tools.py"),
        "0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert tools.stdout is not None
        address = (await tools.stdout.readline()).decode().split()[-1]
        file = directory / "policy.yaml"
        file.write_text((EXAMPLES / "policy.yaml").read_text().replace("http://127.0.0.1:8080", address))
        async with Platform(directory / "data", file, port=0) as running:
            yield running
    finally:
        tools.kill()
        await tools.wait()
    await until_gone(directory / "data")


async def plan_run(platform: Platform, name: str) -> tuple[int, dict[str, Any]]:
    """`forerun plan run` as a person types it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    environment["FORERUN_DATA"] = str(platform.directory.path)
    arguments = ["-m", "forerun.cli.main", "plan", "run", str(EXAMPLES / name), "--json"]
    arguments += ["--policy", str(EXAMPLES / "policy.yaml")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, json.loads(output)


async def test_a_plan_in_json(platform: Platform) -> None:
    code, result = await plan_run(platform, "trip.json")
    gave = {one["id"]: json.loads(one["content"]) for one in result["tasks"]}
    assert (code, result["status"]) == (0, "ok")
    assert gave["proof"]["text"] == f"Both: $ {gave['price']['value']}. Bergen: {gave['sky']['summary']}"
    assert gave["book"]["booked"] == gave["bergen"]["rooms"][0]["id"]
    assert gave["book"]["booked"] not in {room["id"] for room in gave["left"]["rooms"]}, "read after the booking"


async def test_the_text_of_a_planner(platform: Platform) -> None:
    code, result = await plan_run(platform, "report.txt")
    assert (code, result["status"]) == (0, "ok")
    assert "14.56 times as high. It's in: France" in json.loads(result["tasks"][4]["content"])["text"]
    assert result["tasks"][5]["shared_with"] == "1", "the same search runs once"


async def test_the_message_of_a_model(platform: Platform) -> None:
    code, result = await plan_run(platform, "message.openai.json")
    assert code == 0
    assert [one["status"] for one in result["tasks"]] == ["ok", "ok", "ok", "rejected"]
    assert json.loads(result["tasks"][1]["content"])["text"] == "costs $5", "a model's dollars are dollars"
    assert result["tasks"][3]["reason"] == "TOOL_NOT_FOUND"
