"""Definitions, schemas, templates and Python tools. Cases A11, A12."""

import asyncio
import json
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from forerun.core.canonical import parse_strict
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.sandbox.connectors.port import Ended, Result, ToolFault
from forerun.sandbox.connectors.python import PythonConnector
from forerun.sandbox.connectors.templates import fill_argv, fill_url
from forerun.sandbox.definitions import definitions_of
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.tools import CommandEndpoint, HttpEndpoint, PythonEndpoint, Server, tool
from forerun.v1 import policy_pb2
from tests.unit.sandbox.fakes import invocation, python_tool

_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'


def test_arguments_are_checked_strictly() -> None:
    subject = tool("lookup", Server("s"), PythonEndpoint("m:f"), input_schema=_SCHEMA)
    big = 9007199254740993
    assert subject.checked(b'{"id": %d}' % big) == {"id": big}
    for raw, reason in (
        (b'{"id": 1, "id": 2}', ErrorReason.ARGUMENTS_NOT_JSON),
        (b'{"id": NaN}', ErrorReason.ARGUMENTS_NOT_JSON),
        (b"", ErrorReason.ARGUMENTS_NOT_JSON),
        (b"[1]", ErrorReason.ARGUMENTS_REFUSED),
        (b"{}", ErrorReason.ARGUMENTS_REFUSED),
        (b'{"id": "canary"}', ErrorReason.ARGUMENTS_REFUSED),
        (b'{"id": null}', ErrorReason.ARGUMENTS_REFUSED),
    ):
        with pytest.raises(InvalidArgument) as refused:
            subject.checked(raw)
        assert refused.value.reason is reason
        assert "canary" not in refused.value.message
    with pytest.raises(InvalidArgument, match="'id' is a required property"):
        subject.checked(b"{}")


@pytest.mark.parametrize("schema", ['{"$ref": "#/nowhere"}', '{"$ref": "#"}'])
def test_what_a_schema_refers_to_and_does_not_hold_is_the_tool_servers_business(schema: str) -> None:
    assert tool("t", Server("s"), PythonEndpoint("m:f"), input_schema=schema).checked(b'{"id": 1}') == {"id": 1}


def test_nothing_is_fetched_for_a_schema() -> None:
    """A tool server that lists a reference must not send the worker to an address of its choice."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        schema = json.dumps({"$ref": f"http://127.0.0.1:{listening.getsockname()[1]}/schema"})
        with ThreadPoolExecutor(1) as other:
            checking = other.submit(
                tool("t", Server("s"), PythonEndpoint("m:f"), input_schema=schema).checked, b'{"id": 1}'
            )
            with pytest.raises(TimeoutError):
                listening.accept()
        assert checking.result() == {"id": 1}


def test_a_version_follows_schema_and_endpoint_version_only() -> None:
    def version(schema: str, endpoint: str) -> str:
        return tool("t", Server("s"), PythonEndpoint("m:f"), input_schema=schema, endpoint_version=endpoint).version

    assert version('{"type":"object","a":1}', "1") == version('{ "a": 1, "type": "object" }', "1")
    assert len({version('{"type":"object"}', "1"), version('{"type":"object"}', "2"), version(_SCHEMA, "1")}) == 3
    with pytest.raises(InvalidArgument, match="no JSON Schema"):
        version('{"type": "nonsense"}', "")


def test_values_in_an_address_cannot_leave_their_place() -> None:
    asked = invocation(arguments={"id": "../../admin?x=1#y", "n": 3, "dots": ".."}, session="S 1")
    assert fill_url("http://h/{session}/{tool}/{id}/{n}/{dots}", asked) == (
        "http://h/S%201/t/..%2F..%2Fadmin%3Fx%3D1%23y/3/%2E%2E"
    )
    with pytest.raises(ToolFault, match="needs the argument missing"):
        fill_url("http://h/{missing}", asked)


def test_values_on_a_command_line_stay_one_argument() -> None:
    asked = invocation(arguments={"q": "a b; rm -rf /", "n": 2, "list": [1, "x"]}, session_label="R07")
    argv = fill_argv(("grep", "{q}", "--n={n}", "{absent}", "--opt={absent}", "{list}", "{session}"), asked)
    assert argv == ["grep", "a b; rm -rf /", "--n=2", "--opt=", '[1,"x"]', "R07"]
    for value in ("nul\0byte", "x" * 200_000):
        with pytest.raises(ToolFault) as refused:
            fill_argv(("{v}",), invocation(arguments={"v": value}))
        assert (refused.value.ended, refused.value.not_started) == (Ended.REJECTED, True)


def test_both_spellings_of_a_name_reach_the_tool_as_they_are() -> None:
    composed, decomposed = "cr\u00e8me.md", "cre\u0300me.md"
    for name in (composed, decomposed, "x\u00b2"):
        assert fill_argv(("{p}",), invocation(arguments={"p": name})) == [name]


def test_definitions_are_read_from_a_policy() -> None:
    message = policy_pb2.ToolServer(
        name="bench",
        min_isolation="bubblewrap",
        egress=["api.example.com"],
        tools=[
            policy_pb2.ToolSpec(name="a", http=policy_pb2.HttpEndpoint(url="http://h/a", json_body=True)),
            policy_pb2.ToolSpec(name="b", python=policy_pb2.PythonEntryPoint(entry_point="m:f")),
            policy_pb2.ToolSpec(name="c", command=policy_pb2.Command(argv=["ls", "{p}"], pids=7, cpu_seconds=2.5)),
        ],
    )
    (definition,) = definitions_of([message])
    assert definition.server.min_isolation is LevelName.BUBBLEWRAP
    a, b, c = definition.tools
    assert isinstance(a.endpoint, HttpEndpoint) and a.endpoint.method == "GET" and a.endpoint.json_body
    assert isinstance(b.endpoint, PythonEndpoint) and not b.uses_workspace
    assert isinstance(c.endpoint, CommandEndpoint) and c.uses_workspace
    assert (c.endpoint.limits.pids, c.endpoint.limits.cpu_seconds, c.endpoint.cpu_follows_timeout) == (7, 2.5, False)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (policy_pb2.ToolServer(), "no name"),
        (policy_pb2.ToolServer(name="s", min_isolation="vm"), "min_isolation of s"),
        (policy_pb2.ToolServer(name="s", tools=[policy_pb2.ToolSpec(name="t")]), "t of s has no endpoint"),
        (
            policy_pb2.ToolServer(
                name="s", mcp=policy_pb2.McpServer(command=["x"]), min_isolation="gvisor", egress=["api.test"]
            ),
            "s asks for isolation, in which a stdio server has no network",
        ),
        (policy_pb2.ToolServer(name="s", mcp=policy_pb2.McpServer()), "either a command or a url"),
        (
            policy_pb2.ToolServer(name="s", tools=[policy_pb2.ToolSpec(name="t", command=policy_pb2.Command())]),
            "command of t is empty",
        ),
    ],
)
def test_wrong_definitions_are_named(message: policy_pb2.ToolServer, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        definitions_of([message])


def test_names_are_unique() -> None:
    spec = policy_pb2.ToolSpec(name="t", python=policy_pb2.PythonEntryPoint(entry_point="m:f"))
    with pytest.raises(InvalidArgument, match="name t"):
        definitions_of([policy_pb2.ToolServer(name="a", tools=[spec]), policy_pb2.ToolServer(name="b", tools=[spec])])


# ---------------------------------------------------------------- Python tools


def statistics(rows: list[float]) -> dict[str, object]:
    return {"mean": math.nan, "rows": [1, math.inf], "sum": sum(rows)}


async def echo(**arguments: object) -> object:
    return {"type": type(arguments["value"]).__name__, "value": arguments["value"]}


def failing() -> None:
    raise ZeroDivisionError("nothing to divide by")


def opaque() -> object:
    return {"a": [1, {2, 3}]}


async def call(name: str, **arguments: object) -> Result:
    connector = PythonConnector(threads=2)
    try:
        subject = tool("t", Server("s"), PythonEndpoint(f"{__name__}:{name}"))
        raw = json.dumps(arguments).encode()
        return await connector.call(invocation(subject, raw=raw, arguments=subject.checked(raw)), lambda _: None)
    finally:
        await connector.close()


async def test_numbers_that_json_lacks_become_null_and_are_named() -> None:
    result = await call("statistics", rows=[0.5, 1.5])
    assert parse_strict(result.content) == {"mean": None, "rows": [1, None], "sum": Decimal("2.0")}
    assert result.media_type == 'application/json; nulled="$.mean $.rows[1]"'
    assert not result.tool_error


async def test_arguments_arrive_value_exact() -> None:
    assert parse_strict((await call("echo", value=2**70)).content) == {"type": "int", "value": 2**70}
    assert parse_strict((await call("echo", value=0.1)).content) == {"type": "float", "value": Decimal("0.1")}
    assert parse_strict((await call("echo", value=None)).content) == {"type": "NoneType", "value": None}


async def test_exceptions_are_the_tools_own_errors() -> None:
    result = await call("failing")
    assert result.tool_error
    assert json.loads(result.content)["error"] == {"type": "ZeroDivisionError", "message": "nothing to divide by"}
    result = await call("opaque")
    assert result.tool_error
    assert "$.a[1]" in json.loads(result.content)["error"]["message"]


async def test_an_entry_point_that_is_not_there_is_refused() -> None:
    with pytest.raises(ToolFault) as refused:
        await call("absent")
    assert refused.value.not_started


async def test_a_coroutine_is_cancelled_with_its_call() -> None:
    connector = PythonConnector(threads=1)
    subject = tool("t", Server("s"), PythonEndpoint(f"{__name__}:forever"))
    running = asyncio.ensure_future(connector.call(invocation(subject), lambda _: None))
    await _begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _ended.is_set()
    await connector.close()


async def test_a_thread_left_behind_by_work_ahead_holds_its_own_call_and_no_real_one() -> None:
    connector = PythonConnector(threads=1)
    subject = tool("t", Server("s"), PythonEndpoint(f"{__name__}:blocked"))
    ahead = asyncio.ensure_future(connector.call(invocation(subject, speculative=True), lambda _: None))
    try:
        assert await asyncio.to_thread(_in_function.wait, 10)
        ahead.cancel()
        await asyncio.wait([ahead], timeout=0.1)
        assert not ahead.done()
        quick = tool("q", Server("s"), PythonEndpoint(f"{__name__}:at_once"))
        async with asyncio.timeout(2):
            assert (await connector.call(invocation(quick), lambda _: None)).content == b"here"
        assert not ahead.done()
    finally:
        _let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(ahead, 2)
    await connector.close()


_in_function, _let_go = threading.Event(), threading.Event()


def blocked() -> str:
    _in_function.set()
    _let_go.wait(10)
    return "late"


def at_once() -> str:
    return "here"


_begun, _ended = asyncio.Event(), asyncio.Event()


async def forever() -> None:
    _begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        _ended.set()


def test_the_helper_tool_has_no_workspace() -> None:
    assert not python_tool().uses_workspace
