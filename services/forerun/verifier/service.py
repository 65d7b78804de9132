"""The gRPC face of the verifier: messages to decisions and back. Only services of the installation may call it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import grpc.aio

from forerun.core.contracts import Contract
from forerun.core.freshness import Recorded
from forerun.core.outcomes import CallStatus
from forerun.runtime import metrics_table as m
from forerun.runtime.auth import require_service
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.metrics import Metrics
from forerun.runtime.policy import contract_of
from forerun.v1 import common_pb2, policy_pb2, verification_pb2_grpc
from forerun.v1 import verification_pb2 as pb
from forerun.verifier.audits import Auditor, checked
from forerun.verifier.engine import Finished, Refusal, Verdict, certify
from forerun.verifier.evidence import AuditResult

_Context = grpc.aio.ServicerContext[Any, Any]

_STATUSES: Final = {common_pb2.CallStatus.Value(f"CALL_STATUS_{status.name}"): status for status in CallStatus}
_RESULTS: Final = {
    AuditResult.SAME: pb.AUDIT_RESULT_SAME,
    AuditResult.DIFFERENT: pb.AUDIT_RESULT_DIFFERENT,
    AuditResult.INCONCLUSIVE: pb.AUDIT_RESULT_INCONCLUSIVE,
}
_METRIC: Final = {
    None: "certified",
    Refusal.NOT_SPECULABLE: "contract",
    Refusal.TOOL_CHANGED: "contract",
    Refusal.OUTPUT_ABOVE_CAP: "contract",
    Refusal.TAINTED: "taint",
    Refusal.STALE: "stale",
    Refusal.FAILED: "failed",
}
_CONTRACTS_KNOWN: Final = 4_096


class VerificationServicer(verification_pb2_grpc.VerificationServiceServicer):
    """Serves `VerificationService`.

    Args:
        auditor: Does audits.
        metrics: Where verdicts are counted.
    """

    def __init__(self, auditor: Auditor, metrics: Metrics) -> None:
        self._auditor = auditor
        self._metrics = metrics

    async def Certify(self, request: pb.CertifyRequest, context: _Context) -> pb.CertifyResponse:  # noqa: N802
        """Certifies one finished speculation."""
        require_service()
        verdict = verdict_on(request)
        self._metrics.add(m.CERTIFICATIONS, result=_METRIC[verdict.refusal])
        if verdict.refusal is None:
            return pb.CertifyResponse(certified=True)
        return pb.CertifyResponse(reason=verdict.refusal.value, detail=verdict.detail)

    async def Audit(self, request: pb.AuditRequest, context: _Context) -> pb.AuditResponse:  # noqa: N802
        """Executes a committed read again and compares."""
        require_service()
        audit = checked(request)
        finding = await self._auditor.audit(audit)
        await self._auditor.record(audit, finding)
        return pb.AuditResponse(result=_RESULTS[finding.result], digest=finding.digest)


def verdict_on(request: pb.CertifyRequest) -> Verdict:
    """The verdict on what a request says.

    Raises:
        InvalidArgument: something that is needed is missing or no number; the metadata names it.
    """
    status = _STATUSES.get(request.status)
    for field, present in (
        ("speculation", request.speculation),
        ("contract", request.HasField("contract")),
        ("action.tool", request.action.tool),
        ("action.tool_version", request.action.tool_version),
        ("status", status),
        ("observation", request.HasField("observation") or status is not CallStatus.OK),
        ("recorded", request.HasField("recorded")),
        ("current", request.HasField("current")),
        ("age_seconds", math.isfinite(request.age_seconds) and request.age_seconds >= 0.0),
    ):
        if not present:
            raise InvalidArgument(
                ErrorReason.ARGUMENT_INVALID, f"{field} is missing or no usable value", metadata={"field": field}
            )
    assert status is not None
    return certify(
        Finished(
            contract=_contract(request.contract.SerializeToString(deterministic=True)),
            tool_version=request.action.tool_version,
            current_tool_version=request.current_tool_version,
            status=status,
            tool_error=request.observation.tool_error,
            size_bytes=request.observation.size_bytes,
            recorded=Recorded(dict(sorted(request.recorded.marks.items()))),  # a message keeps no order of them
            current=dict(request.current.marks),
            age_seconds=request.age_seconds,
            tainted_paths=tuple(request.tainted_paths),
        )
    )


@lru_cache(maxsize=_CONTRACTS_KNOWN)
def _contract(data: bytes) -> Contract:
    """The contract of a message; the same few come with every request."""
    return contract_of(policy_pb2.EffectContract.FromString(data))
