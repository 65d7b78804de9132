"""Which candidates may run ahead of a session: contract, taint, evidence, price. Pure questions to its state."""

from forerun.core.candidates import Candidate
from forerun.core.contracts import Reason, may_speculate, staleness_seconds
from forerun.core.freshness import fresh
from forerun.core.governor import Estimate, Refusal, estimate
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.session.context import Context
from forerun.core.session.model import PreparedCall
from forerun.core.taint import tainted

_DEFAULT_TOOL_SECONDS = 0.5
_NOT_PUBLISHED = frozenset(
    {
        Refusal.COLD,
        Refusal.NOT_WORTH,
        Refusal.DUPLICATE,
        Refusal.BEING_WRITTEN,
        Refusal.TOO_FAST,
        Refusal.UNKNOWN_TOOL,
    }
)


def taint_of(c: Context, prepared: PreparedCall) -> tuple[str, ...]:
    """Paths of arguments that may not go to an open destination ahead of their call."""
    if not prepared.contract.open_world:
        return ()
    return tuple(tainted(prepared.value, c.trusted, schema=prepared.schema))


def weigh(c: Context, candidate: Candidate, prepared: PreparedCall, hidden_seconds: float | None) -> Estimate:
    """Worth and cost of running a candidate ahead, from what is known of its tool and of the model's step."""
    seconds = candidate.expected_seconds
    if seconds is None:
        seconds = c.timing.tools.get(prepared.tool, _DEFAULT_TOOL_SECONDS)
    hidden = seconds if hidden_seconds is None else min(seconds, hidden_seconds)
    return estimate(
        candidate,
        c.policy.prices,
        tool_seconds=seconds,
        hidden_seconds=hidden,
        money=prepared.contract.cost_money,
    )


def refusal(
    c: Context, candidate: Candidate, prepared: PreparedCall, weighed: Estimate, taint: tuple[str, ...]
) -> Refusal | None:
    """Why a candidate is not run ahead, by contract, evidence and price; None where only the budget is left to ask."""
    prices = c.policy.prices
    decision = may_speculate(prepared.contract)
    if not decision.allowed or decision.reason in (Reason.TRANSACTIONAL, Reason.COMPENSATED) or prepared.in_client:
        # Tools of the client and undoable writes need a way to take them back that this loop does not have.
        return Refusal.NOT_ALLOWED
    if prepared.connection:
        # What runs ahead never touches the session's own connection, and no other one knows the session's state.
        return Refusal.CONNECTION_STATE
    if taint:
        return Refusal.TAINTED
    if c.lingering.touches(prepared.private.depends):
        return Refusal.BEING_WRITTEN
    if remembered(c, prepared):
        return Refusal.DUPLICATE
    if candidate.evidence < prices.minimum_evidence:
        return Refusal.COLD
    if weighed.seconds < max(prices.minimum_tool_seconds, c.timing.control):
        return Refusal.TOO_FAST
    if weighed.lower_bound < weighed.threshold:
        return Refusal.NOT_WORTH
    if not c.health(prepared).breaker(speculative=True).admits(c.now):
        return Refusal.PROVIDER_FAILING
    if not c.sites.get(candidate.site).allows():
        return Refusal.SITE_OFF
    return None


def remembered(c: Context, prepared: PreparedCall) -> bool:
    """The memo would answer the call now."""
    entry = c.memo.get(prepared.identity)
    if entry is None:
        return False
    age = c.now - entry.started_at
    return fresh(entry.private, c.generations, age, staleness_seconds(prepared.contract)).fresh


def refuse(
    c: Context,
    candidate: Candidate,
    weighed: Estimate | None,
    reason: Refusal,
    propensity: float = 0.0,
    *,
    reserved: bool = False,
) -> None:
    """Counts a candidate that is not launched, and writes it to the ledger where that does not follow from the rule.

    One that had a reservation is always written: others may have been refused for what it held.
    """
    entry = LedgerEntry(
        kind=EntryKind.DECISION,
        tool=candidate.tool,
        site=candidate.site,
        probability=candidate.probability,
        evidence=candidate.evidence,
        lower_bound=weighed.lower_bound if weighed else 0.0,
        expected_value=weighed.value if weighed else 0.0,
        expected_cost=weighed.cost if weighed else 0.0,
        reason=reason,
        propensity=propensity,
        explanation=candidate.explanation,
    )
    c.record(entry, publish=reserved or reason not in _NOT_PUBLISHED)
