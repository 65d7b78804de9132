"""Sets the demo's tools up: the project to mend, the desk's process, and the policy file that names all of them."""

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from string import Template
from typing import Final

from forerun.cli.demo.draws import Draws
from forerun.cli.demo.tools.desk import LOG_FILE

_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 5.0
# Inside the workspace: a sandboxed command sees its workspace and the system, not the packages of this installation.
_WORKBENCH: Final = ".bench/forerun/cli/demo/tools/workbench.py"
_CARRIED: Final = ("draws.py", "tools/workbench.py")


@dataclass(frozen=True, slots=True)
class Toolbench:
    """Running tools.

    Attributes:
        policy_file: A policy file that describes tools and contracts, for `forerun up`.
        log_file: What the desk and the graph server record of their own executions.
    """

    policy_file: Path
    log_file: Path


def make_project(folder: Path) -> None:
    """Makes the project that a coding session's workspace starts with. An existing one is replaced.

    The commands' own program is laid beside it, at the same place as in the package.
    """
    shutil.rmtree(folder, ignore_errors=True)
    package = files("forerun.cli.demo")
    with as_file(package / "assets" / "harbour") as project:
        shutil.copytree(project, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _CARRIED:
        target = folder / ".bench" / "forerun" / "cli" / "demo" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((package / name).read_text(encoding="utf-8"), encoding="utf-8")


def policy_text(*, desk_url: str, project: Path, log_file: Path, draws: Draws) -> str:
    """The policy file with this run's addresses and paths."""
    graph = [sys.executable, "-m", "forerun.cli.demo.tools.graph", "--log", str(log_file)]
    graph += ["--seed", str(draws.seed), "--scale", repr(draws.scale)]
    environment = {
        "FORERUN_DEMO_SEED": str(draws.seed),
        "FORERUN_DEMO_SCALE": repr(draws.scale),
        "FORERUN_DEMO_SESSION": "{session}",
    }
    # JSON is YAML: values are spelled as JSON, so that no path needs quoting rules of its own.
    values: Mapping[str, str] = {
        "desk_url": desk_url,
        "workbench": _WORKBENCH,
        "workspace_seed": json.dumps(str(project)),
        "graph_command": json.dumps(graph),
        "environment": json.dumps(environment),
    }
    template = (files("forerun.cli.demo") / "assets" / "policy.yaml").read_text(encoding="utf-8")
    return Template(template).substitute(values)


@contextlib.asynccontextmanager
async def toolbench(data: Path, draws: Draws) -> AsyncIterator[Toolbench]:
    """Starts the tools below a directory and stops them at the end.

    Raises:
        RuntimeError: The desk's process did not start; its own message is on the error stream.
    """
    log_file = _prepare(data)
    async with _desk(data, draws) as url:
        policy_file = data / "policy.yaml"
        text = policy_text(desk_url=url, project=data / "project", log_file=log_file, draws=draws)
        policy_file.write_text(text, encoding="utf-8")
        yield Toolbench(policy_file, log_file)


def _prepare(data: Path) -> Path:
    data.mkdir(parents=True, exist_ok=True)
    make_project(data / "project")
    log_file = data / LOG_FILE
    log_file.unlink(missing_ok=True)
    return log_file


@contextlib.asynccontextmanager
async def _desk(data: Path, draws: Draws) -> AsyncIterator[str]:
    options = ["--data", str(data), "--seed", str(draws.seed), "--scale", repr(draws.scale)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forerun.cli.demo.tools.desk",
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield await _address(process)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process) -> str:
    if process.stdout is None:
        raise RuntimeError("the desk was started without a pipe")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
    except TimeoutError:
        raise RuntimeError(f"the demo's desk did not start within {_START_SECONDS:g} s") from None
    if not line:
        raise RuntimeError("the demo's desk ended before it listened")
    return f"http://127.0.0.1:{json.loads(line)['port']}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
