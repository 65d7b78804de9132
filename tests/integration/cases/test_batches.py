"""The calls of one message: their order (A15), how many run at once and how large their results are (A19, E4)."""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from forerun.client import Call, CallRejected, InvalidRequest, Served, Status
from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.network import rpc_errors
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool

# ---------------------------------------------------------------- A15


def file_tools() -> Tools:
    """Files that are read at the start and written at the end of a call, so that whoever overlaps loses an edit."""
    tools = Tools()
    files: dict[str, str] = {"n.txt": "0", "other.txt": "other"}

    def place(run: Run) -> str:
        return posixpath.normpath(posixpath.join("/workspace", run.arguments["path"])).removeprefix("/workspace/")

    async def read(run: Run) -> Any:
        text = files.get(place(run))
        await asyncio.sleep(1.0)
        return JSONResponse({"text": text}) if text is not None else Response("no such file", 404)

    async def write(run: Run) -> Any:
        await asyncio.sleep(1.0)
        files[place(run)] = run.arguments["text"]
        return {"written": True}

    async def edit(run: Run) -> Any:
        before = files[place(run)]
        await asyncio.sleep(1.0)
        if before != run.arguments["old"]:
            return Response(f"found {before}", 409)
        files[place(run)] = run.arguments["new"]
        return {"edited": True}

    tools.answers |= {"read": read, "write": write, "edit": edit}
    return tools


PATH = ["files/{path:path}"]
ORDERED = policy(
    tool("read", "READ", reads=PATH, speculate=True),
    tool("write", "WRITE", writes=PATH),
    tool("edit", "WRITE", reads=PATH, writes=PATH),
    tool("mystery", "UNSPECIFIED"),
)


def edits(*spellings: str) -> list[Call]:
    """Write, read, two edits of one file, each with its own spelling of the path, and a read of another file."""
    first, second, third, fourth = spellings
    return [
        Call("write", {"path": first, "text": "1"}),
        Call("read", {"path": second}),
        Call("edit", {"path": third, "old": "1", "new": "2"}),
        Call("edit", {"path": fourth, "old": "2", "new": "3"}),
        Call("read", {"path": "other.txt"}),
    ]


@pytest.mark.parametrize(
    "spellings",
    [
        ("n.txt", "./n.txt", "n.txt", "n.txt"),
        ("./n.txt", "n.txt", "/workspace/n.txt", ".//n.txt"),
    ],
)
def test_conflicting_calls_keep_call_order_and_others_overlap(play: Play, spellings: tuple[str, ...]) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            results = await session.call_tools(edits(*spellings))
            assert [(result.status, result.tool_error) for result in results] == [(Status.OK, False)] * 5
            assert results[1].json() == {"text": "1"}
            assert results[4].json() == {"text": "other"}
            final = await session.call_tool("read", {"path": "n.txt"})
            assert final.json() == {"text": "3"}
        write, other = s.tools.of("write")[0], s.tools.of("read")[0]
        assert other.arguments == {"path": "other.txt"}
        assert other.started == write.started, "the read of the other file runs beside the write"

    play(scene, ORDERED, tools=file_tools())


def test_a_prefetch_of_the_file_is_not_served_after_the_write_before_it(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("read", b'{"path":"./n.txt"}'), ("read", b'{"path":"other.txt"}'))
            await asyncio.sleep(2.0)
            results = await session.call_tools(edits("n.txt", "./n.txt", "n.txt", "n.txt"))
            assert [result.served for result in results] == [Served.DIRECT] * 4 + [Served.READY]
            assert results[1].json() == {"text": "1"}

    play(scene, ORDERED, tools=file_tools())


def test_a_tool_without_declared_keys_runs_alone(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            paths = ["other.txt", "n.txt"]
            await session.call_tools([
                Call("read", {"path": paths[0]}), Call("mystery"), Call("read", {"path": paths[1]}),
            ])  # fmt: skip
        before, alone, after = s.tools.runs
        assert alone.tool == "mystery"
        assert before.ended is not None and alone.ended is not None
        assert before.ended <= alone.started and alone.ended <= after.started

    play(scene, ORDERED, tools=file_tools())


# ---------------------------------------------------------------- A19


READS = policy(
    tool("get", "READ", reads=["o/{id}"], concurrency=100),
    tool("narrow", "READ", reads=["n/{id}"], concurrency=3),
    tool("big", "READ", reads=["big"], speculate=True),
    tool("keep", "READ", reads=["keep"], maxStalenessSeconds=0),
)


def test_eight_hundred_reads_run_sixteen_at_a_time_and_all_are_answered(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            results = await session.call_tools([Call("get", {"id": n}) for n in range(800)])
        assert [result.json()["asked"]["id"] for result in results] == list(range(800))
        assert s.tools.peak["get"] == 16
        assert len(s.tools.runs) == 800

    play(scene, READS)


def test_a_tools_own_cap_holds_over_messages_and_sessions(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as one, s.client.session("a") as two:
            asking = [
                session.call_tools([Call("narrow", {"id": f"{name}{n}"}) for n in range(6)])
                for session, name in ((one, "a"), (one, "b"), (two, "c"))
            ]
            answers = [result for results in await asyncio.gather(*asking) for result in results]
        assert all(result.ok for result in answers)
        assert s.tools.peak["narrow"] == 3

    play(scene, READS)


def large_tools() -> Tools:
    tools = Tools()

    async def big(run: Run) -> Response:
        return Response(body_of(run.arguments["bytes"]), media_type="application/octet-stream")

    tools.answers["big"] = tools.answers["keep"] = big
    return tools


def body_of(size: int) -> bytes:
    """Bytes without a pattern that a mistake in the order of chunks would not change."""
    block = b"".join(n.to_bytes(4, "big") for n in range(min(size, 1 << 20) // 4 + 1))
    parts = [bytes([n % 256]) + block for n in range(size // len(block) + 1)]
    return b"".join(parts)[:size]


def test_a_result_of_five_megabytes_is_whole_and_travels_by_digest(play: Play) -> None:
    size = 5_000_000

    async def scene(s: Stage) -> None:
        body = body_of(size)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        async with s.client.session("a") as session:
            direct = await session.call_tool("big", {"bytes": size})
            again = await session.call_tool("big", {"bytes": size})
            assert (await session.call_tool("get", {"id": 1})).ok, "the run goes on"
        async with s.client.session("a") as other:
            await s.ahead(other, ("big", b'{"bytes":%d}' % size))
            await asyncio.sleep(1.0)
            ahead = await other.call_tool("big", {"bytes": size})
        assert [one.served for one in (direct, again, ahead)] == [Served.DIRECT, Served.MEMO, Served.READY]
        assert [hashlib.sha256(one.content).hexdigest() for one in (direct, again, ahead)] == [digest[7:]] * 3
        for finished in [one.call_finished for one in await s.journal(session) if one.call_finished.tool == "big"]:
            assert (finished.observation.digest, finished.observation.size_bytes) == (digest, size)
            assert len(finished.observation.content) <= limits.INLINE_OBSERVATION_BYTES
        assert await s.platform.bus.objects("results").get(digest, "local") == body
        assert {line.digest for line in await s.ledger(other) if line.tool == "big"} == {digest}

    play(scene, READS, tools=large_tools())


# ---------------------------------------------------------------- E4


SIZES = [int(megabytes * limits.MIB) for megabytes in (3.9, 4.0, 4.1, 30)]


def test_results_around_the_message_limit_are_whole_and_run_once(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            for size in SIZES:
                result = await session.call_tool("keep", {"bytes": size}, timeout_seconds=50.0)
                assert len(result.content) == size
                assert hashlib.sha256(result.content).digest() == hashlib.sha256(body_of(size)).digest()
        assert len(s.tools.runs) == len(SIZES)

    play(scene, READS, tools=large_tools())


def test_a_simple_client_gets_one_clear_error_above_the_limit(play: Play) -> None:
    async def scene(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        for size in SIZES:
            hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")
            request = session_pb2.CallToolsRequest(hello=hello, batch=session_pb2.CallBatch(turn=1))
            call = request.batch.calls.add(index=0)
            call.action.tool, call.action.arguments = "keep", b'{"bytes":%d}' % size
            if size < limits.MESSAGE_BYTES - limits.KIB:
                assert len((await stub.CallTools(request, timeout=50.0)).results[0].observation.content) == size
                continue
            with pytest.raises(ResourceExhausted) as caught, rpc_errors():
                await stub.CallTools(request, timeout=50.0)
            assert caught.value.reason is ErrorReason.MESSAGE_TOO_LARGE
            assert str(limits.MESSAGE_BYTES) in caught.value.message and "Connect" in caught.value.message
        assert len(s.tools.runs) == len(SIZES), "nothing is tried again"

    play(scene, READS, tools=large_tools())


def test_arguments_above_their_limit_are_one_error_that_names_size_and_limit(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            for size in (2 * limits.MIB, *SIZES):
                with pytest.raises((CallRejected, InvalidRequest)) as caught:
                    await session.call_tool("get", {"id": "x" * size})
                assert caught.value.reason == "MESSAGE_TOO_LARGE"
                assert str(size)[:3] in str(caught.value), "it names the size"
            assert (await session.call_tool("get", {"id": "x" * (limits.MIB - 100)})).ok
        assert len(s.tools.runs) == 1

    play(scene, READS, tools=large_tools())
