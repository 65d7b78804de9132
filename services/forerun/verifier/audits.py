"""Audits: a sample of committed hits is executed again, so that the promise of equal results is measured."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.core.contracts import Contract
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Bus, ConsumerSpec, Message
from forerun.runtime.bus_errors import Poison
from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    ErrorReason,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from forerun.runtime.metrics import Metrics
from forerun.runtime.policy import contract_of
from forerun.runtime.topology import AUDITS, GENERATIONS
from forerun.v1 import event_pb2, ledger_pb2, verification_pb2
from forerun.verifier.evidence import AuditResult, Contracts, Finding, Journal, auditable, shared_marks, unprovable
from forerun.verifier.execution import Execution, Executor

_LOG: Final = logging.getLogger(__name__)

_PAGE: Final = 500
_APPEND_SECONDS: Final = 5.0
_METRIC: Final = {AuditResult.SAME: "equal", AuditResult.DIFFERENT: "diverged"}


def consumer_spec(concurrency: int) -> ConsumerSpec:
    """How the verifiers of an installation share the audits.

    Args:
        concurrency: Audits at a time in this process. Each takes a speculative slot of a worker.
    """
    return ConsumerSpec(
        stream=AUDITS,
        name="verifier",
        subjects=(f"{subjects.PREFIX}.audit.>",),
        concurrency=concurrency,
        # An execution may be as long as the longest call.
        handler_timeout_seconds=limits.DEADLINE_MAX_SECONDS + 60.0,
        max_deliver=8,
        retry_delay_seconds=0.5,
        retry_delay_max_seconds=30.0,
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit to be done.

    Attributes:
        request: As the owner of the session asked for it.
        contract: The contract of the audited call.
    """

    request: verification_pb2.AuditRequest
    contract: Contract

    @property
    def line(self) -> ledger_pb2.LedgerLine:
        """The ledger line of the hit."""
        return self.request.line


def checked(request: verification_pb2.AuditRequest) -> Audit:
    """The audit that a request asks for.

    Raises:
        InvalidArgument: something that is needed is missing; the metadata names it.
        FailedPrecondition: the call must not be executed again.
    """
    line = request.line
    for field, value in (
        ("line.id", line.id), ("line.tenant", line.tenant), ("line.session", line.session),
        ("line.digest", line.digest), ("line.at_seconds", line.at_seconds), ("action.tool", request.action.tool),
        ("contract", request.HasField("contract")),
    ):  # fmt: skip
        if not value:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"{field} is missing", metadata={"field": field})
    contract = contract_of(request.contract)
    if not auditable(contract):
        raise FailedPrecondition(
            ErrorReason.POLICY_DENIED,
            "only calls that read can be audited: executing this one again could change something",
            metadata={"tool": request.action.tool},
        )
    return Audit(request, contract)


class Auditor:
    """Does audits and records what they found.

    Args:
        bus: Where journal, generations and ledger are.
        executor: Executes actions.
        clock: For the time of ledger lines.
        metrics: Where audits are counted.
        settle_seconds: How long to wait, after two results differed, for writes that are not in the journal yet.
    """

    def __init__(self, bus: Bus, executor: Executor, *, clock: Clock, metrics: Metrics, settle_seconds: float) -> None:
        self._bus = bus
        self._generations = bus.kv(GENERATIONS)
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._settle_seconds = settle_seconds

    # ------------------------------------------------------------ from the stream

    async def handle(self, message: Message) -> None:
        """Does the audit of a message of the stream; it may be delivered again.

        Raises:
            Poison: it is no audit that anybody could do.
            ForerunError: it can be tried again.
        """
        try:
            request = verification_pb2.AuditRequest.FromString(message.data)
        except DecodeError:
            raise Poison("not_an_audit_request") from None
        if message.subject != subjects.audit(request.line.tenant):
            raise Poison("tenant_mismatch")
        try:
            audit = checked(request)
        except InvalidArgument:
            raise Poison("incomplete") from None
        except FailedPrecondition:
            raise Poison("not_auditable") from None
        if message.deliveries > 1 and await self._is_recorded(audit.line):
            return
        try:
            finding = await self.audit(audit)
        except (Unavailable, ResourceExhausted) as error:
            if message.deliveries < consumer_spec(1).max_deliver:
                raise
            finding = Finding(AuditResult.INCONCLUSIVE, f"no worker took it: {error.reason}")
        await self.record(audit, finding)

    # ------------------------------------------------------------ one audit

    async def audit(self, audit: Audit) -> Finding:
        """Executes a committed call again and compares.

        Raises:
            Unavailable: no worker, or the broker, can be reached now.
            ResourceExhausted: no worker has a free slot now.
        """
        written = await self._written_since(audit)
        if written:
            return Finding(AuditResult.INCONCLUSIVE, written)
        request = audit.request
        caller = Caller(audit.line.tenant, audit.line.principal, request.credential_scope)
        execution = await self._executor.execute(request, audit.contract, caller)
        if execution.failure:
            return _inconclusive(execution, execution.failure)
        if execution.tool_version != request.action.tool_version and request.action.tool_version:
            return _inconclusive(execution, "the tool changed")
        if execution.digest == audit.line.digest:
            return Finding(AuditResult.SAME, "", execution.digest, execution.seconds, executed=True)
        reason = unprovable(audit.contract)
        if not reason:
            await asyncio.sleep(self._settle_seconds)
            reason = await self._written_since(audit)
        if reason:
            return _inconclusive(execution, reason)
        return Finding(AuditResult.DIFFERENT, "", execution.digest, execution.seconds, executed=True)

    async def _written_since(self, audit: Audit) -> str:
        """What may have been written since the hit; empty where nothing was."""
        request, line = audit.request, audit.line
        for mark, generation in shared_marks(line.generations.marks).items():
            entry = await self._generations.get(f"{line.tenant}/{mark}")
            if (0 if entry is None else entry.revision) != generation:
                return "a shared resource was written"
        journal = Journal(
            (line.call.turn, line.call.index),
            line.at_seconds,
            Contracts(contract_of(contract) for contract in request.contracts),
            in_workspace=bool(request.workspace),
        )
        subject = subjects.event(request.partition, line.tenant, line.agent, line.session)
        after = 0
        while messages := await self._bus.read(subject, after_sequence=after, limit=_PAGE):
            for message in messages:
                try:
                    journal.take(event_pb2.SessionEvent.FromString(message.data))
                except DecodeError:
                    return "the journal holds an event that is not known here"
                after = message.sequence or after
            if len(messages) < _PAGE:
                break
        return journal.written

    # ------------------------------------------------------------ records

    async def record(self, audit: Audit, finding: Finding) -> None:
        """Writes the ledger line of an audit, once, however often it is called, and counts it.

        Raises:
            Unavailable: it is not certain that it was written.
        """
        line = audit.line
        found = ledger_pb2.LedgerLine(
            id=_audit_id(line),
            kind=ledger_pb2.LEDGER_KIND_AUDIT,
            at_seconds=self._clock.now(),
            tenant=line.tenant,
            principal=line.principal,
            agent=line.agent,
            session=line.session,
            tool=line.tool,
            site=line.site,
            identity=line.identity,
            policy=line.policy,
            mode=line.mode,
            speculation=line.speculation,
            call=line.call,
            digest=finding.digest,
            seconds=finding.seconds,
            cost_money=audit.contract.cost_money if finding.executed else 0.0,
            reason=finding.reason,
            audit_result=finding.result.value,
        )
        await self._bus.append(
            subjects.ledger(line.tenant, line.session),
            found.SerializeToString(),
            message_id=found.id,
            timeout_seconds=_APPEND_SECONDS,
        )
        skipped = "failed" if finding.executed else "skipped"
        self._metrics.add(m.AUDITS, result=_METRIC.get(finding.result, skipped))
        if finding.result is AuditResult.DIFFERENT:
            _LOG.error(
                "an audit found another result than the one that was committed",
                extra={"fields": {"forerun.speculation": line.speculation, "gen_ai.tool.name": line.tool}},
            )

    async def _is_recorded(self, line: ledger_pb2.LedgerLine) -> bool:
        """Whether an earlier attempt got as far as the ledger. Repeats are rare, so reading it is cheap enough."""
        wanted, after = _audit_id(line), 0
        while messages := await self._bus.read(
            subjects.ledger(line.tenant, line.session), after_sequence=after, limit=_PAGE
        ):
            for message in messages:
                if ledger_pb2.LedgerLine.FromString(message.data).id == wanted:
                    return True
                after = message.sequence or after
            if len(messages) < _PAGE:
                break
        return False


def _inconclusive(execution: Execution, reason: str) -> Finding:
    return Finding(AuditResult.INCONCLUSIVE, reason, execution.digest, execution.seconds, executed=execution.executed)


def _audit_id(line: ledger_pb2.LedgerLine) -> str:
    return f"audit-{line.id}"
