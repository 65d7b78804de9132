"""What agents like to do, and the calls that they draw from it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from tests.simulation.files import FILES
from tests.simulation.world import DOCS, STOCKS, TOPICS

READS = ("get", "get", "get", "stock", "list", "news", "calc", "clock", "big", "show")
WRITES = ("set", "set", "put", "move", "sell", "pop", "sync_view", "add")

Arguments = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Taste:
    """What all agents of a run like to do: the narrower, the more they are in each other's way.

    Attributes:
        reads: Tools that read, as often as they are liked.
        writes: Tools that write.
        docs: Documents in use.
        stocks: Stocks in use.
        staged: They mostly work in their workspaces.
    """

    reads: tuple[str, ...] = READS
    writes: tuple[str, ...] = WRITES
    docs: int = DOCS
    stocks: int = STOCKS
    staged: bool = False


_FILES = Taste(reads=("show", "show", "get"), writes=("add", "add", "set"), docs=1, staged=True)


def draw_taste(chance: random.Random, kinds: frozenset[str]) -> Taste:
    """Everything, or a corner of it; where processes die, often the calls whose effect has to survive that once."""
    if kinds & {"crash", "network"} and chance.random() < 0.25:
        return _FILES
    return chance.choice(
        [
            Taste(),
            Taste(),
            Taste(docs=2, stocks=1),
            Taste(reads=("stock", "stock", "get"), writes=("sell",), docs=1, stocks=1),
            _FILES,
            Taste(reads=("get", "list"), writes=("set", "put", "sync_view"), docs=1),
        ]
    )


@dataclass(slots=True)
class Planned:
    """A call that an agent will ask for."""

    tool: str
    arguments: Arguments

    @property
    def data(self) -> bytes:
        """The arguments as they are predicted."""
        return json.dumps(self.arguments).encode()

    @property
    def refers(self) -> bool:
        """Its arguments come from the answer of another call of its plan."""
        return any(isinstance(value, str) and value.startswith("$") for value in self.arguments.values())

    def copy(self) -> Planned:
        """The same call once more."""
        return Planned(self.tool, dict(self.arguments))

    def turned(self) -> Planned:
        """The same call with its arguments in another order."""
        return Planned(self.tool, dict(reversed(self.arguments.items())))


def draw_call(chance: random.Random, tools: tuple[str, ...], taste: Taste) -> Planned:
    """A call of one of these tools."""
    tool = chance.choice(tools)
    match tool:
        case "get" | "big" | "put":
            return Planned(tool, {"id": chance.randrange(taste.docs)})
        case "set":
            return Planned(tool, {"id": chance.randrange(taste.docs), "value": chance.randrange(2)})
        case "move":
            return Planned(tool, {"source": chance.randrange(taste.docs), "target": chance.randrange(taste.docs)})
        case "stock" | "sell":
            return Planned(tool, {"id": chance.randrange(taste.stocks)})
        case "pop":
            return Planned(tool, {"queue": chance.randrange(2)})
        case "news":
            return Planned(tool, {"topic": chance.choice(TOPICS)})
        case "show":
            return Planned(tool, {"file": chance.randrange(FILES)})
        case "add":
            return Planned(tool, {"file": chance.randrange(FILES), "token": chance.randrange(1_000_000)})
        case "calc":
            return Planned(tool, {"a": chance.randrange(3), "b": chance.randrange(3)})
        case _:
            return Planned(tool, {})
