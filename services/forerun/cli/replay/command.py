"""The command line of `forerun replay`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from forerun.cli.replay.controls import Control
from forerun.cli.replay.replaying import replay
from forerun.cli.replay.report import as_json, print_table
from forerun.cli.replay.split import SplitBy
from forerun.cli.replay.workload import Selection, load
from forerun.runtime.errors import ErrorReason, ForerunError

FINE, DIVERGED, WRONG_USE, MISSING = 0, 1, 2, 3
_MISSING_REASONS = frozenset({ErrorReason.DEPENDENCY_MISSING})


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `replay` to the command line."""
    parser = subparsers.add_parser(
        "replay",
        help="what Forerun would have saved on recorded runs",
        description=(
            "Repeats recorded runs against a tool server that answers as recorded: sequentially, in ordered parallel, "
            "with Forerun, and with perfect prediction at the same moments and limits. Exit code 1: an observation "
            "differed."
        ),
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="trace files to score (JSON lines, gzipped)"
    )
    parser.add_argument(
        "--train",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="trace files to learn from first; one that is also scored is halved by a hash of (seed, task)",
    )
    parser.add_argument(
        "--sessions", type=_positive_int, metavar="N", help="score at most N sessions, drawn by the seed"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides halves, imputed times and draws (default 1)")
    parser.add_argument(
        "--clock",
        choices=("virtual", "real"),
        default="virtual",
        help="virtual: all services in this process, waiting costs nothing (default); real: the real processes",
    )
    parser.add_argument("--scale", type=_positive, default=1.0, metavar="X", help="factor on every recorded time")
    parser.add_argument(
        "--tool-seconds", type=_positive, metavar="X", help="scale each file's tool times to a median of X seconds"
    )
    parser.add_argument(
        "--split",
        choices=tuple(SplitBy),
        type=SplitBy,
        default=SplitBy.TASK,
        help="what learned and scored sessions must not share: a task, or any identifier (cluster)",
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="effect contracts (default policies/STEM.json beside the traces)"
    )
    parser.add_argument(
        "--max-amplification",
        type=_at_least_one,
        metavar="X",
        help="bound on tool executions per call of the agent: what runs ahead in vain must have been earned",
    )
    parser.add_argument(
        "--control",
        choices=tuple(Control),
        type=Control,
        help="in place of Forerun, to check the replay: speculation off; a predictor that turns wrong; parallel "
        "a second time; and 5 %% slower, which a hold-out report must find",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    errors = Console(stderr=True)
    try:
        selection = _selection(args)
        workload = load(selection)
        for note in workload.notes:
            errors.print(f"note: {note}", highlight=False)
        if not workload.recordings:
            errors.print("no session is left to score: give other files, or another --seed")
            return WRONG_USE
        with _Progress(errors) as progress:
            results = replay(workload, selection, clock=args.clock, control=args.control, progress=progress.tell)
    except ForerunError as error:
        errors.print(f"forerun replay: {error.message}", style="red", highlight=False)
        return MISSING if error.reason in _MISSING_REASONS else WRONG_USE
    if args.json:
        sys.stdout.write(json.dumps(as_json(results)) + "\n")
    else:
        print_table(results, Console())
    return FINE if results.holds else DIVERGED


class _Progress:
    """One line on the terminal that says how far it is; where there is no terminal, one line for each arm."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("measuring what the way through the platform costs")

    def __enter__(self) -> _Progress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def tell(self, arm: str, done: int, of: int) -> None:
        """Takes note of a session that is done."""
        self._status.update(f"{arm}: {done} of {of} sessions")
        if done == of and not self._console.is_terminal:
            self._console.print(f"{arm}: {done} sessions", highlight=False)


def _selection(args: argparse.Namespace) -> Selection:
    return Selection(
        files=tuple(args.files),
        train=tuple(args.train),
        sessions=args.sessions,
        seed=args.seed,
        split_by=args.split,
        tool_seconds=args.tool_seconds,
        scale=args.scale,
        policy=args.policy,
        max_amplification=args.max_amplification,
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _at_least_one(text: str) -> float:
    value = float(text)
    if not 1.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of at least 1")
    return value
