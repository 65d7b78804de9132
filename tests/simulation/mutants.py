"""Planted bugs: each is one function of the production code, replaced while some seeds run. Every one has to be caught.

The production code knows nothing of them. A bug that no invariant notices means that an invariant, or the work that
would show it, is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from forerun.core.contracts import Decision, Reason
from forerun.core.outcomes import Mode
from tests.simulation import plantings as put


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: What it is called on the command line.
        place: `module:path` of the function that is replaced.
        plant: Makes the replacement.
    """

    name: str
    place: str
    plant: put.Planting


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """The bug is there inside of the block.

    Raises:
        AttributeError, ImportError: its place is gone.
    """
    if mutant is None:
        yield
        return
    module, _, path = mutant.place.partition(":")
    owner: Any = importlib.import_module(module)
    *above, name = path.split(".")
    for part in above:
        owner = getattr(owner, part)
    kept = owner.__dict__[name]
    fixed = isinstance(kept, staticmethod)
    planted_one: Any = mutant.plant(getattr(owner, name))
    setattr(owner, name, staticmethod(planted_one) if fixed else planted_one)
    try:
        yield
    finally:
        setattr(owner, name, kept)


_SESSION: Final = "forerun.core.session"
_ORCHESTRATOR: Final = "forerun.orchestrator"
_PLAN: Final = "forerun.core.plan"

MUTANTS: Final = (
    Mutant("generations-unchecked", f"{_SESSION}.speculation:fresh", put.without_marks),
    Mutant("shared-generations-unchecked", f"{_SESSION}.speculation:Speculations._commit_shared", put.shared_unchecked),
    Mutant("memo-outlives-writes", f"{_SESSION}.lookup:fresh", put.without_marks),
    Mutant("memo-never-too-old", f"{_SESSION}.lookup:fresh", put.without_age),
    Mutant("end-of-write-uncounted", f"{_SESSION}.direct:Direct._bump_private", put.returns(None)),
    Mutant("shared-write-uncounted", f"{_ORCHESTRATOR}.shared:SharedGenerations._bump", put.does_nothing),
    Mutant("intent-not-journalled", f"{_SESSION}.direct:Direct.start", put.intent_forgotten),
    Mutant("intent-after-start", f"{_SESSION}.direct:Direct.start", put.intent_afterwards),
    Mutant("unrepeatable-retried", f"{_SESSION}.direct:Direct._may_retry", put.retries_anything),
    Mutant("intents-forgotten-at-take-over", f"{_ORCHESTRATOR}.restore:History.unknown", put.returns({})),
    Mutant("commit-twice", f"{_SESSION}.speculation:Speculations.close", put.commits_twice),
    Mutant("discarded-delivered", f"{_SESSION}.speculation:Speculations._hand_over", put.delivers_anything),
    Mutant("promotion-lost", f"{_ORCHESTRATOR}.workers:Workers.promote", put.does_nothing),
    Mutant("cancellation-lost", f"{_ORCHESTRATOR}.runner:Runner._perform", put.without_cancellations),
    Mutant("shadow-executes", f"{_SESSION}.proposals:Proposals._admit", put.executes_in_shadow),
    Mutant("mode-of-session-ignored", f"{_ORCHESTRATOR}.opening:mode_of", put.returns(Mode.EXACT)),
    Mutant("writes-run-ahead", f"{_SESSION}.admission:may_speculate", put.returns(Decision(True, Reason.READ))),
    Mutant("taint-ignored", f"{_SESSION}.proposals:taint_of", put.returns(())),
    Mutant("kill-switch-ignored", "forerun.runtime.switch:Switch.off", put.returns(None)),
    Mutant("place-not-returned", "forerun.core.governor:Purse.stopped", put.returns(None)),
    Mutant("call-place-not-returned", f"{_ORCHESTRATOR}.places:Places.leave", put.returns(None)),
    Mutant("replica-place-not-returned", f"{_ORCHESTRATOR}.places:Places.stopped", put.returns(None)),
    Mutant("slot-not-returned", "forerun.sandbox.worker.slots:Slots.release", put.returns(None)),
    Mutant("credit-not-returned", "forerun.core.governor:Purse.give_back", put.returns(None)),
    Mutant("budget-ignored", "forerun.core.governor:Purse.refusal", put.returns(None)),
    Mutant("key-order-in-identity", "forerun.core.identity:canonical", put.in_the_order_of_keys),
    Mutant("principal-not-in-identity", f"{_ORCHESTRATOR}.preparation:identity_of", put.without("principal")),
    Mutant("rights-not-in-identity", f"{_ORCHESTRATOR}.preparation:identity_of", put.without("credential_scope")),
    Mutant("strangers-admitted", f"{_ORCHESTRATOR}.engine:_same_caller", put.returns(None)),
    Mutant("epoch-not-raised", f"{_ORCHESTRATOR}.ownership:Ownership._next", put.same_epoch),
    Mutant("old-owner-not-fenced", f"{_ORCHESTRATOR}.journal:Journal.__init__", put.without_fence),
    Mutant("merge-forgotten", "forerun.sandbox.workspaces.merges:Merges.add", put.returns(None)),
    Mutant("commit-merged-under-its-own-name", f"{_SESSION}.speculation:fork_of", put.returns("")),
    Mutant("lost-race-merged", "forerun.sandbox.workspaces.workspace:Workspace._found", put.never_behind),
    Mutant("merge-lost", "forerun.sandbox.workspaces.workspace:Workspace.merge", put.merges_nothing),
    Mutant("late-effects-ignored", f"{_SESSION}.lingering:Lingering.touches", put.returns(False)),
    Mutant("answers-not-journalled", f"{_ORCHESTRATOR}.journal:Journal.write", put.without_answers),
    Mutant("barrier-ignored", f"{_SESSION}.calls:is_barrier", put.returns(False)),
    Mutant("order-ignored", "forerun.core.order:Plan.place", put.all_at_once),
    Mutant("key-conflict-unseen", f"{_SESSION}.calls:Calls._sent_before", put.conflicts_unseen),
    Mutant("deadline-ignored", f"{_SESSION}.calls:Calls.next_time", put.returns(None)),
    Mutant("race-loser-not-stopped", f"{_SESSION}.direct:Direct.finished", put.loser_runs_on),
    Mutant("race-loser-not-billed", f"{_SESSION}.racing:Racing.finished", put.loser_unbilled),
    Mutant("retry-not-billed", f"{_SESSION}.call:Call.executions", put.only_once),
    Mutant("races-without-a-cap", "forerun.core.race:Pace.may_add", put.returns(True)),
    Mutant("plan-conflicts-unordered", f"{_PLAN}.board:ordering", put.conflicts_unordered),
    Mutant("plan-after-ignored", f"{_PLAN}.board:Board.place", put.after_ignored),
    Mutant("plan-ends-in-any-order", f"{_SESSION}.machine:SessionMachine.answered", put.returns(())),
    Mutant("plan-failure-ignored", f"{_PLAN}.board:Board.judge", put.returns(None)),
    Mutant("cut-off-message-writes", f"{_PLAN}.board:Board._offer", put.never_held),
    Mutant("outcome-miscounted", "forerun.core.ledger:Totals.add", put.counts_joined_as_ready),
    Mutant("line-dropped", f"{_ORCHESTRATOR}.ledger:Outbox.put", put.drops_lines),
    Mutant("line-doubled", f"{_ORCHESTRATOR}.ledger:Outbox.put", put.doubles_lines),
)
"""All planted bugs."""

BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}
"""The same by name."""
