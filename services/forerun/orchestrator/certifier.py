"""Asks the verifier about finished speculations.

A verifier that does not answer would hold up every call that has joined a speculation. After the first silence nothing
is launched any more and nobody waits for it; a look in the background finds out when it answers again.
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
from forerun.runtime.tasks import TaskScope
from forerun.v1 import common_pb2, verification_pb2, verification_pb2_grpc

_CERTIFY_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 1.0
_NO_ANSWER: Final = (Unavailable, DeadlineExceeded)


class Certifier:
    """The verifier, as the orchestrator sees it.

    Args:
        network: How it is reached.
        target: Its address.
        tasks: Owns the look at a silent one.

    Attributes:
        silent: It did not answer lately: what would run ahead could not be certified.
    """

    def __init__(self, network: Network, target: str, tasks: TaskScope) -> None:
        self._stub = verification_pb2_grpc.VerificationServiceStub(network.channel(target))
        self._tasks = tasks
        self.silent = False

    async def certify(self, effect: Certify, caller: Caller, current_tool_version: str) -> Certificate:
        """The verdict; a verifier that cannot be reached certifies nothing."""
        if self.silent:
            return Certificate(certified=False, reason=ErrorReason.PEER_UNAVAILABLE, reachable=False)
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
        try:
            with rpc_errors():
                response = await self._stub.Certify(request, timeout=_CERTIFY_SECONDS, metadata=on_behalf_of(caller))
        except ForerunError as error:
            if isinstance(error, _NO_ANSWER) and not self.silent:
                self.silent = True
                self._tasks.keep(self._until_it_answers, name="silent-verifier")
            return Certificate(certified=False, reason=error.reason, reachable=False)
        return Certificate(certified=response.certified, reason=response.reason or response.detail)

    async def _until_it_answers(self) -> None:
        while self.silent:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                with rpc_errors():
                    await self._stub.Certify(verification_pb2.CertifyRequest(), timeout=_CERTIFY_SECONDS)
            except ForerunError as error:
                # It says that nothing was asked: it answers.
                self.silent = isinstance(error, _NO_ANSWER)
            else:
                self.silent = False
