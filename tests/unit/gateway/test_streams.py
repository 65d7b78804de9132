"""A streamed answer ends with its client: one that leaves, one that never comes to listen, one that does not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from forerun.gateway.expected import ExpectedCalls
from forerun.gateway.service import Gateway
from forerun.gateway.settings import ServedModelSettings
from forerun.gateway.upstream import Upstream
from forerun.runtime.auth import Authenticator, Caller, Role
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.models.port import Deadlines, ModelEvent, ModelRequest, TextDelta

BODY = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}


class Endless:
    """A model that writes until nobody listens any more."""

    name = "m"

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.asked = asyncio.Event()
        self.closed = False

    async def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        self.asked.set()
        try:
            if self.silent:
                await asyncio.Event().wait()
            while True:
                yield TextDelta("more ")
                await asyncio.sleep(0)
        finally:
            self.closed = True

    async def close(self) -> None:
        """Nothing is open."""


class Anybody(Authenticator):
    def __init__(self) -> None:
        """Knows no tokens."""

    def caller(self, metadata: Any) -> Caller:
        return Caller(tenant="t", principal="p", credential_scope="", role=Role.USER)


class Client:
    """What the server hands to the application."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self._asked = False

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    async def never_takes(self, message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    async def is_gone(self, message: MutableMapping[str, Any]) -> None:
        raise OSError("connection reset")


def door(model: Endless, *, total: float = 60.0, most: int = 8) -> Any:
    offered = [ServedModelSettings(name="m", addresses=("h:1",))]
    deadlines = Deadlines(first_token=60.0, between_tokens=60.0, total=60.0)
    clock = SystemClock()
    return Gateway(
        Upstream(offered, deadlines=deadlines, concurrency=most, make_port=lambda _: model),
        Anybody(),
        total_seconds=total,
        max_body_bytes=10_000,
        max_requests=most,
        expected=ExpectedCalls(None, (), 0.1),  # type: ignore[arg-type]  # asks nobody
        clock=clock,
        ids=SystemIds(clock),
    ).application()


def scope(path: str = "/v1/chat/completions", method: str = "POST") -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }


async def test_a_client_that_leaves_before_the_first_token_ends_its_request() -> None:
    model, client = Endless(silent=True), Client()
    answering = asyncio.create_task(door(model)(scope(), client.receive, client.send))
    await model.asked.wait()
    client.left.set()
    async with asyncio.timeout(5):
        await answering
    assert model.closed
    assert client.sent[0]["status"] == 499


async def test_a_client_that_leaves_within_the_answer_ends_its_request() -> None:
    model, client = Endless(), Client()
    answering = asyncio.create_task(door(model)(scope(), client.receive, client.send))
    await model.asked.wait()
    client.left.set()
    async with asyncio.timeout(5):
        await answering
    assert model.closed


async def test_a_client_that_is_gone_before_the_answer_begins_ends_its_request() -> None:
    model, client = Endless(), Client()
    with pytest.raises((OSError, ExceptionGroup)):
        await door(model)(scope(), client.receive, client.is_gone)
    assert model.closed


async def test_a_client_that_does_not_read_is_given_up() -> None:
    model, client = Endless(), Client()
    async with asyncio.timeout(5):
        await door(model, total=0.05)(scope(), client.receive, client.never_takes)
    assert model.closed


async def test_more_requests_than_are_kept_are_refused_and_one_that_ended_makes_room() -> None:
    model, first = Endless(silent=True), Client()
    application = door(model, most=1)
    answering = asyncio.create_task(application(scope(), first.receive, first.send))
    await model.asked.wait()
    second, third = Client(), Client()
    await application(scope(), second.receive, second.send)
    assert second.sent[0]["status"] == 429
    assert b"max_requests" in second.sent[1]["body"]
    assert (b"retry-after", b"1") in second.sent[0]["headers"]
    first.left.set()
    await answering
    await application(scope("/v1/models", "GET"), third.receive, third.send)
    assert third.sent[0]["status"] == 200
