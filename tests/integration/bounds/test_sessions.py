"""How many sessions a replica has, who may end and switch what, and what is left when an owner is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from starlette.responses import Response

from forerun.cli.virtual import TENANT, USER_TOKEN
from forerun.client import AsyncClient, ForerunClientError, Mode, NotAuthorized, PlatformUnavailable
from forerun.orchestrator.app import build
from forerun.orchestrator.ledger import Outbox
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime import bus_memory_clients
from forerun.runtime.auth import token_digest
from forerun.runtime.bus_memory import MemoryBus
from forerun.runtime.errors import ErrorReason, NotFound
from forerun.runtime.network import rpc_errors
from forerun.v1 import common_pb2, event_pb2, session_pb2, session_pb2_grpc
from tests.integration.bounds.conftest import RULES, Raw, batch_of, hello_of, stub_of
from tests.integration.cases.conftest import Play, Run, Stage, Tools


def write_users(s: Stage, *users: tuple[str, str, str]) -> None:
    """Who may call, as (token, tenant, role)."""
    tokens = [
        {"sha256": token_digest(token), "tenant": tenant, "principal": "p", "scope": "all", "role": role}
        for token, tenant, role in users
    ]
    first = {"sha256": token_digest(USER_TOKEN), "tenant": TENANT, "principal": "user", "scope": "all"}
    (s.directory / "tokens.json").write_text(json.dumps({"tokens": [*tokens, first | {"role": "operator"}]}))


@asynccontextmanager
async def second_replica(s: Stage) -> AsyncIterator[session_pb2_grpc.SessionServiceStub]:
    """Another orchestrator of the same installation."""
    platform, name = s.platform, "orchestrator-2"
    bus = MemoryBus(platform.broker, name)
    common: dict[str, Any] = platform._common("orchestrator") | {"listen_address": f"{name}:1"}
    settings = OrchestratorSettings(
        sandbox_targets=("sandbox:1",), verifier_target="verifier:1", policy_file=platform.policy_file, **common
    )
    app = build(settings, clock=platform.clock, ids=s.ids, bus=bus, network=platform._network(name))
    await app.start()
    try:
        yield session_pb2_grpc.SessionServiceStub(platform._client.channel(f"{name}:1"))
    finally:
        await app.stop(5.0)
        await bus.close(1.0)


def user_turn(text: str) -> session_pb2.ClientEvent:
    return session_pb2.ClientEvent(user_turn=event_pb2.UserTurn(text=text))


async def record(stub: session_pb2_grpc.SessionServiceStub, session: str, event_id: str, text: str = "hello") -> int:
    request = session_pb2.RecordEventRequest(hello=hello_of(session), id=event_id, event=user_turn(text))
    return int((await stub.RecordEvent(request, timeout=5.0)).number)


async def said(s: Stage, session: str) -> list[str]:
    async with s.client.session("a") as any_session:
        any_session.id = session
        return [e.user_turn.text for e in await s.journal(any_session) if e.HasField("user_turn")]


# ---------------------------------------------------------------- how many


def test_sessions_beyond_the_bounds_are_refused_with_limit_and_setting(play: Play) -> None:
    async def scene(s: Stage) -> None:
        write_users(s, ("other", "umbrella", "user"), ("third", "initech", "user"))
        await asyncio.sleep(1.0)
        open_sessions = [s.client.session("a") for _ in range(3)]
        for session in open_sessions[:2]:
            await session.open()
        with pytest.raises(PlatformUnavailable) as caught:
            await open_sessions[2].open()
        assert caught.value.metadata == {
            "limit": "SESSIONS_PER_TENANT",
            "setting": "FORERUN_ORCHESTRATOR_MAX_SESSIONS_PER_TENANT",
        }
        async with s.client_of("other") as other, s.client_of("third") as third, other.session("a"):
            with pytest.raises(PlatformUnavailable) as caught:
                await third.session("a").open()
            assert caught.value.metadata["limit"] == "SESSIONS_PER_REPLICA"
            await open_sessions[0].close()
            async with third.session("a"):  # what ended made room
                pass

    play(scene, RULES, settings={"orchestrator": {"max_sessions": 3, "max_sessions_per_tenant": 2}})


def test_sessions_that_are_opened_at_the_same_time_do_not_pass_the_bound_together(play: Play) -> None:
    async def scene(s: Stage) -> None:
        opening = [record(stub_of(s), s.ids.uuid7(), s.ids.uuid7()) for _ in range(8)]
        opened = [one for one in await asyncio.gather(*opening, return_exceptions=True) if isinstance(one, int)]
        assert len(opened) == 3
        totals = (await stub_of(s).GetTotals(session_pb2.GetTotalsRequest(), timeout=5.0)).totals
        assert totals.sessions == 3

    play(scene, RULES, settings={"orchestrator": {"max_sessions": 3}})


# ---------------------------------------------------------------- events, ends


def test_an_event_that_is_sent_again_is_recorded_once_also_by_another_owner(play: Play) -> None:
    async def scene(s: Stage) -> None:
        session, first, second = s.ids.uuid7(), s.ids.uuid7(), s.ids.uuid7()
        number = await record(stub_of(s), session, first, "one")
        assert await record(stub_of(s), session, first, "one") == number
        assert await record(stub_of(s), session, first.upper(), "one") == number
        other_number = await record(stub_of(s), session, second, "two")
        assert other_number > number
        await asyncio.sleep(1.0)
        async with second_replica(s) as stub:
            assert await record(stub, session, first, "one") == number
            assert await record(stub, session, second, "two") == other_number
            # The same id in another session is another event.
            assert await record(stub, s.ids.uuid7(), first, "elsewhere")
            await asyncio.sleep(1.0)
        assert await said(s, session) == ["one", "two"]

    play(scene, RULES)


@pytest.mark.parametrize("event_id", ["", "no uuid", "0" * 31])
def test_an_event_needs_an_id(play: Play, event_id: str) -> None:
    async def scene(s: Stage) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await record(stub_of(s), s.ids.uuid7(), event_id)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    play(scene, RULES)


def test_a_session_ends_from_any_replica_once_and_for_all(play: Play) -> None:
    async def scene(s: Stage) -> None:
        raw = Raw(s, s.ids.uuid7())
        await raw.open()
        await raw.ask(1, ("get", b'{"id":1}'))
        await raw.result()
        async with second_replica(s) as stub:
            request = session_pb2.EndSessionRequest(session=raw.session, reason="elsewhere")
            await stub.EndSession(request, timeout=5.0)
            await stub.EndSession(request, timeout=5.0)
            with pytest.raises(NotFound) as caught, rpc_errors():
                await stub.EndSession(session_pb2.EndSessionRequest(session=s.ids.uuid7()), timeout=5.0)
            assert caught.value.reason is ErrorReason.SESSION_NOT_FOUND
            # The old owner learns it with the next event.
            await raw.ask(2, ("get", b'{"id":2}'))
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                while True:
                    await raw.result()
            assert lost.value.code() is grpc.StatusCode.ABORTED
        again = Raw(s, raw.session, resume=True)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await again.open()
        assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    play(scene, RULES)


def test_two_tokens_of_one_principal_share_a_session_whatever_their_role(play: Play) -> None:
    async def scene(s: Stage) -> None:
        entry = {"sha256": token_digest("second"), "tenant": TENANT, "principal": "user", "scope": "all"}
        file = s.directory / "tokens.json"
        file.write_text(json.dumps({"tokens": [*json.loads(file.read_text())["tokens"], entry]}))
        await asyncio.sleep(1.0)
        session = s.ids.uuid7()
        await record(stub_of(s), session, s.ids.uuid7())
        async with s.client_of("second") as other, other.session("a", session_id=session, resume=True) as resumed:
            assert (await resumed.call_tool("get", {"id": 1})).ok

    play(scene, RULES)


# ---------------------------------------------------------------- the switch


def test_an_operator_switches_everybody_within_a_second_and_a_user_nobody_else(play: Play) -> None:
    async def scene(s: Stage) -> None:
        write_users(s, ("other", "umbrella", "user"))
        await asyncio.sleep(1.0)
        async with s.client_of("other") as other:
            for tenant in ("", TENANT):
                with pytest.raises(NotAuthorized, match="operator"):
                    await other.set_speculation(on=False, tenant=tenant)
            await s.client.set_speculation(on=False, reason="all of them")
            await asyncio.sleep(1.0)
            assert [await mode(client) for client in (s.client, other)] == [Mode.OFF, Mode.OFF]
            await s.client.set_speculation(on=True)
            await other.set_speculation(on=False, tenant="umbrella")
            await asyncio.sleep(1.0)
            assert [await mode(client) for client in (s.client, other)] == [Mode.EXACT, Mode.OFF]
            await s.client.set_speculation(on=True, tenant="umbrella")
            await asyncio.sleep(1.0)
            assert await mode(other) is Mode.EXACT

    async def mode(client: AsyncClient) -> Mode | None:
        async with client.session("a") as session:
            return session.mode

    play(scene, RULES)


# ---------------------------------------------------------------- what a new owner reads


def test_a_take_over_reads_no_large_result_until_somebody_asks(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 300_000
    fetched: list[str] = []
    plain = bus_memory_clients.MemoryObjects.get

    async def counted(self: Any, digest: str, tenant: str) -> bytes:
        fetched.append(digest)
        return await plain(self, digest, tenant)

    monkeypatch.setattr(bus_memory_clients.MemoryObjects, "get", counted)
    tools = Tools(seconds=0.1)

    async def big(run: Run) -> Response:
        return Response(bytes([run.arguments["bytes"]]) * size, media_type="application/octet-stream")

    tools.answers["write_big"] = big

    async def scene(s: Stage) -> None:
        session = s.ids.uuid7()
        batch = batch_of(1, *[("write_big", b'{"bytes":%d}' % n) for n in range(5)])
        request = session_pb2.CallToolsRequest(hello=hello_of(session), batch=batch)
        first = await stub_of(s).CallTools(request, timeout=30.0)
        await asyncio.sleep(1.0)
        async with second_replica(s) as stub:
            await record(stub, session, s.ids.uuid7())
            assert fetched == []
            del request.batch.calls[1:]
            again = await stub.CallTools(request, timeout=30.0)
            assert again.results[0].observation == first.results[0].observation
            assert fetched == [first.results[0].observation.digest]
            # Without the store nobody knows the result; that the write had its effect is not denied.
            await s.platform.bus.objects("results").delete(first.results[0].observation.digest, TENANT)
            lost = (await stub.CallTools(request, timeout=30.0)).results[0]
            assert lost.status == common_pb2.CALL_STATUS_OUTCOME_UNKNOWN and lost.failure.reason
            assert len(s.tools.runs) == 5

    play(scene, RULES, tools=tools)


def test_errors_of_sessions_are_typed(play: Play) -> None:
    async def scene(s: Stage) -> None:
        hello = session_pb2.Hello(
            session=s.ids.uuid7(), agent="a", client_tools=[session_pb2.ClientTool(name="t", input_schema="[")]
        )
        request = session_pb2.RecordEventRequest(hello=hello, id=s.ids.uuid7(), event=user_turn("x"))
        with pytest.raises(grpc.aio.AioRpcError, match="SCHEMA_BYTES") as caught:
            await stub_of(s).RecordEvent(request, timeout=5.0)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(ForerunClientError):
            await s.client.session("a" * 300).open()

    play(scene, RULES)


def test_a_replica_whose_ledger_fails_says_that_it_cannot_go_on(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    async def run(self: Outbox) -> None:
        raise Broken

    monkeypatch.setattr(Outbox, "run", run)

    async def scene(s: Stage) -> None:
        await asyncio.sleep(0.1)
        assert isinstance(s.platform.apps["orchestrator"].failed.error, Broken)

    play(scene, RULES)
