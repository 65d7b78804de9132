"""What the verifier needs to execute a committed hit again."""

from __future__ import annotations

from forerun.core.session import PreparedCall
from forerun.orchestrator.session import Session
from forerun.runtime import subjects
from forerun.runtime.policy import contract_message
from forerun.v1 import common_pb2, ledger_pb2, verification_pb2


def audit_request(
    session: Session, prepared: PreparedCall, line: ledger_pb2.LedgerLine, *, worker: str, partitions: int
) -> verification_pb2.AuditRequest:
    """Asks for an audit.

    Args:
        session: Whose hit it is.
        prepared: What ran.
        line: The ledger line of the hit.
        worker: Id of the session's worker: only there is its workspace.
        partitions: Predictor partitions.
    """
    return verification_pb2.AuditRequest(
        line=line,
        action=common_pb2.Action(tool=prepared.tool, tool_version=prepared.version, arguments=prepared.arguments),
        workspace=session.context.session if prepared.uses_workspace else "",
        worker=worker if prepared.uses_workspace else "",
        contract=contract_message(prepared.contract),
        credential_scope=session.caller.credential_scope,
        session_label=session.label,
        contracts=[contract_message(tool.contract(session.policy)) for tool in session.tools.values()],
        partition=subjects.partition(session.caller.tenant, session.context.agent, partitions=partitions),
    )
