"""HTTP tools: exact bytes, faults, secrets, egress. No sockets."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import httpx
import httpx2
import pytest

from forerun.core.limits import LOOKUP_ATTEMPTS
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import ErrorReason
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.connectors.egress import Egress, EgressTransport, McpEgressTransport, judged_addresses
from forerun.sandbox.connectors.http import HttpConnector
from forerun.sandbox.connectors.port import Ended, Result, ToolFault
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.tools import HttpEndpoint, Server, tool
from tests.unit.sandbox.fakes import invocation

Answer = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]


class _Clock:
    def now(self) -> float:
        return 1_767_225_600.0  # 2026-01-01

    def monotonic(self) -> float:
        return 0.0


async def call(
    answer: Answer, endpoint: HttpEndpoint, raw: bytes = b"{}", *, secrets: Path | None = None, max_bytes: int = 1000,
    egress: tuple[str, ...] = (), chunks: list[bytes] | None = None, **more: object,
) -> Result:  # fmt: skip
    connector = HttpConnector(httpx.MockTransport(answer), Secrets(secrets), _Clock(), max_bytes=max_bytes)
    subject = tool("search", Server("desk", egress=egress), endpoint)
    asked = invocation(subject, raw=raw, arguments=subject.checked(raw), **more)
    try:
        return await connector.call(asked, (chunks if chunks is not None else []).append)
    finally:
        await connector.close()


async def test_the_body_goes_out_and_comes_back_byte_for_byte() -> None:
    raw = b'{ "q" : "caf\\u00e9", "n": 12345678901234567890, "f":1.10 }'
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b'{"a" : 1.10}', headers={"content-type": "application/json"})

    chunks: list[bytes] = []
    endpoint = HttpEndpoint(
        "POST", "http://desk.test/{session}/{tool}", json_body=True, idempotency_header="Idempotency-Key"
    )
    result = await call(
        answer, endpoint, raw, chunks=chunks, idempotency_key="k1", session_label="R07", speculative=True
    )
    (request,) = seen
    assert request.content == raw
    assert str(request.url) == "http://desk.test/R07/search"
    assert request.headers["idempotency-key"] == "k1"
    assert not [name for name in request.headers if "specul" in name.lower() or "forerun" in name.lower()]
    assert (result.content, result.media_type, result.tool_error) == (b'{"a" : 1.10}', "application/json", False)
    assert b"".join(chunks) == result.content


async def test_arguments_that_the_address_does_not_name_become_the_query() -> None:
    urls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200, text="ok")

    endpoint = HttpEndpoint("GET", "http://desk.test/docs/{id}?fixed=1")
    await call(answer, endpoint, b'{"id": "a/b", "q": "x y", "tags": ["1", "2"], "deep": {"k": true}}')
    assert urls == ["http://desk.test/docs/a%2Fb?fixed=1&q=x+y&tags=1&tags=2&deep=%7B%22k%22%3Atrue%7D"]


async def test_every_transport_finds_the_content_of_a_request() -> None:
    class Plain(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, content=request.content)

    connector = HttpConnector(Plain(), Secrets(None), _Clock(), max_bytes=100)
    asked = invocation(
        tool("t", Server("s"), HttpEndpoint("POST", "http://desk.test/", json_body=True)), raw=b'{"a":1}'
    )
    assert (await connector.call(asked, lambda _: None)).content == b'{"a":1}'


async def test_a_request_says_whose_it_is_and_how_long_also_where_it_is_empty() -> None:
    seen: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200)

    await call(answer, HttpEndpoint("POST", "http://desk.test:8080/", json_body=True), b'{"a": 1}')
    await call(answer, HttpEndpoint("post", "http://desk.test/"))
    await call(answer, HttpEndpoint("GET", "http://desk.test/", headers={"Host": "front.test"}))
    assert [(one["host"], one.get("content-length")) for one in seen] == [
        ("desk.test:8080", "8"), ("desk.test", "0"), ("front.test", None)
    ]  # fmt: skip
    assert all(len(one.get_list("host")) == 1 for one in seen)


@pytest.mark.parametrize("status", [404, 422, 500, 302])
async def test_other_statuses_are_answers_marked_as_errors(status: int) -> None:
    headers = {"location": "http://elsewhere.test/"} if status == 302 else {}
    requests = 0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        return httpx.Response(status, json={"why": "x"}, headers=headers)

    result = await call(answer, HttpEndpoint("GET", "http://desk.test/"))
    assert result.tool_error
    assert result.content == b'{"why":"x"}'
    assert result.media_type == f"application/json; status={status}"
    assert requests == 1


async def test_text_that_only_claims_to_be_json_is_text() -> None:
    result = await call(
        lambda _: httpx.Response(200, content=b'{"mean": NaN}', headers={"content-type": "application/json"}),
        HttpEndpoint("GET", "http://desk.test/"),
    )
    assert result.media_type == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
async def test_a_rate_limit_is_no_answer_and_says_when_to_come_back(
    headers: dict[str, str], seconds: float | None
) -> None:
    with pytest.raises(ToolFault) as limited:
        await call(lambda _: httpx.Response(429, headers=headers), HttpEndpoint("GET", "http://desk.test/"))
    fault = limited.value
    assert (fault.ended, fault.reason, fault.not_started) == (Ended.UNAVAILABLE, ErrorReason.RATE_LIMITED, True)
    assert fault.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("status", "may_continue"), [(200, False), (202, True), (404, False), (500, False), (504, True)]
)
async def test_accepted_and_the_words_of_a_gateway_say_nothing_of_the_end(status: int, may_continue: bool) -> None:
    result = await call(lambda _: httpx.Response(status), HttpEndpoint("POST", "http://desk.test/"))
    assert result.may_continue is may_continue


@pytest.mark.parametrize(
    ("error", "ended", "not_started"),
    [
        (httpx.ConnectError("refused"), Ended.UNAVAILABLE, True),
        (httpx.ConnectTimeout("slow"), Ended.UNAVAILABLE, True),
        (httpx.ReadError("reset"), Ended.OUTCOME_UNKNOWN, False),
        (httpx.RemoteProtocolError("closed"), Ended.OUTCOME_UNKNOWN, False),
    ],
)
async def test_what_may_have_taken_effect_is_not_called_harmless(
    error: httpx.TransportError, ended: Ended, not_started: bool
) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(ToolFault) as broken:
        await call(answer, HttpEndpoint("POST", "http://desk.test/"))
    assert (broken.value.ended, broken.value.not_started) == (ended, not_started)


async def test_an_answer_that_is_too_long_names_the_setting() -> None:
    with pytest.raises(ToolFault, match="max_observation_bytes") as refused:
        await call(lambda _: httpx.Response(200, content=b"x" * 1001), HttpEndpoint("GET", "http://desk.test/"))
    assert refused.value.reason is ErrorReason.LIMIT_OUTPUT


async def test_secrets_are_read_when_they_are_used(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200)

    endpoint = HttpEndpoint("GET", "http://desk.test/", headers={"Authorization": "secret:desk-token"})
    for value in ("first", "rotated"):
        (tmp_path / "desk-token").write_text(f"{value}\n")
        await call(answer, endpoint, secrets=tmp_path)
    assert seen == ["first", "rotated"]
    for wrong in ("secret:absent", "secret:../desk-token"):
        with pytest.raises(ToolFault, match="secrets_directory"):
            await call(answer, HttpEndpoint("GET", "http://desk.test/", headers={"A": wrong}), secrets=tmp_path)


async def test_a_cancelled_call_closes_its_request() -> None:
    closed = asyncio.Event()
    begun = asyncio.Event()

    async def answer(_: httpx.Request) -> httpx.Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()
        raise AssertionError

    running = asyncio.ensure_future(call(answer, HttpEndpoint("GET", "http://desk.test/")))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert closed.is_set()


# ---------------------------------------------------------------- egress


async def test_a_host_that_is_not_listed_is_refused_before_anything_leaves() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("left the machine")

    for url in ("http://{host}/", "http://elsewhere.test/"):
        with pytest.raises(ToolFault) as refused:
            await call(answer, HttpEndpoint("GET", url), b'{"host": "collector.test"}', egress=("desk.test",))
        assert refused.value.reason is ErrorReason.EGRESS_DENIED


@pytest.mark.parametrize(
    ("entries", "host", "address", "allowed"),
    [
        (["api.test"], "api.test", "93.184.216.34", True),
        (["api.test"], "API.test.", "10.1.2.3", True),
        (["api.test"], "api.test", "169.254.169.254", False),
        (["api.test"], "api.test", "127.0.0.1", False),
        (["api.test"], "api.test", "::ffff:169.254.169.254", False),
        (["api.test"], "api.test", "fe80::1", False),
        (["api.test"], "api.test", "0.0.0.0", False),
        (["localhost"], "localhost", "127.0.0.1", True),
        (["127.0.0.1"], "127.0.0.1", "127.0.0.1", True),
        ([".example.com"], "a.b.example.com", "93.184.216.34", True),
        ([".example.com"], "example.com", "93.184.216.34", False),
        ([".example.com"], "badexample.com", "93.184.216.34", False),
        (["10.0.0.0/8"], "10.9.9.9", "10.9.9.9", True),
        (["10.0.0.0/8"], "other.test", "10.9.9.9", False),
        (["api.test", "169.254.0.0/16"], "api.test", "169.254.1.1", True),
    ],
)
async def test_the_address_decides(entries: list[str], host: str, address: str, allowed: bool) -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return [address]

    judging = judged_addresses(Egress.of(entries, []), host, 443, resolve)
    if allowed:
        assert await judging == [address]
    else:
        with pytest.raises(ToolFault) as refused:
            await judging
        assert refused.value.reason is ErrorReason.EGRESS_DENIED


async def test_the_connection_goes_to_the_judged_address_and_proves_the_name() -> None:
    seen: list[httpx.Request] = []
    answers = iter([["169.254.169.254", "93.184.216.34"], ["169.254.169.254"]])

    async def resolve(_: str, __: int) -> Sequence[str]:
        return next(answers)

    def inner(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, text="ok")

    transport = EgressTransport(httpx.MockTransport(inner), resolve)
    connector = HttpConnector(transport, Secrets(None), _Clock(), max_bytes=100)
    asked = invocation(tool("t", Server("s"), HttpEndpoint("GET", "https://api.test/x")))
    await connector.call(asked, lambda _: None)
    (request,) = seen
    assert request.url.host == "93.184.216.34"
    assert request.headers["host"] == "api.test"
    assert request.extensions["sni_hostname"] == "api.test"
    # The name changes its mind: the second connection is judged anew.
    with pytest.raises(ToolFault):
        await connector.call(asked, lambda _: None)
    await connector.close()


async def test_a_dead_address_of_a_name_is_passed_over() -> None:
    tried: list[str] = []

    async def resolve(_: str, __: int) -> Sequence[str]:
        return ["2001:db8::1", "169.254.169.254", "93.184.216.34", "93.184.216.35"]

    def inner(request: httpx.Request) -> httpx.Response:
        tried.append(request.url.host)
        if ":" in request.url.host:
            raise httpx.ConnectError("no route")
        return httpx.Response(200, text="ok")

    connector = HttpConnector(
        EgressTransport(httpx.MockTransport(inner), resolve), Secrets(None), _Clock(), max_bytes=100
    )
    subject = tool("t", Server("s", egress=("api.test", "2001:db8::/32")), HttpEndpoint("GET", "https://api.test/x"))
    assert (await connector.call(invocation(subject), lambda _: None)).content == b"ok"
    assert tried == ["2001:db8::1", "93.184.216.34"]
    await connector.close()


class Names:
    """A resolver that fails so often, and a tool behind it; both count."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.lookups = 0
        self.requests = 0

    async def resolve(self, _: str, __: int) -> Sequence[str]:
        self.lookups += 1
        if self.lookups <= self.failures:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ["93.184.216.34"]

    def answer(self, _: httpx.Request) -> httpx.Response:
        self.requests += 1
        return httpx.Response(200, text="ok")

    def call(self, *, timeout_seconds: float = 60.0) -> tuple[Result | ToolFault, float]:
        """How a call ends, and after how many seconds of virtual time."""

        async def run(_: LoopClock, __: SeededIds) -> tuple[Result | ToolFault, float]:
            transport = EgressTransport(httpx.MockTransport(self.answer), self.resolve)
            connector = HttpConnector(transport, Secrets(None), _Clock(), max_bytes=100)
            subject = tool("t", Server("s"), HttpEndpoint("POST", "https://api.test/x"))
            began = asyncio.get_running_loop().time()
            end: Result | ToolFault
            try:
                end = await connector.call(invocation(subject, timeout_seconds=timeout_seconds), lambda _: None)
            except ToolFault as fault:
                end = fault
            return end, asyncio.get_running_loop().time() - began

        return run_virtual(run)


def test_a_name_that_does_not_resolve_for_a_moment_is_asked_for_again_and_the_tool_called_once() -> None:
    names = Names(failures=LOOKUP_ATTEMPTS - 1)
    end, seconds = names.call()
    assert isinstance(end, Result)
    assert end.content == b"ok"
    assert (names.lookups, names.requests) == (LOOKUP_ATTEMPTS, 1)
    assert seconds == pytest.approx(0.1 + 0.2 + 0.4)


def test_a_name_that_does_not_resolve_is_asked_for_so_often_and_the_tool_was_never_called() -> None:
    names = Names(failures=1_000)
    end, seconds = names.call()
    assert isinstance(end, ToolFault)
    assert (end.ended, end.reason, end.not_started) == (Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, True)
    assert (names.lookups, names.requests) == (LOOKUP_ATTEMPTS, 0)
    assert seconds < 1.0


def test_a_name_is_not_asked_for_again_when_the_call_would_be_over_by_then() -> None:
    """It ends as what it is, never begun: a call that is stopped at its deadline may have reached its tool."""
    names = Names(failures=1_000)
    end, seconds = names.call(timeout_seconds=0.25)
    assert isinstance(end, ToolFault)
    assert (end.ended, end.not_started) == (Ended.UNAVAILABLE, True)
    assert names.lookups == 2
    assert seconds < 0.25


def test_names_of_mcp_servers_are_asked_for_again() -> None:
    names = Names(failures=1)

    async def run(_: LoopClock, __: SeededIds) -> httpx2.Response:
        inner = httpx2.MockTransport(lambda _: httpx2.Response(200, text="ok"))
        transport = McpEgressTransport(inner, Egress.of([], ["https://api.test/mcp"]), names.resolve)
        return await transport.handle_async_request(httpx2.Request("POST", "https://api.test/mcp"))

    assert run_virtual(run).status_code == 200
    assert names.lookups == 2
