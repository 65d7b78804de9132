"""Asks the verifier about finished speculations."""

from __future__ import annotations

from typing import Final

from forerun.core.session import Certificate, Certify
from forerun.orchestrator.records import status_message
from forerun.runtime.auth import Caller, on_behalf_of
from forerun.runtime.errors import ForerunError
from forerun.runtime.network import Network, rpc_errors
from forerun.runtime.policy import contract_message
from forerun.v1 import common_pb2, verification_pb2, verification_pb2_grpc

_CERTIFY_SECONDS: Final = 2.0


class Certifier:
    """The verifier, as the orchestrator sees it.

    Args:
        network: How it is reached.
        target: Its address.
    """

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target

    async def certify(self, effect: Certify, caller: Caller, current_tool_version: str) -> Certificate:
        """The verdict; an unreachable verifier certifies nothing."""
        prepared, result = effect.prepared, effect.result
        request = verification_pb2.CertifyRequest(
            speculation=effect.speculation,
            caller=common_pb2.Caller(
                tenant=caller.tenant, principal=caller.principal, credential_scope=caller.credential_scope
            ),
            action=common_pb2.Action(tool=prepared.tool, tool_version=prepared.version, arguments=prepared.arguments),
            contract=contract_message(prepared.contract),
            policy_version=effect.policy_version,
            current_tool_version=current_tool_version,
            status=status_message(result.status),
            observation=common_pb2.Observation(
                media_type=result.media_type,
                tool_error=result.tool_error,
                digest=result.digest,
                size_bytes=len(result.content),
            ),
            recorded=common_pb2.Generations(marks=dict(effect.recorded)),
            current=common_pb2.Generations(marks=dict(effect.current)),
            age_seconds=effect.age_seconds,
            tainted_paths=effect.tainted_paths,
        )
        stub = verification_pb2_grpc.VerificationServiceStub(self._network.channel(self._target))
        try:
            with rpc_errors():
                response = await stub.Certify(request, timeout=_CERTIFY_SECONDS, metadata=on_behalf_of(caller))
        except ForerunError as error:
            return Certificate(certified=False, reason=error.reason, reachable=False)
        return Certificate(certified=response.certified, reason=response.reason or response.detail)
