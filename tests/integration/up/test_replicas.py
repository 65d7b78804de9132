"""Two orchestrators over shared registers: what one session writes, no other one misses; what is whose stays so."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio

from forerun.client import (
    AsyncClient,
    AsyncSession,
    Call,
    CallUnavailable,
    NotAuthorized,
    Result,
    Served,
    Status,
)
from forerun.runtime.auth import token_digest
from forerun.runtime.secrets import write_secret
from tests.integration.up.staging import ORCHESTRATORS, Stage, opened_with_a_prefetch, staged

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITERS: Final = 20
# What a model takes: without that there is nothing to gain by running ahead of it.
THINKING_SECONDS: Final = 0.2
REVOKED_WITHIN_SECONDS: Final = 5.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("replicas")) as running:
        # Slower than the way through a busy machine: what is faster than that is not worth a guess.
        running.registers.delay_seconds = 0.15
        yield running


async def turn(session: AsyncSession, key: str) -> Result:
    """What every reader does: a greeting, and then a look at one register, which is easily foreseen."""
    await session.call_tool("dedent", {"text": f"  {key}"})
    await session.model_started()
    await asyncio.sleep(THINKING_SECONDS)
    return await session.call_tool("look", {"key": key})


async def test_a_write_through_one_session_makes_the_others_prefetch_stale(stage: Stage) -> None:
    key, outcomes = "hot", Counter[str]()
    async with AsyncExitStack() as stack:
        reads, writes = [await stack.enter_async_context(stage.at(name)) for name in ORCHESTRATORS]
        writer = await stack.enter_async_context(writes.session("writer"))
        wrote = (await writer.call_tool("put", {"key": key, "value": "0"})).json()
        for number in range(15):
            reader = await opened_with_a_prefetch(stage, reads, key)
            # A place at which guesses always come to nothing is not guessed at for long: two hits for each write.
            written = number % 3 == 2
            if written:
                wrote = (await writer.call_tool("put", {"key": key, "value": str(number)})).json()
            look = await reader.call_tool("look", {"key": key})
            assert look.json() == wrote, (number, look.served)
            assert look.served in ((Served.DIRECT,) if written else (Served.READY, Served.JOINED))
            await reader.close()
            assert reader.totals is not None
            outcomes.update({f"{name}, {written=}": count for name, count in reader.totals.outcomes.items()})
    print(f"prefetches: {dict(outcomes)}")
    assert outcomes["stale, written=True"] == 5


@dataclass
class Register:
    """What has been acknowledged of one register.

    Attributes:
        acknowledged: The highest version of which a writer was told.
    """

    acknowledged: int = 0


async def test_no_read_is_older_than_the_last_acknowledged_write(stage: Stage) -> None:
    """Twenty writers and as many readers over both orchestrators, and speculation on."""
    keys = [f"busy-{number}" for number in range(WRITERS)]
    registers = {key: Register() for key in keys}
    served: Counter[Served] = Counter()
    stale: list[str] = []
    writing = asyncio.Event()

    async def write(client: AsyncClient, number: int) -> None:
        async with client.session("writer") as session:
            for count in range(6):
                key = keys[(number + count % 2) % len(keys)]  # two writers for each register
                await asyncio.sleep(THINKING_SECONDS)
                result = await session.call_tool("put", {"key": key, "value": f"{number}-{count}"})
                registers[key].acknowledged = max(registers[key].acknowledged, result.json()["version"])

    def every_way() -> bool:
        """Reads were answered ahead of time, from memory and by the tool: what is compared below is all of it."""
        ahead = served[Served.READY] + served[Served.JOINED]
        return bool(ahead and served[Served.MEMO] and served[Served.DIRECT])

    async def read(client: AsyncClient, number: int) -> None:
        # Beside so many writers little runs ahead; when they are done, reads go on until something has.
        while not (writing.is_set() and every_way()):
            key, number = keys[number % len(keys)], number + 3
            async with client.session("busy") as session:
                await session.call_tool("dedent", {"text": f"  {key}"})
                await session.model_started()
                await asyncio.sleep(THINKING_SECONDS)
                for _ in range(2):  # from a prefetch, and from memory
                    least = registers[key].acknowledged
                    result = await session.call_tool("look", {"key": key})
                    served[result.served] += 1
                    version = result.json()["version"]
                    if version < least:
                        stale.append(f"{key}: {version} by {result.served}, {least} was acknowledged")

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(stage.at(name)) for name in ORCHESTRATORS]
        for key in keys[:12]:
            async with clients[0].session("busy") as session:
                await turn(session, key)
        readers = [asyncio.ensure_future(read(clients[number % 2], number // 2)) for number in range(8)]
        try:
            await asyncio.gather(*(write(clients[number % 2], number) for number in range(WRITERS)))
        finally:
            writing.set()
            async with asyncio.timeout(40):
                await asyncio.gather(*readers)
    print(f"reads beside {WRITERS} writers: { ({one.value: count for one, count in served.items()}) }")
    assert stale == []
    assert all(stage.registers.version(key) == register.acknowledged for key, register in registers.items())
    assert every_way()


def tokens(stage: Stage, **entries: tuple[str, str]) -> None:
    """Admits further tokens, each with its principal and scope, beside the platform's own."""
    file = stage.platform.directory.tokens_file
    own = [one for one in json.loads(file.read_text())["tokens"] if one.get("role") == "operator"]
    others = [
        {"sha256": token_digest(token), "tenant": own[0]["tenant"], "principal": principal, "scope": scope}
        for token, (principal, scope) in entries.items()
    ]
    write_secret(file, json.dumps({"tokens": own + others}))


async def admitted(stage: Stage, token: str, *, everywhere: bool = True) -> None:
    """Waits until a token is admitted by both replicas, or by none of them."""
    for name in ORCHESTRATORS:
        async with AsyncClient(stage.platform.address_of(name), token) as client, asyncio.timeout(5):
            while True:
                try:
                    await client.get_totals()
                    known = True
                except NotAuthorized:
                    known = False
                if known is everywhere:
                    break
                await asyncio.sleep(0.05)


async def test_nothing_of_one_principal_or_scope_serves_another(stage: Stage) -> None:
    tokens(stage, alice=("alice", "orders:all"), less=("alice", "orders:own"), bob=("bob", "orders:all"))
    for token in ("alice", "less", "bob"):
        await admitted(stage, token)
    key, address = "private", stage.platform.address_of("orchestrator")
    async with AsyncExitStack() as stack:
        clients = {
            token: await stack.enter_async_context(AsyncClient(address, token)) for token in ("alice", "less", "bob")
        }
        alice = await opened_with_a_prefetch(stage, clients["alice"], key)
        stack.push_async_callback(alice.close)
        # Hers is there, and remembered afterwards; it is nobody else's, whoever asks the same at the same replica.
        for token in ("less", "bob"):
            async with clients[token].session(key) as session:
                before = stage.registers.executions("look", key)
                assert (await session.call_tool("look", {"key": key})).served is Served.DIRECT
                assert stage.registers.executions("look", key) == before + 1
        assert (await alice.call_tool("look", {"key": key})).served in (Served.READY, Served.JOINED)
        assert (await alice.call_tool("look", {"key": key})).served is Served.MEMO
        # Nor is her session, at any replica.
        for name in ORCHESTRATORS:
            for token in ("less", "bob"):
                async with AsyncClient(stage.platform.address_of(name), token) as client:
                    with pytest.raises(NotAuthorized, match="CALLER_NOT_ALLOWED"):
                        await client.session(key, session_id=alice.id, resume=True).open()


async def test_a_revoked_token_is_refused_within_a_second(stage: Stage) -> None:
    tokens(stage, carol=("carol", "orders:all"))
    await admitted(stage, "carol")
    key = "carols"
    async with AsyncClient(stage.platform.address, "carol") as client:
        session = await opened_with_a_prefetch(stage, client, key)
        # What was asked for before is answered; the stream ends with the next message, and nothing of that one runs.
        stage.registers.delay_seconds, usual = 1.2, stage.registers.delay_seconds
        under_way = asyncio.ensure_future(session.call_tools([Call("check", {"key": "slow"})]))
        while not stage.registers.executions("check", "slow"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        tokens(stage)
        revoked_at = asyncio.get_running_loop().time()
        await admitted(stage, "carol", everywhere=False)
        seconds = asyncio.get_running_loop().time() - revoked_at
        looked = stage.registers.executions("look", key)
        (slow,) = await under_way
        stage.registers.delay_seconds = usual
        refused = await session.call_tools([Call("look", {"key": key}), Call("put", {"key": key, "value": "1"})])
        print(f"revoked everywhere after {seconds:.2f} s")
        assert seconds < REVOKED_WITHIN_SECONDS
        assert slow.status is Status.OK
        for one in refused:
            assert (one.status, one.failure and one.failure.reason) == (Status.REJECTED, "CREDENTIAL_REFUSED")
        # Neither from the tool nor from what was taken ahead.
        assert stage.registers.executions("look", key) == looked
        assert stage.registers.executions("put", key, "1") == 0
        with pytest.raises((NotAuthorized, CallUnavailable), match="CREDENTIAL_REFUSED"):
            await session.call_tool("look", {"key": key})
        await session.close()
        with pytest.raises(NotAuthorized, match="CREDENTIAL_REFUSED"):
            await client.session(key).open()
