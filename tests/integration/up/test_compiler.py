"""The loop of LLMCompiler as its example shows it: real services and tools, a stand-in model over real HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from forerun.cli.up import Platform
from forerun.client import AsyncClient, TaskStatus
from forerun.client.compiler import (
    Basis,
    Bounds,
    Compiler,
    Event,
    OpenAiModel,
    Progressed,
    Requested,
    RequestEnd,
    RunStatus,
)
from tests.integration.up.processes import until_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "sdk" / "python" / "examples" / "compiler"
PLANS = REPOSITORY / "docs" / "examples" / "plans"
MOUNTAIN = "How many times as high as the Eiffel tower is Mont Blanc?"
ROOMS = "Book the cheaper of the first rooms in Bergen and Oslo, and note the weather there."
PRODUCT = "What is 6 times 7?"


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[str]:
    """A server of the example on a free port; where it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(file), "0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().split()[-1]
    finally:
        process.kill()
        await process.wait()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def model() -> AsyncIterator[OpenAiModel]:
    async with serving(EXAMPLE / "standin_model.py") as address:
        yield OpenAiModel(address, "stand-in")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    directory = tmp_path_factory.mktemp("compiler")
    async with serving(PLANS / "tools.py") as address:
        file = directory / "policy.yaml"
        file.write_text((PLANS / "policy.yaml").read_text().replace("http://127.0.0.1:8080", address))
        async with Platform(directory / "data", file, port=0) as running:
            yield running
    await until_gone(directory / "data")


async def test_a_plan_streams_from_the_model_into_the_platform(platform: Platform, model: OpenAiModel) -> None:
    events: list[Event] = []
    async with AsyncClient(platform.address, platform.token) as client, client.session("agent") as session:
        result = (await Compiler(model).run(session, MOUNTAIN, on_event=events.append)).raise_for_status()
    assert result.answer == (
        "Mont Blanc is 14.56 times as high as the Eiffel tower. Noted: Mont Blanc is 14.56 times as high."
    )
    planned = next(place for place, event in enumerate(events) if isinstance(event, Requested))
    running = [event for event in events[:planned] if isinstance(event, Progressed) and event.running]
    assert running, "tasks ran before the last token of the plan"
    assert [(one.basis, one.end) for one in result.requests] == [(Basis.EXACT, RequestEnd.USED)] * 2
    assert not result.spent.at_least and result.spent.tokens > 300


async def test_another_plan_is_asked_for_and_does_not_book_again(platform: Platform, model: OpenAiModel) -> None:
    async with AsyncClient(platform.address, platform.token) as client, client.session("agent") as session:
        result = await Compiler(model).run(session, ROOMS)
        rooms = await session.call_tool("find_rooms", {"city": "Oslo"})
    assert result.answer == "Booked oslo-1. The note says: oslo-1, sun"
    assert (result.rounds, result.kept) == (3, {"9": "6"})
    assert [one.status for one in result.tasks] == [TaskStatus.OK] * 7
    assert [room["id"] for room in rooms.json()["rooms"]] == ["oslo-2"]


async def test_a_plan_with_a_tool_that_does_not_exist_is_planned_anew(platform: Platform, model: OpenAiModel) -> None:
    async with AsyncClient(platform.address, platform.token) as client, client.session("agent") as session:
        result = await Compiler(model).run(session, PRODUCT)
        assert (result.answer, result.rounds) == ("42", 2)
        assert [one.end for one in result.requests] == [RequestEnd.UNUSABLE, RequestEnd.USED, RequestEnd.USED]
        unknown = await Compiler(model, bounds=Bounds(repeats=2)).run(session, "Something else?")
    assert unknown.status is RunStatus.FAILED and unknown.failure is not None
    assert unknown.failure.reason == "MODEL_REFUSED" and "400 (unknown_question)" in unknown.failure.message
    assert len(unknown.requests) == 1


async def test_the_command_of_the_example() -> None:
    """`run.py` starts everything by itself, and stops it again."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE / "run.py"), MOUNTAIN, PRODUCT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    assert "\nMont Blanc is 14.56 times as high as the Eiffel tower. Noted:" in text
    assert re.search(r"stopped  line 1 of the plan: there is no tool 'multiply'; there are book_room", text)
    assert text.rstrip().endswith("\n42")
    assert "python sdk/python/examples/compiler/run.py" in (REPOSITORY / "docs" / "plans.md").read_text()
