"""As many sessions as one replica takes, open at the same time."""

from __future__ import annotations

import asyncio
import json
import resource

import pytest

from forerun.core import limits
from forerun.runtime.auth import CallToken, token_digest
from forerun.runtime.errors import ResourceExhausted
from forerun.runtime.memory_network import MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import rpc_errors
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.v1 import event_pb2, session_pb2, session_pb2_grpc
from tests.integration.bounds.conftest import RULES, batch_of, hello_of
from tests.integration.cases.conftest import Play, Stage

TENANTS = limits.SESSIONS_PER_REPLICA // limits.SESSIONS_PER_TENANT
AT_A_TIME = 100
KIB_PER_SESSION = 64
"""An idle session takes about 16 KiB; beyond this bound something is kept that should not be."""


def peak_kib() -> int:
    """The largest size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_ten_thousand_sessions_are_open_at_once_and_one_more_is_refused(play: Play) -> None:
    async def scene(s: Stage) -> None:
        names = [f"tenant-{number}" for number in range(TENANTS + 1)]
        tokens = [{"sha256": token_digest(name), "tenant": name, "principal": "p", "scope": "all"} for name in names]
        (s.directory / "tokens.json").write_text(json.dumps({"tokens": tokens}))
        await asyncio.sleep(1.0)
        inbound = Inbound(authenticator=None, metrics=Metrics(None), tracing=Tracing("client"))
        networks = [MemoryNetwork(s.platform.fabric, inbound, source=name, token=CallToken(name)) for name in names]
        stubs = [session_pb2_grpc.SessionServiceStub(network.channel("orchestrator:1")) for network in networks]

        async def begin(number: int) -> str:
            session = s.ids.uuid7()
            event = session_pb2.ClientEvent(user_turn=event_pb2.UserTurn(text="hello"))
            request = session_pb2.RecordEventRequest(hello=hello_of(session), id=s.ids.uuid7(), event=event)
            await stubs[number % TENANTS].RecordEvent(request, timeout=60.0)
            return session

        before = peak_kib()
        sessions: list[str] = []
        for first in range(0, limits.SESSIONS_PER_REPLICA, AT_A_TIME):
            sessions += await asyncio.gather(*(begin(first + number) for number in range(AT_A_TIME)))
        assert peak_kib() - before < KIB_PER_SESSION * limits.SESSIONS_PER_REPLICA
        counts = [(await stub.GetTotals(session_pb2.GetTotalsRequest(), timeout=5.0)).totals.sessions for stub in stubs]
        assert counts == [limits.SESSIONS_PER_TENANT] * TENANTS + [0]

        # One more is refused, to a tenant with too many and to one that has none.
        batch = batch_of(1, ("get", b'{"id":1}'))
        request = session_pb2.CallToolsRequest(hello=hello_of(s.ids.uuid7()), batch=batch)
        for stub, limit in ((stubs[0], "SESSIONS_PER_TENANT"), (stubs[-1], "SESSIONS_PER_REPLICA")):
            with pytest.raises(ResourceExhausted) as caught, rpc_errors():
                await stub.CallTools(request, timeout=5.0)
            assert caught.value.metadata["limit"] == limit

        # Those that are open work, and one that ends makes room.
        request.hello.CopyFrom(hello_of(sessions[-1]))
        owner = stubs[(len(sessions) - 1) % TENANTS]
        assert (await owner.CallTools(request, timeout=30.0)).results[0].observation.content
        await owner.EndSession(session_pb2.EndSessionRequest(session=sessions[-1]), timeout=5.0)
        request.hello.CopyFrom(hello_of(s.ids.uuid7()))
        assert (await stubs[-1].CallTools(request, timeout=30.0)).results[0].observation.content
        for network in networks:
            await network.close()

    play(scene, RULES)
