"""The world outside of the platform: a tool server whose own log is the truth of a run.

Every resource has an epoch that counts its writes. An answer carries the epochs that it read and the ones that it
made, so that each observation can be placed in the order of all writes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

DOCS: Final = 4
STOCKS: Final = 3
TOPICS: Final = ("tea", "rain", "chess", "bread")
KEY_HEADER: Final = "x-call-key"
HOST: Final = "tools.test"
SECOND_HOST: Final = "tools-again.test"
"""An equivalent provider."""
_FOREVER: Final = 1e6
_SLOW_SECONDS: Final = (3.0, 9.0)
_LINGER_SECONDS: Final = (0.05, 6.0)
_BIG: Final = tuple(b"x" * size for size in (200_000, 1_300_000, 3_000_000))
BEYOND_LIMIT: Final = 5
"""A document of which `big` says more than the platform takes."""

WRITES: Final = frozenset({"set", "put", "move", "sell", "sync_view", "pop"})
"""Tools that change something."""
NOT_REPEATABLE: Final = WRITES - {"put"}
"""Tools whose calls may run once at most."""
SHARED_WRITES: Final = frozenset({"sell", "sync_view"})
"""Tools that change what all sessions of a tenant see."""
_ANSWERS_COUNT: Final = frozenset({"get", "calc", "clock"})
"""Tools whose answers decide what is asked next, or are judged by their content."""
_GARBAGE: Final = b"\xff\xfe\x00{"
SPECULABLE: Final = frozenset({"get", "list", "big", "stock", "news", "calc", "add", "show"})
"""Tools that the policy allows to run ahead."""


@dataclass(slots=True)
class Execution:
    """One line of the server's log. Times are loop seconds.

    Attributes:
        key: The call key that came with the request.
        reads: Resource -> epoch that it saw.
        effects: Resource -> epoch that it made.
        announced: Its intent was in the journal when it began.
        end: `ok`, `failed` (answered 500), `broken` (connection cut), `gone` (the caller hung up), "" while it runs.
        digest: Digest of the answer's body.
        lingered: Its caller had hung up, and it took effect nevertheless, later.
        lied: It did not answer as the same read would otherwise have been answered.
        garbled: It answered that, and nonsense before it.
        second: It ran at the equivalent provider, to which second attempts go.
    """

    number: int
    tool: str
    session: str
    key: str
    started_at: float
    arguments: dict[str, Any]
    reads: dict[str, int] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    read_at: float = 0.0
    announced: bool = True
    ended_at: float | None = None
    end: str = ""
    digest: str = ""
    lied: bool = False
    garbled: bool = False
    lingered: bool = False
    second: bool = False

    @property
    def speculative(self) -> bool:
        """It ran ahead of its call: its key is `session.epoch.number`."""
        return "/" not in self.key and self.key.count(".") == 2

    @property
    def audit(self) -> bool:
        """It was an audit: its key is a UUID."""
        return "/" not in self.key and "." not in self.key


@dataclass(frozen=True, slots=True)
class Temper:
    """How often executions misbehave: shares between 0 and 1."""

    refuse: float = 0.0
    limited: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0
    break_before: float = 0.0
    break_after: float = 0.0
    hang: float = 0.0
    slow: float = 0.0
    garbage: float = 0.0
    lie: float = 0.0
    linger: float = 0.0

    def draw(self, chance: random.Random) -> str:
        """What goes wrong with one execution, or `fine`."""
        draw = chance.random()
        for name in self.__slots__:
            draw -= getattr(self, name)
            if draw < 0.0:
                return name
        return "fine"


class World:
    """The tool server.

    Args:
        chance: Draws times and failures.
        temper: How often things go wrong.
    """

    def __init__(self, chance: random.Random, temper: Temper) -> None:
        self._chance = chance
        self._temper = temper
        self.announced: Callable[[str], bool] = lambda _: True
        """Whether the intent of a call is in the journal; set by the run."""
        self.tenant_of: Callable[[str], str] = lambda _: ""
        """The tenant of a session; set by the run."""
        self.epochs: dict[str, int] = {}
        self.log: list[Execution] = []
        self.turned_away: list[tuple[str, str]] = []
        self.misbehaved: Counter[str] = Counter()
        self._lingering: set[asyncio.Task[None]] = set()
        self.transport: httpx.AsyncBaseTransport = _Wire(self)

    @property
    def open(self) -> int:
        """Executions that run."""
        return sum(one.ended_at is None for one in self.log)

    def refuses(self) -> bool:
        """Whether the next connection is refused."""
        return self._chance.random() < self._temper.refuse

    def write_elsewhere(self) -> None:
        """Somebody who does not use the platform writes the news."""
        self._write(f"news/{self._chance.choice(TOPICS)}")

    def _write(self, resource: str) -> int:
        self.epochs[resource] = self.epochs.get(resource, 0) + 1
        return self.epochs[resource]

    async def handle(self, session: str, tool: str, key: str, body: bytes, *, second: bool) -> httpx.Response:
        """One request.

        Raises:
            ReadError: the connection broke before the answer was through.
        """
        arguments = json.loads(body)
        mood = self._temper.draw(self._chance)
        if tool == "sync_view" and mood in ("hang", "slow", "linger"):
            mood = "fine"  # no policy knows it, so it would have the longest default of all
        if tool in _ANSWERS_COUNT and mood in ("garbage", "lie"):
            mood = "fine"
        if mood != "fine":
            self.misbehaved[f"tool {mood.replace('_', ' ')}"] += 1
        if mood == "limited":
            self.turned_away.append((key, tool))
            return httpx.Response(429, content=b"slow down", headers={"retry-after": "1"})
        loop = asyncio.get_running_loop()
        one = Execution(len(self.log), tool, session, key, loop.time(), arguments, second=second)
        self.log.append(one)
        one.announced = tool not in NOT_REPEATABLE or self.announced(one.key)
        one.end = "gone"
        try:
            response = await self._answer(one, arguments, mood)
            one.end = {"error_before": "failed", "error_after": "failed"}.get(mood, "ok")
            if mood in ("break_before", "break_after"):
                one.end = "broken"
                raise httpx.ReadError("connection reset by peer")
            return response
        except asyncio.CancelledError:
            if mood == "linger" and tool in WRITES and not one.read_at:
                self._linger(one, arguments)
            raise
        finally:
            if not one.lingered:
                one.ended_at = loop.time()

    def _linger(self, one: Execution, arguments: dict[str, Any]) -> None:
        """The caller is gone; the server works on all the same."""
        one.lingered = True

        async def work() -> None:
            await asyncio.sleep(self._chance.uniform(*_LINGER_SECONDS))
            self._act(one, arguments)
            one.ended_at = asyncio.get_running_loop().time()

        task = asyncio.ensure_future(work())
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    async def _answer(self, one: Execution, arguments: dict[str, Any], mood: str) -> httpx.Response:
        total = self._chance.uniform(0.05, 2.0)
        if mood == "slow" or (mood == "linger" and one.tool in WRITES and self._chance.random() < 0.5):
            total = self._chance.uniform(*_SLOW_SECONDS)
        first = total * self._chance.random()
        await asyncio.sleep(first)
        if mood == "hang" and self._chance.random() < 0.5:
            await asyncio.sleep(_FOREVER)
        if mood == "error_before":
            return httpx.Response(500, content=b"no")
        if mood == "break_before":
            return httpx.Response(200)
        body = self._act(one, arguments)
        if mood == "garbage":
            one.garbled, body = True, _GARBAGE + body
        elif mood == "lie":
            one.lied, body = True, body[:-1] + f', "moment": {one.number}}}'.encode()
        if mood == "hang":
            await asyncio.sleep(_FOREVER)
        await asyncio.sleep(total - first)
        one.digest = hashlib.sha256(body).hexdigest()
        if mood == "error_after":
            return httpx.Response(500, content=b"no, but it may have happened")
        return httpx.Response(200, content=body, headers={"content-type": "application/json"})

    def _act(self, one: Execution, arguments: dict[str, Any]) -> bytes:
        """Reads and writes, at one moment."""
        one.read_at = asyncio.get_running_loop().time()
        # No trace of the execution itself: the same read of the same epochs gives the same bytes, which audits compare.
        answer: dict[str, Any] = {"tool": one.tool}
        tenant = self.tenant_of(one.session)
        reads, writes = footprint(one.tool, tenant, one.session, arguments, self._chance.randrange)
        for resource in reads:
            one.reads[resource] = self.epochs.get(resource, 0)
        for resource in writes:
            one.effects[resource] = self._write(resource)
        answer |= {"reads": one.reads, "effects": one.effects}
        if one.tool == "calc":
            answer["sum"] = arguments["a"] + arguments["b"]
        elif one.tool == "clock":
            answer["at"] = one.read_at
        elif one.tool == "get":
            answer["next"] = next_document(one)
        body = json.dumps(answer).encode()
        if one.tool == "big":
            body = body[:-1] + b', "filler": "' + _BIG[int(arguments["id"]) % len(_BIG)] + b'"}'
        return body


def next_document(one: Execution) -> int:
    """The document that an answer of `get` names."""
    epoch = next(iter(one.reads.values()))
    return (int(one.arguments["id"]) * 3 + epoch) % DOCS


def footprint(
    tool: str, tenant: str, session: str, arguments: dict[str, Any], draw: Callable[[int], int]
) -> tuple[list[str], list[str]]:
    """The resources that a call reads and writes, by their names in the world."""

    def doc(name: object) -> str:
        return f"{session}/doc/{name}"

    match tool:
        case "get" | "big":
            return [doc(arguments["id"])], []
        case "list":
            return [doc(number) for number in range(DOCS)], []
        case "set" | "put":
            return [], [doc(arguments["id"])]
        case "move":
            return [doc(arguments["source"])], [doc(arguments["target"])]
        case "stock":
            return [f"{tenant}/stock/{arguments['id']}"], []
        case "sell":
            return [], [f"{tenant}/stock/{arguments['id']}"]
        case "pop":
            return [], [f"{session}/queue/{arguments['queue']}"]
        case "news":
            return [f"news/{arguments['topic']}"], []
        case "sync_view":
            return [], [doc(draw(DOCS)), f"{tenant}/stock/{draw(STOCKS)}"]
        case _:
            return [], []


class _Wire(httpx.AsyncBaseTransport):
    """The way from the platform to the server."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = request.headers.get(KEY_HEADER, "")
        _, session, tool = request.url.path.split("/")
        if self._world.refuses():
            self._world.turned_away.append((key, tool))
            self._world.misbehaved["tool refuse"] += 1
            raise httpx.ConnectError("connection refused")
        second = request.url.host == SECOND_HOST
        return await self._world.handle(session, tool, key, request.content, second=second)
