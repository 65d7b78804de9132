"""`forerun plan check`, `draw` and `run`: what a plan would do and in which order, before it runs and when it does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from forerun.cli.plan.drawing import draw, effect_of, named
from forerun.cli.plan.running import run_plan
from forerun.cli.plan.source import FORMATS, Source, Tools, read_plan, read_tools
from forerun.cli.plan.svg import svg
from forerun.core import limits
from forerun.core.errors import CoreError
from forerun.core.plan import FailurePolicy, PlanError, PlanOptions
from forerun.core.plan.analysis import Analysis, analyse
from forerun.runtime.errors import ForerunError
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

_PIPE_WIDTH = 200
_SHOWN = 20
_WORKSPACE_ROOT = "/workspace"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `plan` to the command line."""
    parser = subparsers.add_parser(
        "plan", help="look at plans, and run them", description="Looks at plans, and runs them."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="check a plan and show its order",
        description="Checks a plan and shows waves, longest chain and conflicts. Exit code 1: it is no plan.",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")
    drawing = actions.add_parser("draw", help="draw a plan", description="Draws a plan in the terminal or as SVG.")
    drawing.add_argument("--svg", type=Path, metavar="OUT", help="write a picture instead")
    running = actions.add_parser(
        "run",
        help="run a plan on the platform",
        description="Runs a plan on the platform of FORERUN_ADDRESS with FORERUN_TOKEN, else on the one that "
        "`forerun up` started here. Exit code 1: it is no plan, or it failed.",
    )
    running.add_argument("--agent", default="plan", metavar="NAME", help="name of the agent (default: plan)")
    running.add_argument("--json", action="store_true", help="print one JSON object")
    for action in (check, drawing, running):
        action.add_argument(
            "file",
            type=Path,
            metavar="FILE",
            help="a JSON plan, the text of a planner (LLMCompiler), or a model's message (OpenAI, Anthropic)",
        )
        action.add_argument("--policy", type=Path, metavar="FILE", help="contracts and schemas of the tools")
        action.add_argument("--format", choices=FORMATS, default="auto", help="the form of FILE (default: auto)")
        action.add_argument(
            "--max-tasks",
            type=int,
            default=limits.PLAN_TASKS,
            metavar="N",
            help=f"most tasks, up to {limits.PLAN_TASKS_MAX} (default: {limits.PLAN_TASKS})",
        )
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    as_json = args.action != "draw" and args.json
    try:
        tools = read_tools(args.policy)
        source = read_plan(args.file, tools, args.format)
        options = PlanOptions(tasks=min(max(1, args.max_tasks), limits.PLAN_TASKS_MAX))
        analysis = analyse(source.tasks, tools.contract, options, workspace_root=_WORKSPACE_ROOT)
    except OSError as error:
        return _failed(f"{args.file} cannot be read: {error.strerror}", EXIT_MISSING)
    except ForerunError as error:
        return _failed(error.message, EXIT_FAILED)
    except CoreError as error:
        if as_json:
            sys.stdout.write(json.dumps({"fine": False, "problems": _problems(error)}) + "\n")
        return _failed(_as_lines(args.file, error), EXIT_FAILED)
    if args.action == "run":
        return run_plan(source, args.agent, as_json=as_json)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(source, analysis)) + "\n")
        return 0
    # A file or a pipe has no width of its own, and nobody wants broken lines in it.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if args.action == "check":
        _show(source, tools, analysis, console)
    elif args.svg is None:
        draw(analysis, console)
    else:
        return _write_svg(args.svg, svg(analysis, f"{args.file.name}: {_summary(source, analysis)}"))
    return 0


def _failed(message: str, code: int) -> int:
    Console(stderr=True, highlight=False).print(message, style="red", markup=False, soft_wrap=True)
    return code


def _write_svg(path: Path, text: str) -> int:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return _failed(f"{path} cannot be written: {error.strerror}", EXIT_MISSING)
    return 0


def _problems(error: CoreError) -> list[dict[str, object]]:
    if isinstance(error, PlanError) and error.problems:
        return [{"reason": one.reason, "message": one.message, "tasks": list(one.tasks)} for one in error.problems]
    return [{"reason": error.reason, "message": str(error), "tasks": []}]


def _as_lines(file: Path, error: CoreError) -> str:
    lines = [str(one["message"]) for one in _problems(error)]
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n  ".join([f"{file} is no plan:", *lines[:_SHOWN], *more])


def _summary(source: Source, analysis: Analysis) -> str:
    widest = max((len(wave) for wave in analysis.waves), default=0)
    return (
        f"{len(source.tasks)} tasks in {len(analysis.waves)} waves, at most {widest} at once,"
        f" {len(analysis.critical_path)} on the longest chain"
    )


def _as_json(source: Source, analysis: Analysis) -> dict[str, object]:
    return {
        "fine": True,
        "format": source.format,
        "failure": (source.failure or FailurePolicy.ISOLATE).value,
        "tasks": [
            {
                "id": step.task.id,
                "tool": step.task.tool,
                "effect": effect_of(step),
                "alone": step.alone,
                "wave": step.wave,
                "refers": named(analysis, step.refers),
                "waits": named(analysis, step.waits),
                "same_as": None if step.same_as is None else analysis.steps[step.same_as].task.id,
            }
            for step in analysis.steps
        ],
        "waves": [named(analysis, wave) for wave in analysis.waves],
        "critical_path": named(analysis, analysis.critical_path),
        "conflicts": [
            {"first": first, "second": second, "keys": list(one.keys)}
            for one in analysis.conflicts
            for first, second in [named(analysis, (one.first, one.second))]
        ],
        "problems": [],
    }


def _show(source: Source, tools: Tools, analysis: Analysis, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    failure = (source.failure or FailurePolicy.ISOLATE).value
    say(f"{_summary(source, analysis)}; format {source.format}, failure policy {failure}")
    if tools.policy is None:
        say("without --policy every tool is unknown: it may change everything, so it runs alone")
    else:
        say(f"contracts of policy {tools.policy.label}")
    for number, wave in enumerate(analysis.waves, 1):
        steps = [analysis.steps[index] for index in wave]
        say(f"wave {number}: " + "  ".join(f"{step.task.id} {step.task.tool} ({effect_of(step)})" for step in steps))
    say("longest chain: " + " -> ".join(named(analysis, analysis.critical_path)))
    for conflict in analysis.conflicts[:_SHOWN]:
        first, second = named(analysis, (conflict.first, conflict.second))
        alone = analysis.steps[conflict.first].alone or analysis.steps[conflict.second].alone
        why = "one of them runs alone" if alone else f"both touch {', '.join(conflict.keys)}"
        say(f"{second} waits for {first}: {why}")
    if len(analysis.conflicts) > _SHOWN:
        say(f"and {len(analysis.conflicts) - _SHOWN} more conflicts (--json lists all)")
    for step in analysis.steps:
        if step.same_as is not None:
            say(f"{step.task.id} shares the outcome of {analysis.steps[step.same_as].task.id}")
