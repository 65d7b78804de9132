"""The command `forerun`.

A command that is not built into this release is absent: nothing is promised in `--help` that does not work. Modules are
imported when their command is used, which keeps `forerun --help` fast.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol, cast

_Subparsers = argparse._SubParsersAction

EXIT_WRONG_USE: Final = 2


class CommandModule(Protocol):
    """What the module of a command has."""

    def add_parser(self, subparsers: _Subparsers[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        """Adds the command to a command line."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Runs it and returns its exit code: 0 fine, 1 does not hold, 2 wrong use, 3 something is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: Its name.
        module: Where it lives.
        summary: One line for `--help`.
    """

    name: str
    module: str
    summary: str


COMMANDS: Final = (
    Command("up", "forerun.cli.up.command", "the platform on this machine"),
    Command("demo", "forerun.cli.demo.command", "the proof: one agent run without and with Forerun"),
    Command("replay", "forerun.cli.replay.command", "what Forerun would have saved on recorded runs"),
    Command("policy", "forerun.cli.policy", "look at policy files, publish them"),
    Command("check", "forerun.cli.check", "open one session and end it"),
    Command("broker", "forerun.cli.broker", "the broker of an installation on Kubernetes"),
    Command("credentials", "forerun.cli.credentials.command", "make the Secrets of an installation, in a pod"),
    Command("runner-key", "forerun.cli.credentials.runner_key", "make the key of a runner, before it starts"),
    Command("plan", "forerun.cli.plan.command", "look at plans, and run them"),
    Command("models", "forerun.cli.models.command", "the models that are served"),
    Command("off", "forerun.cli.switch", "switch speculation off"),
    Command("on", "forerun.cli.switch", "switch speculation on"),
)

SERVICES: Final = (
    Command("orchestrator", "forerun.orchestrator.__main__", "owns sessions"),
    Command("predictor", "forerun.predictor.__main__", "learns from the journal, publishes candidates"),
    Command("verifier", "forerun.verifier.__main__", "certifies speculations, audits committed ones"),
    Command("snapshots", "forerun.snapshots.__main__", "keeps versioned state"),
    Command("sandbox", "forerun.sandbox.__main__", "runs tools"),
    Command("runner", "forerun.sandbox.runners.__main__", "runs the commands of one session"),
    Command("gateway", "forerun.gateway.__main__", "serves models to clients of OpenAI"),
    Command("operator", "forerun.operator.__main__", "on Kubernetes: publishes policies, sizes pools"),
)


class _Parser(argparse.ArgumentParser):
    """Says itself what it does not know, with its own usage; argparse leaves that to the outermost parser."""

    def parse_known_args(  # type: ignore[override]  # the overloads of the standard library say the same
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses, and ends the process with code 2 where something is left over."""
        parsed, left_over = super().parse_known_args(args, namespace)
        if left_over:
            self.error(f"unrecognized arguments: {' '.join(left_over)}")
        return parsed, left_over


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    service = next((one for one in SERVICES if one.name == name and _is_built(one)), None)
    if service is not None:
        entry = cast("Callable[[Sequence[str]], int]", importlib.import_module(service.module).main)
        return entry(given[1:])
    command = next((one for one in COMMANDS if one.name == name and _is_built(one)), None)
    if command is None:
        return _without_command(given)
    parser: argparse.ArgumentParser = _Parser(prog="forerun")
    run = _add(command, parser.add_subparsers(required=True))
    return run(parser.parse_args(given))


def _add(command: Command, subparsers: _Subparsers[argparse.ArgumentParser]) -> Callable[[argparse.Namespace], int]:
    if command.name in ("off", "on"):
        from forerun.cli import switch

        on = command.name == "on"
        switch.add_parser(subparsers, on=on)
        return switch.runner(on=on)
    module = cast("CommandModule", importlib.import_module(command.module))
    module.add_parser(subparsers)
    return module.run


def _without_command(given: Sequence[str]) -> int:
    """`--help`, `--version`, nothing, or a word that is no command."""
    parser = argparse.ArgumentParser(
        prog="forerun",
        usage="forerun COMMAND [OPTION...]",
        description="Makes LLM agents faster without changing what they do.",
        epilog="`forerun COMMAND --help` says more about each. Exit codes: 0 fine, 1 what was checked does not hold, "
        "2 wrong use, 3 something needed is missing.",
    )
    parser.add_argument("--version", action="version", version=f"forerun {_version()}")
    for title, commands in (("commands", COMMANDS), ("services (--check-config, --print-settings)", SERVICES)):
        group = parser.add_argument_group(title)
        for one in filter(_is_built, commands):
            group.add_argument(one.name, nargs="?", default=argparse.SUPPRESS, help=one.summary)
    if not given or given[0] in ("-h", "--help"):
        parser.print_help(sys.stdout if given else sys.stderr)
        return 0 if given else EXIT_WRONG_USE
    if given[0] == "--version":
        parser.parse_args(given[:1])
    sys.stderr.write(f"forerun: there is no command {given[0]!r}; `forerun --help` lists what there is\n")
    return EXIT_WRONG_USE


def _is_built(command: Command) -> bool:
    try:
        return importlib.util.find_spec(command.module) is not None
    except ModuleNotFoundError:
        return False


def _version() -> str:
    try:
        return version("forerun")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    raise SystemExit(main())
