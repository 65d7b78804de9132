"""The demo's tools as they run: the desk's process, the graph server, the commands of the workbench."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import TextContent

from forerun.cli.demo.agents import coding, research
from forerun.cli.demo.draws import KIND_OF_TOOL, Draws
from forerun.cli.demo.runs import Run
from forerun.cli.demo.toolbench import make_project, policy_text, toolbench
from forerun.cli.demo.tools.log import executions
from forerun.core.outcomes import Mode
from forerun.runtime.policy import parse_policy, policies_of, read_policy_file
from forerun.v1 import policy_pb2

FAULTS = coding.load_faults()
QUICK = Draws(1, 0.001)


def policy(tmp_path: Path) -> policy_pb2.PolicyFile:
    text = policy_text(
        desk_url="http://127.0.0.1:1", project=tmp_path / 'a "folder"', log_file=tmp_path / "log", draws=QUICK
    )
    return parse_policy(text, "the demo's policy file")


def test_the_policy_file_is_one_and_covers_every_tool_of_the_agents(tmp_path: Path) -> None:
    parsed = policy(tmp_path)
    contracts = {contract.tool for contract in parsed.policies[0].tools}
    served = {tool.name for server in parsed.servers for tool in server.tools}
    assert contracts == served == {*research.TOOLS, *coding.TOOLS} == set(KIND_OF_TOOL)
    names = [run.agent(agent) for run in (Run.FORERUN, Run.PARALLEL) for agent in (research.AGENT, coding.AGENT)]
    assert list(parsed.policies[0].agents) == names
    (decided,) = policies_of(parsed).items
    assert (decided.mode, decided.hold_out) == (Mode.EXACT, 0.0)
    assert parsed.servers[2].workspace_seed == str(tmp_path / 'a "folder"')


def test_a_write_that_may_not_be_repeated_never_runs_ahead(tmp_path: Path) -> None:
    contracts = {contract.tool: contract for contract in policy(tmp_path).policies[0].tools}
    writes = {name for name, one in contracts.items() if one.effect == policy_pb2.EFFECT_WRITE}
    assert writes == {"add_note", "edit_file"}
    assert not contracts["add_note"].speculate
    assert contracts["edit_file"].staged


async def test_desk_and_graph_answer_and_keep_their_own_log(tmp_path: Path) -> None:
    async with toolbench(tmp_path, QUICK) as tools:
        parsed = read_policy_file(tools.policy_file)
        base = parsed.servers[0].tools[0].http.url.removesuffix("/{session}/search")
        async with httpx.AsyncClient(base_url=base) as desk:
            hits = (await desk.get("/forerun.R01/search", params={"q": "INC-2001"})).json()["hits"]
            document = (await desk.get(f"/forerun.R01/documents/{hits[0]['id']}")).json()
            query = {"sql": "SELECT stock FROM parts WHERE component = ?", "values": [document["refs"]["component"]]}
            rows = (await desk.post("/forerun.R01/warehouse", json=query)).json()["rows"]
            forbidden = await desk.post("/forerun.R01/warehouse", json={"sql": "DELETE FROM parts"})
            missing = await desk.get("/forerun.R01/documents/INC-0")
            for text in ("one", "two"):
                await desk.post("/forerun.R01/notes", json={"ticket": "R01", "text": text})
            own = (await desk.get("/forerun.R01/notes/R01")).json()["notes"]
            other = (await desk.get("/parallel.R01/notes/R01")).json()["notes"]
        entity = await look_up(list(parsed.servers[1].mcp.command), document["refs"]["component"])
        logged, end = executions(tools.log_file, after_bytes=0)
    assert hits[0]["id"] == document["id"] == "INC-2001"
    assert len(rows) == 1
    assert forbidden.status_code == 400
    assert missing.status_code == 404
    assert (own, other) == (["one", "two"], [])
    assert entity["refs"]["supplier"].startswith("SUP-")
    names = ["search", "fetch", "warehouse", "warehouse", "fetch", "add_note", "add_note", "list_notes", "list_notes"]
    assert [one.tool for one in logged] == [*names, "lookup_entity"]
    assert executions(tools.log_file, after_bytes=end) == ([], end)


async def look_up(command: list[str], identifier: str) -> dict[str, dict[str, str]]:
    server = StdioServerParameters(command=command[0], args=command[1:], env={})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("lookup_entity", {"ticket": "R01", "id": identifier})
    (content,) = result.content
    assert isinstance(content, TextContent)
    value: dict[str, dict[str, str]] = json.loads(content.text)
    return value


async def test_a_request_takes_its_drawn_time(tmp_path: Path) -> None:
    draws = Draws(1, 0.1)
    drawn = draws.tool_seconds("R01", "search", {"q": "pump"})
    async with toolbench(tmp_path, draws) as tools:
        parsed = read_policy_file(tools.policy_file)
        url = parsed.servers[0].tools[0].http.url.replace("{session}", "parallel.R01")
        loop = asyncio.get_running_loop()
        async with httpx.AsyncClient() as desk:
            started = loop.time()
            await desk.get(url, params={"q": "pump"})
    assert loop.time() - started >= drawn


def bench(project: Path, *argv: str, scale: str = "0", seed: str = "1") -> subprocess.CompletedProcess[str]:
    """Runs a command as the sandbox does: in the workspace, with nothing of the host's environment."""
    environment = {
        "FORERUN_DEMO_SEED": seed,
        "FORERUN_DEMO_SCALE": scale,
        "FORERUN_DEMO_SESSION": "forerun.K01",
    }
    command = [sys.executable, "-I", "-S", "-B", ".bench/forerun/cli/demo/tools/workbench.py", *argv]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize("fault", list(FAULTS.values())[::5], ids=lambda fault: fault.symbol)
def test_a_seeded_fault_fails_its_test_until_it_is_mended(project: Path, fault: coding.Fault) -> None:
    red = bench(project, "run_tests", fault.target)
    report = json.loads(red.stdout)
    assert (red.returncode, report["verdict"]) == (1, "failed")
    assert {(one["path"], one["symbol"]) for one in report["failed"]} == {(fault.path, fault.symbol)}
    old = fault.fault
    if fault.first_try:
        assert bench(project, "edit_file", fault.path, old, fault.first_try).returncode == 0
        assert bench(project, "run_tests", fault.target).returncode == 1
        old = fault.first_try
    assert bench(project, "edit_file", fault.path, old, fault.fix).returncode == 0
    green = bench(project, "run_tests", fault.target)
    assert (green.returncode, json.loads(green.stdout)["verdict"]) == (0, "passed")


def test_the_catalogue_names_lines_that_are_in_the_project_once(project: Path) -> None:
    for fault in FAULTS.values():
        assert (project / fault.path).read_text().count(fault.fault) == 1, fault.symbol


@pytest.mark.parametrize(
    "argv",
    [
        ("run_tests", "tests.test_tides"),
        ("run_tests", "tests.test_nothing"),
        ("search_code", "may_enter"),
        ("history", "harbour/tides.py"),
        ("read_file", "harbour/tides.py"),
    ],
)
def test_the_same_workspace_gives_the_same_bytes_whatever_the_time_and_place(tmp_path: Path, argv: list[str]) -> None:
    outputs = []
    for place, scale in (("one", "0"), ("another/place", "0.001")):
        make_project(tmp_path / place)
        outputs.append(bench(tmp_path / place, *argv, scale=scale).stdout)
    assert outputs[0] == outputs[1] != ""
    assert str(tmp_path) not in outputs[0]


def test_reading_leaves_nothing_behind(project: Path) -> None:
    def everything() -> list[Path]:
        return sorted(project.rglob("*"))

    before = everything()
    bench(project, "run_tests", "tests.test_tides")
    bench(project, "search_code", "tides")
    assert everything() == before


def test_files_outside_the_workspace_are_out_of_reach(project: Path) -> None:
    (project.parent / "secret.txt").write_text("secret")
    os.symlink(project.parent / "secret.txt", project / "link.txt")
    for path in ("../secret.txt", "link.txt", str(project.parent / "secret.txt")):
        assert json.loads(bench(project, "read_file", path).stdout) == {"error": f"no file {path}"}
        assert bench(project, "edit_file", path, "secret", "open").returncode == 1
    assert (project.parent / "secret.txt").read_text() == "secret"


def test_an_edit_needs_a_text_that_occurs_once(project: Path) -> None:
    path = "harbour/tides.py"
    twice = json.loads(bench(project, "edit_file", path, "return", "yield").stdout)
    never = json.loads(bench(project, "edit_file", path, "no such text", "x").stdout)
    assert twice["error"].startswith("the text occurs ")
    assert never == {"error": f"the text occurs 0 times in {path}"}


def test_a_wrong_command_line_is_refused(project: Path) -> None:
    for argv in ((), ("format",), ("read_file",), ("read_file", "a", "b")):
        assert bench(project, *argv).returncode == 2
