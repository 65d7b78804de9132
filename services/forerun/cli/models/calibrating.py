"""`forerun models calibrate`: the step table of a profile, measured on a Triton server that is started for it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from forerun.core.tokens.depth import StepTable
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.serving.calibrate import QUICK, Effort, calibrate
from forerun.serving.keeper import Keeper
from forerun.serving.profile import OpenVinoEngine, Profile, ToyEngine
from forerun.serving.render.coupled import DRAFT, TARGET
from forerun.serving.render.repository import render
from forerun.serving.server import find_installation, running


def run_calibrate(profile: Profile, base: Path, args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        ForerunError: There is no server, or it failed.
    """
    if not isinstance(profile.target, ToyEngine | OpenVinoEngine):
        raise FailedPrecondition(
            ErrorReason.DEPENDENCY_MISSING,
            f"{profile.target.kind} runs in the server's own image on GPUs: measure its depths there with the engine's "
            "benchmark, and write them as a table (docs/serving.md)",
        )
    table = asyncio.run(_measured(profile, base, args.triton, QUICK if args.quick else Effort()))
    args.out.write_text(json.dumps(table.as_json(), indent=1) + "\n", encoding="utf-8")
    if args.json:
        sys.stdout.write(json.dumps({"profile": profile.name, "out": str(args.out), **table.as_json()}) + "\n")
    else:
        _show(table)
    return 0


async def _measured(profile: Profile, base: Path, home: Path, effort: Effort) -> StepTable:
    installation = find_installation(home)
    with tempfile.TemporaryDirectory(prefix="forerun-models-") as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        async with running(installation, repository, Path(folder) / "log") as server:
            keeper = Keeper(server.client, repository)
            await keeper.deploy(render(profile, (), base=base))
            draft = f"{DRAFT}-1" if profile.draft is not None else None
            return await calibrate(server.client, profile, f"{TARGET}-1", draft, SystemClock(), effort)


def _show(table: StepTable) -> None:
    depths = sorted({depth for cells in table.cells.values() for costs in cells.values() for depth in costs.seconds})
    columns = [Column(str(depth), justify="right") for depth in depths]
    shown = Table("pair", "batch", "context", *columns, box=None, title="ms a step, by drafted tokens")
    for pair, cells in table.cells.items():
        for (batch, context), costs in sorted(cells.items()):
            times = (f"{1_000 * costs.seconds[depth]:.1f}" if depth in costs.seconds else "" for depth in depths)
            shown.add_row(pair, str(batch), str(context), *times)
    Console(highlight=False).print(shown)
