"""What the agents of a run are going to do, drawn before it begins."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from tests.simulation.files import FILES
from tests.simulation.people import OPERATOR, PEOPLE, Person
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
    """

    reads: tuple[str, ...] = READS
    writes: tuple[str, ...] = WRITES
    docs: int = DOCS
    stocks: int = STOCKS


def draw_taste(chance: random.Random) -> Taste:
    """Everything, or a corner of it."""
    return chance.choice(
        [
            Taste(),
            Taste(),
            Taste(docs=2, stocks=1),
            Taste(reads=("stock", "stock", "get"), writes=("sell",), docs=1, stocks=1),
            Taste(reads=("show", "show", "get"), writes=("add", "add", "set"), docs=1),
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

    def copy(self) -> Planned:
        """The same call once more."""
        return Planned(self.tool, dict(self.arguments))

    def turned(self) -> Planned:
        """The same call with its arguments in another order."""
        return Planned(self.tool, dict(reversed(self.arguments.items())))


@dataclass(slots=True)
class Message:
    """One message of the model.

    Attributes:
        calls: Its calls; none for a message of words.
        model_seconds: How long the model thinks.
        user: What the user says before it.
        follow: Its first call reads what the answer before named as the next one.
        timeout_seconds: Deadline that the agent gives.
        cancel: (position, seconds) of a call that the agent takes back.
        give_up: The agent stops waiting for the whole message after this.
        extra: Asked by a unary call under the same turn afterwards.
        beside: It is asked so many seconds after the message's own calls instead, and in no order with them.
        ask_again: `same` or `other`: the first call's key is sent again with the same or with other arguments.
        move: The agent's process vanishes before the message, and another one goes on.
        told: Calls that are told while the message still streams: its first ones, perhaps others that it drops.
        stranger: Somebody else tries to go on with the session after the message.
    """

    calls: list[Planned]
    model_seconds: float
    user: bool = False
    follow: bool = False
    timeout_seconds: float | None = None
    cancel: tuple[int, float] | None = None
    give_up: float | None = None
    extra: Planned | None = None
    beside: float | None = None
    ask_again: str = ""
    move: bool = False
    told: list[Planned] = field(default_factory=list)
    stranger: Person | None = None


@dataclass(slots=True)
class Plan:
    """One agent's session.

    Attributes:
        agent: Name of the agent.
        start_at: When it begins, in loop seconds.
        mode: Mode that it asks for; None leaves it to the policy.
        person: On whose behalf it acts.
        messages: What it does.
        leave_after: It leaves so many seconds after it has asked for its last calls.
        vanishes: It leaves without a word, like a process that was killed.
    """

    agent: str
    start_at: float
    mode: str | None
    person: Person = OPERATOR
    messages: list[Message] = field(default_factory=list)
    leave_after: float | None = None
    vanishes: bool = False


def draw_plans(chance: random.Random, taste: Taste) -> list[Plan]:
    """The sessions of a run."""
    return [_plan(chance, taste) for _ in range(chance.randint(2, 5))]


def _plan(chance: random.Random, taste: Taste) -> Plan:
    plan = Plan(
        agent=chance.choice(["clerk", "coder"]),
        start_at=chance.uniform(0.0, 12.0),
        mode=chance.choice([None] * 6 + ["off", "shadow"]),
        person=chance.choice(PEOPLE),
    )
    plan.messages = [_message(chance, taste) for _ in range(chance.randint(3, 7))]
    for scene in (_race, _late_effect):
        if chance.random() < 0.3:
            at = chance.randrange(len(plan.messages))
            plan.messages[at:at] = scene(chance, taste)
    if chance.random() < 0.25:
        plan.leave_after = chance.uniform(0.0, 3.0)
        plan.vanishes = chance.random() < 0.5
    return plan


def _message(chance: random.Random, taste: Taste) -> Message:
    message = Message(calls=[], model_seconds=chance.choice([0.1, 0.6, 2.0, 5.0]), user=chance.random() < 0.4)
    kind = chance.random()
    if kind < 0.08:
        return message
    if kind < 0.25:
        message.calls, message.follow = [draw_call(chance, ("get",), taste)], True
    elif kind < 0.5:
        message.calls = [draw_call(chance, taste.reads, taste) for _ in range(chance.randint(1, 5))]
    elif kind < 0.85:
        message.calls = [draw_call(chance, taste.reads + taste.writes, taste) for _ in range(chance.randint(1, 6))]
    elif kind < 0.95:
        same, between = draw_call(chance, taste.reads + taste.writes, taste), draw_call(chance, taste.writes, taste)
        message.calls = [same, same.turned(), between, same.copy()]
    else:
        message.calls = [Planned("nowhere", {}), draw_call(chance, taste.reads, taste), Planned("sync_view", {})]
    if chance.random() < 0.35:
        message.told = [call.copy() for call in message.calls[: chance.randint(1, len(message.calls))]]
        if chance.random() < 0.2:
            message.told.append(draw_call(chance, taste.reads, taste))
    _accidents(chance, message, taste)
    return message


def _race(chance: random.Random, taste: Taste) -> list[Message]:
    """A read beside a write of the same resource, and the same read again afterwards."""
    doc, stock = chance.randrange(taste.docs), chance.randrange(taste.stocks)
    write, read = chance.choice(
        [
            (Planned("set", {"id": doc, "value": chance.randrange(2)}), Planned("get", {"id": doc})),
            (Planned("put", {"id": doc}), Planned("get", {"id": doc})),
            (Planned("sell", {"id": stock}), Planned("stock", {"id": stock})),
        ]
    )
    first = Message(calls=[write], model_seconds=0.6, extra=read.copy(), beside=chance.uniform(0.0, 1.0))
    return [first, Message(calls=[read], model_seconds=chance.choice([0.1, 2.0]))]


def _late_effect(chance: random.Random, taste: Taste) -> list[Message]:
    """A write for which its agent does not wait long, and reads of what it may still change."""
    doc = chance.randrange(taste.docs)
    write = chance.choice([Planned("set", {"id": doc, "value": 1}), Planned("put", {"id": doc})])
    messages = [Message(calls=[write], model_seconds=0.1, timeout_seconds=chance.choice([0.2, 0.5]))]
    for seconds in (0.1, 2.0, 5.0):
        messages.append(Message(calls=[Planned("get", {"id": doc})], model_seconds=seconds))
    return messages


def _accidents(chance: random.Random, message: Message, taste: Taste) -> None:
    if chance.random() < 0.15:
        message.timeout_seconds = chance.choice([0.4, 1.5, 6.0])
    if chance.random() < 0.12:
        message.cancel = (chance.randrange(len(message.calls)), chance.choice([0.0, 0.3, 1.0]))
    elif chance.random() < 0.05:
        message.give_up = chance.choice([0.2, 1.0])
    if chance.random() < 0.25:
        message.extra = draw_call(chance, taste.reads + taste.writes, taste)
        message.beside = chance.uniform(0.0, 1.0) if chance.random() < 0.5 else None
    if chance.random() < 0.15:
        message.ask_again = chance.choice(["same", "other"])
    message.move = chance.random() < 0.05
    if chance.random() < 0.05:
        message.stranger = chance.choice(PEOPLE)


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
