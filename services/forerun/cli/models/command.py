"""`forerun models render`, `check`, `calibrate` and `serve`: from a profile to models that a Triton server serves."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from forerun.cli.models.calibrating import run_calibrate
from forerun.cli.models.erasing import add_erase_options, run_erase
from forerun.cli.models.serving import add_serve_options, run_serve
from forerun.core.errors import CoreError
from forerun.core.tokens.depth import StepTable
from forerun.runtime.errors import ErrorReason, ForerunError, InvalidArgument
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING
from forerun.serving.backend.drafts import ALONE, WITH_DRAFT
from forerun.serving.check import Findings, check
from forerun.serving.profile import BUILT_IN, Coupled, EngineSpeculation, Profile, read_profile
from forerun.serving.render.repository import render, write
from forerun.serving.schedule import schedule
from forerun.serving.server import HOME
from forerun.serving.service import Source


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `models` to the command line."""
    parser = subparsers.add_parser(
        "models",
        help="the models that are served",
        description="Renders, checks and measures models on NVIDIA Triton. A PROFILE is a file, or one of "
        f"{', '.join(BUILT_IN)}; its relative paths count from where the command runs.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    rendering = actions.add_parser(
        "render",
        help="write the model repository of a profile",
        description="Writes the model repository of a profile to OUT, in place of what is there. Exit code 1: the "
        "profile cannot be used, 3: it cannot be read.",
    )
    checking = actions.add_parser(
        "check",
        help="whether a profile can be served",
        description="Compares the vocabularies of target and draft token by token, and sizes with memory. Exit code 1: "
        "it cannot be served, 3: a file is missing.",
    )
    calibrating = actions.add_parser(
        "calibrate",
        help="measure the depth table of a profile on this machine",
        description="Measures the seconds of a pass by batch, context and drafted tokens, on a Triton server that it "
        "starts here, and writes the table. Exit code 1: it failed, 3: there is no server.",
    )
    calibrating.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table")
    calibrating.add_argument(
        "--triton", type=Path, default=HOME, metavar="FOLDER", help=f"the server (default: {HOME})"
    )
    calibrating.add_argument("--quick", action="store_true", help="fewer repetitions and sizes")
    serving = actions.add_parser(
        "serve",
        help="serve a profile, and keep it served",
        description="Starts a Triton server with the models of a profile. Every model is asked for a real token again "
        "and again; one whose process died is loaded anew; a changed profile takes over beside the old one, which "
        "stays where the new one cannot be loaded. Ends on SIGTERM. Exit code 1: it cannot be served, or the server "
        "ended by itself, 3: there is no server or no profile.",
    )
    add_serve_options(serving)
    erasing = actions.add_parser(
        "erase",
        help="make every model server forget a tenant",
        description="Erases what model servers remember of a tenant: its agents' earlier outputs, from which they "
        "draft, in memory and on disk. A server that is away erases it when it is back, before it reads what it has "
        "saved. What is said afterwards is remembered again. The platform is FORERUN_ADDRESS with FORERUN_TOKEN, else "
        "the one that `forerun up` started here. Exit code 1: refused, or a server that runs has not said in time that "
        "it is done, 3: no platform.",
    )
    add_erase_options(erasing)
    for action in (rendering, checking, calibrating, serving):
        action.add_argument("profile", metavar="PROFILE", help="a file, or the name of a built-in profile")
    for action in (rendering, checking, calibrating):
        action.add_argument("--json", action="store_true", help="print one JSON object")
    rendering.add_argument("out", type=Path, metavar="OUT", help="folder of the repository")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    base = Path.cwd()
    try:
        if args.action == "erase":
            return run_erase(args)
        if args.action == "serve":
            return run_serve(Source(args.profile, base, lambda profile: depths_of(profile, base)), args)
        profile = read_profile(args.profile)
        if args.action == "render":
            return _render(profile, args.out, base, as_json=args.json)
        if args.action == "check":
            return _check(profile, base, as_json=args.json)
        return run_calibrate(profile, base, args)
    except ForerunError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(error.message, style="red", markup=False)
        return EXIT_MISSING if error.reason is ErrorReason.DEPENDENCY_MISSING else EXIT_FAILED


def _render(profile: Profile, out: Path, base: Path, *, as_json: bool) -> int:
    findings = check(profile, base=base)
    if findings.problems:
        _say(findings.problems, "red")
        return EXIT_FAILED
    files = render(profile, depths_of(profile, base), base=base)
    write(files, out)
    if as_json:
        sys.stdout.write(json.dumps({"profile": profile.name, "out": str(out), "files": sorted(files)}) + "\n")
    else:
        for name in sorted(files):
            print(out / name)
    return 0


def depths_of(profile: Profile, base: Path) -> list[tuple[int, int]]:
    """The depth schedule of an engine that speculates itself; empty without a table.

    Raises:
        InvalidArgument: The file is no table.
    """
    speculation = profile.speculation
    if not isinstance(speculation, EngineSpeculation) or speculation.table is None:
        return []
    try:
        table = StepTable.from_json(json.loads((base / speculation.table).read_text(encoding="utf-8")))
    except (OSError, ValueError, CoreError) as error:
        raise InvalidArgument(ErrorReason.SETTING_INVALID, f"{speculation.table}: {error}") from error
    return schedule(table, WITH_DRAFT if profile.draft is not None else ALONE, speculation.max_depth)


def _check(profile: Profile, base: Path, *, as_json: bool) -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    findings = check(profile, base=base, memory_bytes=memory)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(profile, findings)) + "\n")
    else:
        _show(profile, findings)
    return EXIT_FAILED if findings.problems else 0


def _as_json(profile: Profile, findings: Findings) -> dict[str, object]:
    vocabulary, memory = findings.vocabulary, findings.memory
    return {
        "profile": profile.name,
        "ok": not findings.problems,
        "problems": findings.problems,
        "warnings": findings.warnings,
        "vocabulary": None
        if vocabulary is None
        else {
            "same": vocabulary.same,
            "tokens": vocabulary.usable,
            "padding": vocabulary.padding,
            "differences": vocabulary.count,
            "first_differences": list(vocabulary.differences),
        },
        "memory": None
        if memory is None
        else {
            "per_gpu_bytes": memory.memory_bytes,
            "parts": [{"what": one.what, "bytes_per_gpu": one.bytes_per_gpu, "gpus": one.gpus} for one in memory.parts],
            "cache_tokens": memory.cache_tokens,
            "wanted_tokens": memory.wanted_tokens,
        },
        "host_bytes": findings.host_bytes,
        "verifies_trees": findings.trees,
    }


def _show(profile: Profile, findings: Findings) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"profile {profile.name}: {profile.target.kind}", markup=False)
    if isinstance(profile.speculation, Coupled):
        console.print(f"the target verifies {'trees' if findings.trees else 'chains'} of drafted tokens")
    if findings.vocabulary is not None and findings.vocabulary.same:
        console.print(
            f"target and draft have the same {findings.vocabulary.usable} tokens"
            f" ({findings.vocabulary.padding} rows of padding differ)"
        )
    if findings.memory is not None:
        table = Table("in each GPU", Column("GB", justify="right"), Column("GPUs", justify="right"), box=None)
        for part in findings.memory.parts:
            table.add_row(part.what, f"{part.bytes_per_gpu / 1e9:.2f}", str(part.gpus))
        console.print(table)
        console.print(
            f"{findings.memory.cache_tokens} tokens fit; all slots at full context want {findings.memory.wanted_tokens}"
        )
    if findings.host_bytes is not None:
        console.print(f"about {findings.host_bytes / 1e9:.1f} GB of memory on CPU")
    _say(findings.warnings, "yellow")
    _say(findings.problems, "red")


def _say(sentences: list[str], style: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for one in sentences:
        console.print(one, style=style, markup=False)
