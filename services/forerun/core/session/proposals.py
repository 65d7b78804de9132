"""Candidates of the predictor: ranked, and launched where they pay and the budget allows it."""

from collections.abc import Iterable

from forerun.core import limits
from forerun.core.governor import Estimate, Refusal, ranked
from forerun.core.outcomes import Mode
from forerun.core.session.admission import refusal, refuse, taint_of, weigh
from forerun.core.session.context import Context
from forerun.core.session.model import Failure, PreparedCall, Proposal
from forerun.core.session.speculated import Speculation
from forerun.core.session.speculation import Speculations


class Proposals:
    """Decides on candidates."""

    def __init__(self, context: Context, speculations: Speculations) -> None:
        self._c = context
        self._speculations = speculations

    def propose(self, proposals: Iterable[Proposal], hidden_seconds: float | None) -> None:
        """Ranks candidates and launches what pays; everything else is counted with its reason."""
        worth: list[tuple[Proposal, PreparedCall, Estimate, tuple[str, ...]]] = []
        for proposal in proposals:
            prepared = proposal.prepared
            if isinstance(prepared, Failure):
                unknown = prepared.reason == "TOOL_NOT_FOUND"
                refuse(self._c, proposal.candidate, None, Refusal.UNKNOWN_TOOL if unknown else Refusal.BAD_ARGUMENTS)
                continue
            taint = taint_of(self._c, prepared)
            weighed = weigh(self._c, proposal.candidate, prepared, hidden_seconds)
            reason = refusal(self._c, proposal.candidate, prepared, weighed, taint)
            if self._speculations.knows(prepared):
                reason = Refusal.DUPLICATE
            if reason is None:
                worth.append((proposal, prepared, weighed, taint))
            else:
                refuse(self._c, proposal.candidate, weighed, reason)
        for index in ranked([(proposal.candidate, weighed) for proposal, _, weighed, _ in worth]):
            self._admit(*worth[index])

    def _admit(self, proposal: Proposal, prepared: PreparedCall, weighed: Estimate, taint: tuple[str, ...]) -> None:
        candidate, money = proposal.candidate, prepared.contract.cost_money if prepared.contract.metered else 0.0
        if self._c.mode is Mode.SHADOW:
            refuse(self._c, candidate, weighed, Refusal.SHADOW)
            return
        # Asked again here: another candidate of the same prediction may have been admitted since.
        reason = Refusal.DUPLICATE if self._speculations.knows(prepared) else self._c.purse.refusal(money)
        if (
            reason is None
            and len(self._speculations) >= limits.SPECULATIONS_PER_SESSION
            and not self._speculations.make_room()
        ):
            reason = Refusal.BOUND
        withhold = self._c.policy.withhold
        if reason is None and proposal.draw < withhold:
            reason = Refusal.WITHHELD
        if reason is not None:
            propensity = 1.0 - withhold if reason is Refusal.WITHHELD else 0.0
            refuse(self._c, candidate, weighed, reason, propensity)
            return
        self._c.purse.reserve(money)
        self._speculations.launch(
            Speculation(
                id=self._c.execution_id(),
                prepared=prepared,
                candidate=candidate,
                estimate=weighed,
                policy_version=self._c.policy.version,
                tainted_paths=taint,
                money=money,
                turn=self._speculations.turn,
                propensity=withhold,
            )
        )
