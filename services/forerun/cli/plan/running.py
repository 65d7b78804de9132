"""`forerun plan run`: a plan on the platform, with its tasks as they end."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.cli.plan.source import Source
from forerun.client import (
    AsyncClient,
    ForerunClientError,
    NotConfigured,
    OnFailure,
    PlanResult,
    PlanStatus,
    PlanTask,
    PlatformUnavailable,
    TaskResult,
)
from forerun.core.canonical import canonical
from forerun.core.plan import FailurePolicy, Task
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

_SHOWN_CHARS = 100


def run_plan(source: Source, agent: str, *, as_json: bool) -> int:
    """Runs a plan on the platform of FORERUN_ADDRESS, else the local one; the exit code.

    Args:
        source: The plan.
        agent: Name of the agent whose session it is.
        as_json: Print one JSON object instead of a table.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        result, seconds = asyncio.run(_run(source, agent, errors))
    except (NotConfigured, PlatformUnavailable) as error:
        errors.print(f"forerun plan run: {error.message}", style="red", markup=False)
        return EXIT_MISSING
    except ForerunClientError as error:
        errors.print(f"forerun plan run: {error.message}", style="red", markup=False)
        return EXIT_FAILED
    if as_json:
        sys.stdout.write(json.dumps(_as_json(result, seconds)) + "\n")
    else:
        _show(source, result, seconds)
    return 0 if result.status is PlanStatus.OK else EXIT_FAILED


async def _run(source: Source, agent: str, errors: Console) -> tuple[PlanResult, float]:
    on_failure = OnFailure((source.failure or FailurePolicy.ISOLATE).value)
    loop = asyncio.get_running_loop()
    async with AsyncClient() as client, client.session(agent) as session:
        began = loop.time()
        async with session.plan(on_failure=on_failure) as plan:
            telling = asyncio.ensure_future(_tell(plan.results(), errors))
            await plan.add(*(_task(one) for one in source.tasks))
            result = await plan.finish()
            seconds = loop.time() - began
        await telling
    return result, seconds


async def _tell(results: Any, errors: Console) -> None:
    async for one in results:
        errors.print(f"{one.id}: {one.status.value} after {one.seconds:.3f} s", markup=False)


def _task(task: Task) -> PlanTask:
    return PlanTask(
        id=task.id,
        tool=task.tool,
        arguments=task.text if task.text is not None else canonical(dict(task.arguments)),
        after=task.after,
        timeout_seconds=task.timeout_seconds,
        on_failure=None if task.on_failure is None else OnFailure(task.on_failure.value),
        literal=task.literal,
    )


def _as_json(result: PlanResult, seconds: float) -> dict[str, object]:
    return {
        "status": result.status.value,
        "seconds": seconds,
        "failure": None if result.failure is None else result.failure.message,
        "tasks": [
            {
                "id": one.id,
                "status": one.status.value,
                "seconds": one.seconds,
                "shared_with": one.shared_with or None,
                "content": one.content.decode("utf-8", "replace"),
                "failure": None if one.failure is None else one.failure.message,
                "reason": None if one.failure is None else one.failure.reason,
            }
            for one in result.tasks
        ],
    }


def _show(source: Source, result: PlanResult, seconds: float) -> None:
    table = Table(title=f"{len(result.tasks)} tasks in {seconds:.3f} s: {result.status.value}")
    for heading in ("task", "tool", "ended", "seconds", "gave"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    tools = {task.id: task.tool for task in source.tasks}
    for one in result.tasks:
        table.add_row(one.id, tools[one.id], one.status.value, f"{one.seconds:.3f}", _gave(one))
    Console(highlight=False).print(table, markup=False)


def _gave(one: TaskResult) -> str:
    if one.failure is not None:
        return f"{one.failure.reason}: {one.failure.message}"
    text = one.content.decode("utf-8", "replace")
    shared = f" (shared with {one.shared_with})" if one.shared_with else ""
    return (text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…") + shared
