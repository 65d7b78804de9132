"""Executes an action again, on a sandbox worker, at the lowest priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forerun.core.contracts import Contract
from forerun.runtime import metrics_table as m
from forerun.runtime.auth import Caller, on_behalf_of
from forerun.runtime.errors import (
    DeadlineExceeded,
    ErrorReason,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from forerun.runtime.ids import Ids
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import Network, rpc_errors
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc, verification_pb2
from forerun.verifier.workers import Workers

# Beyond the tool's own time-out: what the worker needs to tell that it passed.
_MARGIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Execution:
    """A second execution.

    Attributes:
        failure: Why it gave no result that could be compared; empty where it did.
        digest: Digest of its result.
        seconds: Wall seconds in the slot.
        tool_version: Version of the tool that ran.
        executed: A worker was asked.
    """

    failure: str = ""
    digest: str = ""
    seconds: float = 0.0
    tool_version: str = ""
    executed: bool = True


class Executor:
    """Executes on workers.

    Args:
        network: How workers are reached.
        workers: Which ones there are.
        ids: Makes ids of executions.
        metrics: Where executions are counted.
    """

    def __init__(self, network: Network, workers: Workers, *, ids: Ids, metrics: Metrics) -> None:
        self._network = network
        self._workers = workers
        self._ids = ids
        self._metrics = metrics

    async def execute(self, request: verification_pb2.AuditRequest, contract: Contract, caller: Caller) -> Execution:
        """Executes the action of a request on behalf of a caller.

        Raises:
            Unavailable: no worker can be reached, or the way to it broke.
            ResourceExhausted: it has no free slot, or needed it for something else.
        """
        if request.workspace and not request.worker and self._workers.count > 1:
            # Another worker would run it in a new, empty workspace and prove something about that one.
            return Execution("it is not known which worker has the workspace", executed=False)
        stub = sandbox_pb2_grpc.SandboxServiceStub(self._network.channel(self._workers.address(request.worker)))
        call = stub.Execute(
            self._message(request, contract, caller),
            timeout=contract.timeout_seconds + _MARGIN_SECONDS,
            metadata=on_behalf_of(caller),
        )
        version = ""
        try:
            with rpc_errors():
                async for response in call:
                    step = response.WhichOneof("step")
                    if step == "started":
                        version = response.started.tool_version
                        self._metrics.add(m.TOOL_EXECUTIONS, mode="audit")
                    elif step == "finished":
                        return _ended(response.finished, version)
        except NotFound:
            return Execution("the tool is not there any more")
        except InvalidArgument:
            return Execution("the tool does not take these arguments any more")
        except DeadlineExceeded:
            return Execution("the tool did not answer", tool_version=version)
        finally:
            call.cancel()
        raise Unavailable(ErrorReason.CALL_INTERRUPTED, "the worker ended the stream before the execution was finished")

    def _message(
        self, request: verification_pb2.AuditRequest, contract: Contract, caller: Caller
    ) -> sandbox_pb2.ExecuteRequest:
        execution = self._ids.uuid7()
        message = sandbox_pb2.ExecuteRequest(
            execution=execution,
            caller=common_pb2.Caller(
                tenant=caller.tenant, principal=caller.principal, credential_scope=caller.credential_scope
            ),
            session=request.line.session,
            action=request.action,
            priority=sandbox_pb2.PRIORITY_AUDIT,
            timeout_seconds=contract.timeout_seconds,
            idempotency_key=execution,
            tool_concurrency=contract.concurrency,
            session_label=request.session_label,
        )
        if contract.output_cap_bytes is not None:
            message.output_cap_bytes = contract.output_cap_bytes
        return message


def _ended(finished: sandbox_pb2.ExecutionFinished, version: str) -> Execution:
    if finished.preempted:
        raise ResourceExhausted(ErrorReason.PREEMPTED, "authoritative work needed the slot")
    if finished.status != common_pb2.CALL_STATUS_OK:
        status = common_pb2.CallStatus.Name(finished.status).removeprefix("CALL_STATUS_").lower()
        return Execution(f"the tool gave no result: {status}", seconds=finished.seconds, tool_version=version)
    return Execution(digest=finished.observation.digest, seconds=finished.seconds, tool_version=version)
