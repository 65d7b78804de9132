"""`forerun up --check`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from forerun.cli.up.directory import DataDirectory
from forerun.cli.up.ports import is_free
from forerun.runtime.broker import find_server
from forerun.runtime.errors import ForerunError
from forerun.runtime.policy import policies_of, read_policy_file
from forerun.runtime.settings import load_settings
from forerun.sandbox.isolation.machine import machine_ladder
from forerun.sandbox.settings import SandboxSettings

_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        fine: False where the platform cannot start as asked.
        detail: What was found, or what to do.
    """

    what: str
    fine: bool
    detail: str


async def check(data_dir: Path, policy_file: Path | None, port: int) -> list[Finding]:
    """Looks at everything that a platform needs; starts and makes nothing."""
    return [
        _python(),
        _attempt("nats-server", lambda: str(find_server())),
        _port(port),
        _attempt("data directory", lambda: _directory(data_dir)),
        _attempt("policy file", lambda: _policies(policy_file)),
        *await _isolation(),
    ]


def show(findings: list[Finding], console: Console) -> None:
    """Prints a table of findings."""
    table = Table("what", "", "found", box=None, pad_edge=False)
    for one in findings:
        table.add_row(one.what, "[green]ok[/]" if one.fine else "[red]missing[/]", one.detail)
    console.print(table)


def _attempt(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except ForerunError as error:
        return Finding(what, False, error.message)


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= _PYTHON:
        return Finding("Python", True, found)
    return Finding("Python", False, f"{found}; install Python {_PYTHON[0]}.{_PYTHON[1]} or newer")


def _port(port: int) -> Finding:
    if port == 0:
        return Finding("port", True, "any free one")
    if is_free(port):
        return Finding("port", True, f"{port} is free")
    return Finding("port", False, f"{port} is taken, perhaps by another platform; use --port with a free one")


def _directory(data_dir: Path) -> str:
    directory = DataDirectory(data_dir.absolute())
    directory.look()
    return str(directory.path)


def _policies(policy_file: Path | None) -> str:
    if policy_file is None:
        return "policy.yaml of the data directory, written at the first start"
    policies = policies_of(read_policy_file(policy_file))
    return f"{policy_file}: {len(policies.items)} policies"


async def _isolation() -> list[Finding]:
    try:
        settings = load_settings(SandboxSettings)
    except ForerunError as error:
        return [Finding("isolation", False, error.message)]
    ladder = await machine_ladder(settings.runsc)
    findings = [
        # A weaker level is no obstacle: policies that ask for more are refused when they are used.
        Finding(
            f"isolation {level.name.value}",
            True,
            f"{level.gives}; {level.why}" if level.available else f"not here: {level.why}",
        )
        for level in ladder.levels
    ]

    def in_use() -> str:
        chosen = ladder.chosen(settings.isolation)
        chosen.choose(settings.min_isolation)
        return chosen.in_use.value

    return [*findings, _attempt("isolation in use", in_use)]
