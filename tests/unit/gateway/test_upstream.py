"""What a client of the gateway sees of retries, breakers and streams that break; model servers play a script."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from forerun.core.tokens import Usage
from forerun.gateway.expected import ExpectedCalls
from forerun.gateway.service import Gateway
from forerun.gateway.settings import ServedModelSettings
from forerun.gateway.upstream import Upstream
from forerun.runtime.auth import Authenticator, Caller, Role
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.errors import ModelError, broken, from_status, no_connection, too_slow
from forerun.runtime.models.port import Deadlines, Finished, FinishReason, ModelEvent, ModelRequest, TextDelta
from forerun.runtime.virtual import run_virtual

AWAY, BREAKS, REFUSES, SLOW = "away", "breaks", "refuses", "slow"
ERRORS: Mapping[str, Callable[[], ModelError]] = {
    AWAY: lambda: no_connection("m"),
    BREAKS: lambda: broken("m", "failed"),
    REFUSES: lambda: from_status("m", 400, "bad", None),
    SLOW: lambda: too_slow("m", "first_token_seconds", 1.0),
}


@dataclass
class Server:
    """A model server: each request plays the next line of the script, words and an error; after the last it is well."""

    script: list[tuple[str, str]] = field(default_factory=list)
    asked: list[ModelRequest] = field(default_factory=list)

    async def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        self.asked.append(request)
        words, error = self.script.pop(0) if self.script else ("all is well", "")
        for word in words.split():
            yield TextDelta(f"{word} ")
        if error:
            raise ERRORS[error]()
        yield Finished(FinishReason.STOP, Usage(3, 3))

    async def close(self) -> None:
        """Nothing is open."""


class Anybody(Authenticator):
    def __init__(self) -> None:
        """Knows no tokens."""

    def caller(self, metadata: Any) -> Caller:
        return Caller(tenant="t", principal="p", credential_scope="", role=Role.USER)


class Door:
    """The gateway in front of some servers, and a client."""

    def __init__(self, clock: Clock, ids: Ids, servers: list[Server]) -> None:
        addresses = tuple(f"h:{number}" for number, _ in enumerate(servers, start=1))
        ports = {f"kserve://{address}": server for address, server in zip(addresses, servers, strict=True)}

        def make(provider: Provider) -> Server:
            return ports[provider.url]

        upstream = Upstream(
            [ServedModelSettings(name="m", addresses=addresses)],
            deadlines=Deadlines(first_token=10.0, between_tokens=10.0, total=60.0),
            concurrency=8,
            make_port=make,
        )
        gateway = Gateway(
            upstream,
            Anybody(),
            total_seconds=60.0,
            max_body_bytes=10_000,
            max_requests=8,
            expected=ExpectedCalls(None, (), 0.1),  # type: ignore[arg-type]  # asks nobody
            clock=clock,
            ids=ids,
        )
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.application()), base_url="http://door")

    async def ask(self, *, stream: bool = False, agent: str = "a") -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": stream, "presence_penalty": 0.5}
        return await self._client.post("/v1/chat/completions", json=body, headers={"x-forerun-agent": agent})

    async def send(self, body: str) -> httpx.Response:
        return await self._client.post("/v1/chat/completions", content=body)


def play(test: Callable[[Door], Any], *servers: Server) -> None:
    async def main(clock: Clock, ids: Ids) -> None:
        await test(Door(clock, ids, list(servers)))

    run_virtual(main, epoch=1_700_000_000.0, seed=1)


def lines(response: httpx.Response) -> list[Any]:
    found = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [json.loads(line) if line.startswith("{") else line for line in found]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [AWAY, BREAKS])
def test_before_the_first_token_it_is_tried_again_and_the_client_sees_nothing(error: str, stream: bool) -> None:
    async def test(door: Door) -> None:
        response = await door.ask(stream=stream)
        assert response.status_code == 200 and "well" in response.text and "error" not in response.text

    server = Server([("", error), ("", error)])
    play(test, server)
    assert len(server.asked) == 3
    assert server.asked[0].served == {"presence_penalty": 0.5, "frequency_penalty": 0.0, "speculate": True} | {
        "tenant": "t",
        "agent": "a",
    }


@pytest.mark.parametrize("error", [AWAY, BREAKS, SLOW])
def test_another_replica_is_asked_where_there_is_one(error: str) -> None:
    async def test(door: Door) -> None:
        assert (await door.ask()).status_code == 200
        (first,) = [one for one in servers if one.asked]
        first.script.append(("", error))
        assert (await door.ask()).status_code == 200
        assert [len(one.asked) for one in servers if one is not first] == [1]

    servers = [Server(), Server()]
    play(test, *servers)


def test_who_was_too_slow_is_not_asked_again() -> None:
    async def test(door: Door) -> None:
        assert (await door.ask()).status_code == 504

    servers = [Server([("", SLOW)]), Server([("", SLOW)])]
    play(test, *servers)
    assert [len(one.asked) for one in servers] == [1, 1]


@pytest.mark.parametrize(("error", "status"), [(REFUSES, 400), (SLOW, 504)])
def test_what_would_not_help_is_not_tried_again(error: str, status: int) -> None:
    async def test(door: Door) -> None:
        response = await door.ask()
        assert response.status_code == status and response.json()["error"]["code"]

    server = Server([("", error)])
    play(test, server)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (r'"\ud83d"', "surrogate"),
        (r'[{"type": "text", "text": "\uDE00\ud83d"}]', "surrogate"),
        (4_000 * "[" + 4_000 * "]", "nested"),
    ],
)
def test_what_no_model_can_read_is_refused_at_the_door(content: str, words: str) -> None:
    async def test(door: Door) -> None:
        response = await door.send(f'{{"model": "m", "messages": [{{"role": "user", "content": {content}}}]}}')
        assert response.status_code == 400 and words in response.json()["error"]["message"]
        whole = r'{"model": "m", "messages": [{"role": "user", "content": "\ud83d\ude00"}]}'
        assert (await door.send(whole)).status_code == 200

    server = Server()
    play(test, server)
    assert [one.messages[0].content for one in server.asked] == ["\N{GRINNING FACE}"]


def test_a_stream_that_breaks_after_its_first_token_ends_with_an_error_and_is_never_begun_again() -> None:
    async def test(door: Door) -> None:
        response = await door.ask(stream=True)
        *before, last = lines(response)
        assert [one["choices"][0]["delta"]["content"] for one in before] == ["some ", "of "]
        assert last["error"] == {
            "message": "the model provider m failed",
            "type": "server_error",
            "code": "MODEL_UNAVAILABLE",
            "param": None,
        }
        whole = await door.ask()
        assert whole.status_code == 503, "its beginning may have been read: it is no part of another answer"

    server = Server([("some of", BREAKS), ("some of", BREAKS)])
    play(test, server)
    assert len(server.asked) == 2


def test_while_the_breaker_is_open_a_failure_says_when_to_come_back_and_one_request_finds_the_server_again() -> None:
    async def test(door: Door) -> None:
        responses = [await door.ask() for _ in range(5)]
        assert [one.status_code for one in responses] == [503] * 5
        assert "retry-after" not in responses[0].headers
        assert responses[-1].headers["retry-after"] == "1", "whole seconds, rounded up"
        assert len(server.asked) < 3 * 5, "without retries while it is open"
        server.script.clear()
        assert (await door.ask()).status_code == 200
        assert (await door.ask(stream=True)).status_code == 200

    server = Server([("", AWAY)] * 15)
    play(test, server)


def test_an_agents_requests_go_where_its_history_is() -> None:
    async def test(door: Door) -> None:
        for number in range(12):
            for _ in range(2):
                assert (await door.ask(agent=f"agent-{number}")).status_code == 200

    servers = [Server(), Server(), Server()]
    play(test, *servers)
    seen = [{one.served["agent"] for one in server.asked} for server in servers]
    assert all(seen) and sum(len(one) for one in seen) == 12, "each agent at one of them, and all of them in use"
