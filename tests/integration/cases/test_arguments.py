"""Arguments and results at the border (A7, A9, A11, A12), as an agent's author meets them."""

from __future__ import annotations

import asyncio
import json
import math
import unicodedata
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response

from forerun.client import Call, CallRejected, ResultNotJson, Served
from forerun.core.intake import split_arguments
from forerun.core.schema import parse_schema
from forerun.v1 import common_pb2, session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool

TICKER = {"type": "object", "properties": {"ticker": {"type": "string"}}, "required": ["ticker"]}
LOOKUP = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


# ---------------------------------------------------------------- A7


INTAKE = policy(
    tool("quote", "READ", reads=["quotes"], schema=TICKER),
    tool("lookup", "READ", reads=["rows"], schema=LOOKUP),
    tool("page", "READ", reads=["pages"]),
    tool("ping", "READ", reads=["ping"], maxStalenessSeconds=0),
)


def test_glued_arguments_of_one_call_are_one_typed_error_and_run_nothing(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            for text in ('{}{"ticker":"ACME"}', '{"ticker":"A"}{"ticker":"B"}{"ticker":"C"}', '{"ticker":"A"} {}'):
                with pytest.raises(CallRejected) as caught:
                    await session.call_tool("quote", text)
                assert caught.value.reason == "ARGUMENTS_NOT_JSON"
        assert s.tools.runs == []

    play(scene, INTAKE)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("quote", '{}{"ticker":"ACME"}', [{"ticker": "ACME"}]),
        ("page", '{"p":"a"}{"p":"b"}{"p":"c"}', [{"p": "a"}, {"p": "b"}, {"p": "c"}]),
    ],
)
def test_the_argument_text_of_a_stream_becomes_all_of_its_calls(
    play: Play, name: str, text: str, expected: list[Any]
) -> None:
    async def scene(s: Stage) -> None:
        schemas = {one.name: one.input_schema for one in await s.client.list_tools("a")}
        pieces: list[Any] = split_arguments(text, parse_schema(schemas[name].encode()))
        async with s.client.session("a") as session:
            results = await session.call_tools([Call(name, piece) for piece in pieces])
        assert [result.json()["asked"] for result in results] == expected
        assert [run.arguments for run in s.tools.of(name)] == expected

    play(scene, INTAKE)


def test_blank_arguments_are_an_empty_object_and_then_validated(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            for text in ("", " ", "\n", "{}"):
                assert (await session.call_tool("ping", text)).json() == {"asked": {}}
                with pytest.raises(CallRejected) as caught:
                    await session.call_tool("lookup", text)
                assert caught.value.reason == "ARGUMENTS_REFUSED"
                assert "id" in str(caught.value) and caught.value.metadata["fields"] == "id"
        assert [run.body for run in s.tools.of("ping")] == [b"{}"] * 4
        assert s.tools.of("lookup") == []

    play(scene, INTAKE)


# ---------------------------------------------------------------- A9


SEARCH = policy(
    tool("search", "READ", reads=["index"], speculate=True), tool("order", "READ", reads=["o"], speculate=True)
)


def test_another_order_of_keys_is_a_hit_and_the_result_is_the_predicted_execution(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("search", b'{"q":"x","f":{"b":1,"a":[{"z":1,"y":2}]}}'))
            await asyncio.sleep(3.0)
            asked = s.now()
            result = await session.call_tool("search", b'{"f":{"a":[{"y":2,"z":1}],"b":1},"q":"x"}')
            assert (result.served, s.now() - asked) == (Served.READY, 0.0)
            assert result.json() == {"asked": {"q": "x", "f": {"b": 1, "a": [{"z": 1, "y": 2}]}}}
        assert len(s.tools.runs) == 1

    play(scene, SEARCH)


OTHERS = (
    (b'{"ids":[1,2]}', b'{"ids":[2,1]}'),
    (b'{"ids":[{"a":1},{"b":2}]}', b'{"ids":[{"b":2},{"a":1}]}'),
    (b'{"id":1}', b'{"id":"1"}'),
    (b'{"id":1,"x":null}', b'{"id":1}'),
    (b'{"id":true}', b'{"id":1}'),
    (b'{"a":{"b":1}}', b'{"a.b":1}'),
)


def test_other_values_are_no_hit(play: Play) -> None:
    async def scene(s: Stage) -> None:
        for predicted, asked in OTHERS:
            async with s.client.session("a") as session:
                await s.ahead(session, ("order", predicted))
                await asyncio.sleep(3.0)
                result = await session.call_tool("order", asked)
                assert (result.served, result.json()) == (Served.DIRECT, {"asked": json.loads(asked)})
        assert [run.body for run in s.tools.runs] == [body for pair in OTHERS for body in pair]

    play(scene, SEARCH)


# ---------------------------------------------------------------- A11


def statistics() -> dict[str, object]:
    """A tool in Python whose result JSON cannot hold."""
    return {"mean": math.nan, "rows": [1, math.inf]}


def strictly(content: bytes) -> Any:
    """What a strict reader elsewhere makes of it."""
    return json.loads(content.decode("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numbers_that_json_lacks_reach_nobody(play: Play) -> None:
    entry_point = {"python": {"entryPoint": f"{__name__}:statistics"}}
    rules = policy(tool("statistics", "PURE", speculate=True, endpoint=entry_point))

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            direct = await session.call_tool("statistics")
            again = await session.call_tool("statistics")
        async with s.client.session("a") as other:
            await s.ahead(other, ("statistics", b"{}"))
            await asyncio.sleep(1.0)
            ahead = await other.call_tool("statistics")
        assert [one.served for one in (direct, again, ahead)] == [Served.DIRECT, Served.MEMO, Served.READY]
        for result in (direct, again, ahead):
            assert result.json() == strictly(result.content) == {"mean": None, "rows": [1, None]}
            # Whoever asked can tell these nulls from real ones.
            assert result.media_type == 'application/json; nulled="$.mean $.rows[1]"'
        stored = [one.call_finished for one in await s.journal(session) if one.HasField("call_finished")]
        assert [strictly(one.observation.content) for one in stored] == [{"mean": None, "rows": [1, None]}] * 2
        assert {one.observation.media_type for one in stored} == {direct.media_type}

    play(scene, rules)


def test_a_server_that_calls_something_else_json_is_not_believed(play: Play) -> None:
    tools = Tools()
    texts = [b'{"mean": NaN}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}']

    async def answer(run: Run) -> Response:
        return Response(texts[run.arguments["n"]], media_type="application/json")

    tools.answers["wild"] = answer

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            for number, text in enumerate(texts):
                result = await session.call_tool("wild", {"n": number})
                assert result.content == text, "the text itself is not touched"
                assert result.media_type == "text/plain; charset=utf-8"
            with pytest.raises(ResultNotJson):
                (await session.call_tool("wild", {"n": 0})).json()
        stored = [one.call_finished for one in await s.journal(session) if one.HasField("call_finished")]
        assert {one.observation.media_type for one in stored} == {"text/plain; charset=utf-8"}

    play(scene, policy(tool("wild", "READ", reads=["wild"])), tools=tools)


def test_a_tool_in_the_client_is_not_believed_either(play: Play) -> None:
    async def scene(s: Stage) -> None:
        answers: asyncio.Queue[session_pb2.ConnectRequest] = asyncio.Queue()
        own = session_pb2.ClientTool(name="own", input_schema='{"type": "object"}')
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a", client_tools=[own])
        answers.put_nowait(session_pb2.ConnectRequest(hello=hello))
        batch = session_pb2.CallBatch(turn=1)
        batch.calls.add(index=0).action.tool = "own"
        answers.put_nowait(session_pb2.ConnectRequest(batch=batch))

        async def requests() -> AsyncIterator[session_pb2.ConnectRequest]:
            while True:
                yield await answers.get()

        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        async for response in stub.Connect(requests()):
            if response.HasField("invocation"):
                result = session_pb2.ClientToolResult(
                    invocation=response.invocation.invocation,
                    status=common_pb2.CALL_STATUS_OK,
                    observation=common_pb2.Observation(content=b"[NaN]", media_type="application/json"),
                )
                answers.put_nowait(session_pb2.ConnectRequest(tool_result=result))
            elif response.HasField("result"):
                assert response.result.observation.content == b"[NaN]"
                assert response.result.observation.media_type == "text/plain; charset=utf-8"
                answers.put_nowait(session_pb2.ConnectRequest(end=session_pb2.EndSessionRequest()))

    play(scene, INTAKE)


# ---------------------------------------------------------------- A12


COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "crème.md"), unicodedata.normalize("NFD", "crème.md")
FILES = {COMPOSED: "the composed one", DECOMPOSED: "the decomposed one"}


def file_tools() -> Tools:
    tools = Tools()

    async def read_file(run: Run) -> dict[str, str]:
        await asyncio.sleep(1.0)
        return {"text": FILES[run.arguments["path"]]}

    tools.answers["read_file"] = read_file
    return tools


def spelled(path: str) -> bytes:
    return json.dumps({"path": path}, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("first", [COMPOSED, DECOMPOSED])
def test_each_spelling_reads_its_own_file_also_when_the_other_one_was_prefetched(play: Play, first: str) -> None:
    second = DECOMPOSED if first == COMPOSED else COMPOSED
    rules = policy(tool("read_file", "READ", reads=["files/{path:path}"], speculate=True))

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("read_file", spelled(first)))
            await asyncio.sleep(2.0)
            other = await session.call_tool("read_file", {"path": second})
            same = await session.call_tool("read_file", {"path": first})
        assert (other.served, other.json()) == (Served.DIRECT, {"text": FILES[second]})
        assert (same.served, same.json()) == (Served.READY, {"text": FILES[first]})
        assert [run.body for run in s.tools.runs] == [spelled(first), spelled(second)], (
            "what runs are the bytes as sent"
        )

    play(scene, rules, tools=file_tools())


def test_a_field_that_the_policy_names_is_matched_in_nfc_and_executed_as_sent(play: Play) -> None:
    rules = policy(tool("find", "READ", reads=["index"], speculate=True, nfcFields=["q"]))

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("find", json.dumps({"q": COMPOSED}, ensure_ascii=False).encode()))
            await asyncio.sleep(3.0)
            assert (await session.call_tool("find", {"q": DECOMPOSED})).served is Served.READY
            # NFC is not NFKC, also where it is declared.
            await session.call_tool("find", {"q": "x²"})
            assert (await session.call_tool("find", {"q": "x2"})).served is Served.DIRECT
        assert [run.arguments["q"] for run in s.tools.runs] == [COMPOSED, "x²", "x2"]

    play(scene, rules)


def test_a_superscript_is_not_a_digit(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("calc", '{"expression":"x²"}'.encode()))
            await asyncio.sleep(3.0)
            plain = await session.call_tool("calc", {"expression": "x2"})
            square = await session.call_tool("calc", {"expression": "x²"})
        assert (plain.served, plain.json()) == (Served.DIRECT, {"asked": {"expression": "x2"}})
        assert (square.served, square.json()) == (Served.READY, {"asked": {"expression": "x²"}})

    play(scene, policy(tool("calc", "PURE", speculate=True)))
