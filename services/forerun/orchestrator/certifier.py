"""Asks the verifier about finished speculations.

A verifier that does not answer would hold up every call that has joined a speculation. After the first silence nothing
is launched any more and nobody waits for it, but for one probe at a time, until it answers again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from forerun.core.session import Certificate, Certify
from forerun.orchestrator.records import status_message
from forerun.runtime.auth import Caller, on_behalf_of
from forerun.runtime.errors import DeadlineExceeded, ErrorReason, ForerunError, Unavailable
from forerun.runtime.network import Network, rpc_errors
from forerun.runtime.policy import contract_message
from forerun.v1 import common_pb2, verification_pb2, verification_pb2_grpc

_CERTIFY_SECONDS: Final = 2.0
_PROBE_SECONDS: Final = 5.0


class Certifier:
    """The verifier, as the orchestrator sees it.

    Args:
        network: How it is reached.
        target: Its address.
    """

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target
        self._silent = False
        self._asking = 0
        self._probe_at = 0.0

    def answers(self) -> bool:
        """Something may be launched: the verifier answers, or it is time to try whether it does again."""
        if not self._silent:
            return True
        now = asyncio.get_running_loop().time()
        if now < self._probe_at:
            return False
        self._probe_at = now + _PROBE_SECONDS
        return True

    async def certify(self, effect: Certify, caller: Caller, current_tool_version: str) -> Certificate:
        """The verdict; a verifier that cannot be reached certifies nothing."""
        if self._silent and self._asking:
            return _SILENT
        self._asking += 1
        try:
            return await self._ask(effect, caller, current_tool_version)
        finally:
            self._asking -= 1

    async def _ask(self, effect: Certify, caller: Caller, current_tool_version: str) -> Certificate:
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
            self._silent = self._silent or isinstance(error, Unavailable | DeadlineExceeded)
            self._probe_at = asyncio.get_running_loop().time() + _PROBE_SECONDS
            return Certificate(certified=False, reason=error.reason, reachable=False)
        self._silent = False
        return Certificate(certified=response.certified, reason=response.reason or response.detail)


_SILENT: Final = Certificate(certified=False, reason=ErrorReason.PEER_UNAVAILABLE, reachable=False)
