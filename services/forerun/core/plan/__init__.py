"""Plans: actions with typed references to each other, run as parallel as their inputs and contracts allow.

`PlanMachine` takes tasks, ends of tasks and the time, and gives effects in order, like the session machine: whoever
runs it performs them and feeds back what came of them. Every run is as if the tasks had run one after another in call
order.
`intake` reads plans and model messages as they arrive.
"""

from forerun.core.plan.check import PlanError, Problem
from forerun.core.plan.effects import CancelTask, PlanEffect, PlanFinished, Progress, ShareTask, StartTask, TaskSettled
from forerun.core.plan.machine import PlanMachine
from forerun.core.plan.model import (
    Cause,
    Early,
    FailurePolicy,
    PlanJournal,
    PlanOptions,
    PlanStatus,
    Task,
    TaskEnd,
    TaskResult,
    TaskStatus,
)
from forerun.core.plan.recorded import RecordedEnds

__all__ = [
    "CancelTask",
    "Cause",
    "Early",
    "FailurePolicy",
    "PlanEffect",
    "PlanError",
    "PlanFinished",
    "PlanJournal",
    "PlanMachine",
    "PlanOptions",
    "PlanStatus",
    "Problem",
    "Progress",
    "RecordedEnds",
    "ShareTask",
    "StartTask",
    "Task",
    "TaskEnd",
    "TaskResult",
    "TaskSettled",
    "TaskStatus",
]
