"""A whole platform on this machine, started once, used as people use it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console

from forerun.cli.up import SERVICES, Platform
from forerun.cli.up.live import show
from forerun.client import AsyncClient, Call, NotAuthorized
from forerun.runtime.errors import FailedPrecondition
from tests.integration.up.processes import until_gone
from tests.integration.up.toolserver import ToolServer, policy, tool_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools() -> AsyncIterator[ToolServer]:
    async with tool_server() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform(tools: ToolServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    directory = tmp_path_factory.mktemp("up")
    file = directory / "tools.yaml"
    file.write_text(policy(tools))
    async with Platform(directory / "data", file, port=0) as running:
        yield running
    await until_gone(directory / "data")


async def command(platform: Platform, *arguments: str) -> tuple[int, str]:
    """Runs a program as a person in another terminal would: it has to find the platform by itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    environment["FORERUN_DATA"] = str(platform.directory.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_tools_answer(platform: Platform, tools: ToolServer) -> None:
    async with AsyncClient(platform.address, platform.token) as client:
        listed = {tool.name: tool for tool in await client.list_tools("agent")}
        assert set(listed) == {"dedent", "read", "write"}
        async with client.session("agent") as session:
            calls = [Call("dedent", {"text": "  hi"}), Call("read", {"n": 7}), Call("write", {"n": 8})]
            results = await session.call_tools(calls)
            assert [result.status.value for result in results] == ["ok"] * 3
            assert results[0].text == "hi"
            assert [result.json() for result in results[1:]] == [{"n": "7"}, {"n": "8"}]
    assert (tools.reads["7"], tools.writes["8"]) == (1, 1)
    assert session.totals is not None and session.totals.calls == 3


async def test_the_quickstart_of_the_readme(platform: Platform) -> None:
    example = REPOSITORY / "sdk" / "python" / "examples" / "quickstart.py"
    assert f"```python\n{example.read_text()}```" in (REPOSITORY / "README.md").read_text(), "the very same lines"
    code, output = await command(platform, str(example))
    assert (code, output) == (0, "{'city': 'Oslo', 'degrees': 24} direct\n{'city': 'Rome', 'degrees': 24} direct\n")


async def test_the_switch(platform: Platform) -> None:
    code, output = await command(platform, "-m", "forerun.cli.main", "off", "--reason", "test")
    assert code == 0 and f"off for all tenants at {platform.address}" in output
    async with AsyncClient(platform.address, platform.token) as client:
        async with client.session("agent") as session:
            assert session.mode is not None and session.mode.value == "off"
        code, _ = await command(platform, "-m", "forerun.cli.main", "on")
        assert code == 0
        async with asyncio.timeout(5):
            while True:
                async with client.session("agent") as session:
                    if session.mode is not None and session.mode.value == "exact":
                        break
    code, output = await command(platform, "-m", "forerun.cli.main", "off", "--tenant", "another")
    assert code == 0 and "off for tenant another" in output


async def test_the_line_of_the_terminal(platform: Platform) -> None:
    screen = io.StringIO()
    line = asyncio.ensure_future(show(platform, Console(file=screen, force_terminal=True, width=200)))
    async with asyncio.timeout(20):
        while "hit rate" not in screen.getvalue():  # noqa: ASYNC110  (a screen gives no event)
            await asyncio.sleep(0.05)
    line.cancel()
    await asyncio.wait([line])
    assert "session" in screen.getvalue() and "(estimate)" in screen.getvalue()


async def test_what_runs_where_is_written_down(platform: Platform) -> None:
    run = json.loads(platform.directory.run_file.read_text())
    assert run["address"] == platform.address and run["pid"] == os.getpid()
    assert set(run["services"]) == set(SERVICES)
    for name in SERVICES:
        assert run["services"][name]["pid"] == platform.pid_of(name)
    directory = platform.directory
    secrets = [directory.token_file, directory.tokens_file, directory.run_file, *(directory.path / "secrets").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    # Neither the file for the services nor that for people holds the token itself.
    assert platform.token not in directory.tokens_file.read_text() + directory.run_file.read_text()


async def test_everybody_needs_a_token(platform: Platform) -> None:
    async with AsyncClient(platform.address, "wrong") as client:
        with pytest.raises(NotAuthorized):
            await client.get_totals()


async def test_two_platforms_do_not_share_a_directory_or_a_port(platform: Platform, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="--data"):
        await Platform(platform.directory.path, port=0).start()
    assert platform.directory.run_file.exists()
    port = int(platform.address.rpartition(":")[2])
    with pytest.raises(FailedPrecondition, match="--port"):
        await Platform(tmp_path, port=port).start()
    assert not (tmp_path / "run.json").exists()
