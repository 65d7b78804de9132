"""What a task touches, as far as that is known before the tasks that it refers to have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.contracts import Contract, Effect, effective, is_barrier, repeatable, shareable
from forerun.core.identity import canonical_arguments
from forerun.core.order import BatchCall
from forerun.core.plan.check import Checked
from forerun.core.resources import ROOT, footprint
from forerun.core.shell import DEFAULT_RULES

_BARRIER = BatchCall(writes=(ROOT,), barrier=True)


@dataclass(frozen=True, slots=True)
class Ordering:
    """What decides when a task may start.

    Attributes:
        call: For the order of conflicts.
        safe_read: It changes nothing and has no price of its own: it may start before a message is complete.
        repeatable: It may be run again when its outcome is not known.
        timeout_seconds: Longest execution.
        tool_limit: Executions of the tool at the same time.
    """

    call: BatchCall
    safe_read: bool
    repeatable: bool
    timeout_seconds: float
    tool_limit: int


def ordering(
    checked: Checked, contract: Contract, *, workspace_root: str | None, links: Mapping[str, str] | None
) -> Ordering:
    """What a task touches under the contract of its tool.

    What depends on a reference may be anything: a key is cut before its first unknown segment, and a command line
    that is not known yet may do everything.
    """
    template = checked.template
    exact = effective(contract, template.known, DEFAULT_RULES)
    seconds = checked.task.timeout_seconds or contract.timeout_seconds
    unknown_command = contract.shell_argument in template.open_names
    return Ordering(
        call=_BARRIER if unknown_command else _call(checked, exact, workspace_root, links),
        safe_read=exact.known and exact.effect is not Effect.WRITE and not exact.consuming and not exact.metered,
        repeatable=repeatable(exact) and not unknown_command,
        timeout_seconds=min(seconds, limits.DEADLINE_MAX_SECONDS),
        tool_limit=max(1, contract.concurrency),
    )


def _call(
    checked: Checked, contract: Contract, workspace_root: str | None, links: Mapping[str, str] | None
) -> BatchCall:
    keys = footprint(contract, checked.template.known, workspace_root=workspace_root, links=links)
    same = None
    if shareable(contract) and not checked.task.after:
        # Equal references stand for equal values, so the arguments can be compared before they are resolved.
        same = (checked.task.tool, bool(checked.refers), _comparable(checked, contract))
    return BatchCall(reads=keys.reads, writes=keys.writes, barrier=is_barrier(contract), same=same)


def _comparable(checked: Checked, contract: Contract) -> bytes:
    if checked.refers:
        return checked.canonical
    return canonical_arguments(
        checked.template.known,
        insensitive_fields=contract.insensitive_fields,
        nfc_fields=contract.nfc_fields,
    )
