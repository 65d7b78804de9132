"""The command line of the demo: what it prints where, and its exit codes."""

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.cli.demo import command
from forerun.cli.demo.agents.script import Observation
from forerun.cli.demo.figures import Figures, Surroundings, figures
from forerun.client import ForerunClientError, PlatformUnavailable
from forerun.runtime.errors import ErrorReason, FailedPrecondition, ForerunError, Unavailable
from tests.unit.demo.test_figures import TWO, make


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["demo", *argv])


def demo_gives(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], Figures]) -> None:
    async def demo(*_: object) -> Figures:
        return outcome()

    monkeypatch.setattr(command, "_demo", demo)


def made(value: Observation) -> Figures:
    return figures(*make(value), Surroundings(isolation="bubblewrap", restarts=0))


def test_json_is_one_object_on_stdout_and_fine_is_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_gives(monkeypatch, lambda: made(TWO))
    assert command.run(parsed("--json")) == 0
    assert json.loads(capsys.readouterr().out)["diverged"] == 0


def test_a_divergence_is_exit_code_1_and_still_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_gives(monkeypatch, lambda: made(Observation(b"other")))
    assert command.run(parsed("--json", "--fast")) == 1
    assert json.loads(capsys.readouterr().out)["diverged"] == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FailedPrecondition(ErrorReason.DEPENDENCY_MISSING, "no broker"), 3),
        (Unavailable(ErrorReason.PEER_UNAVAILABLE, "no sandbox"), 3),
        (PlatformUnavailable("PEER_UNAVAILABLE", "no platform"), 3),
        (ForerunClientError("INTERNAL", "broken"), 1),
    ],
)
def test_what_is_missing_is_said_in_one_line_also_from_within_a_session(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: ForerunError | ForerunClientError,
    code: int,
) -> None:
    def fail() -> Figures:
        raise ExceptionGroup("sessions", [ExceptionGroup("session", [error])])

    demo_gives(monkeypatch, fail)
    assert command.run(parsed("--json")) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"forerun demo: {error.message}"]


def test_a_platform_that_cannot_be_used_leaves_nothing_behind(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path / "state" / "forerun"))
    monkeypatch.delenv("FORERUN_TOKEN", raising=False)
    target = f"127.0.0.1:{unused_tcp_port}"
    assert command.run(parsed("--target", target)) == 3
    assert "FORERUN_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("FORERUN_TOKEN", "none")
    assert command.run(parsed("--target", target)) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_is_one_line_and_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: type[BaseException]
) -> None:
    def fail() -> Figures:
        raise end

    demo_gives(monkeypatch, fail)
    assert command.run(parsed("--json")) == 130
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)


def test_a_fault_of_the_demo_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Figures:
        raise ExceptionGroup("sessions", [ZeroDivisionError("a mistake")])

    demo_gives(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        command.run(parsed())
