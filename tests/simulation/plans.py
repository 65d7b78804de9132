"""What the agents of a run are going to do, drawn before it begins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.simulation.calls import Planned, Taste, draw_call
from tests.simulation.graphs import Graph, draw_graph, failing_last
from tests.simulation.people import OPERATOR, PEOPLE, Person
from tests.simulation.world import DOCS


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
        graph: The calls are a plan.
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
    graph: Graph | None = None


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
    plans = [_plan(chance, taste) for _ in range(chance.randint(2, 5))]
    return plans + (_market(chance, taste) if chance.random() < 0.2 else [])


def _market(chance: random.Random, taste: Taste) -> list[Plan]:
    """One session sells what another one of its tenant reads, after it has thought so long that its read ran ahead."""
    person, stock = chance.choice(PEOPLE), chance.randrange(taste.stocks)
    start_at = chance.uniform(0.0, 12.0)
    reads = [Message([Planned("stock", {"id": stock})], model_seconds=5.0) for _ in range(8)]
    sales = [Message([Planned("sell", {"id": stock})], model_seconds=chance.uniform(2.0, 6.0)) for _ in range(10)]
    return [Plan(agent="clerk", start_at=start_at, mode=None, person=person, messages=one) for one in (reads, sales)]


def _plan(chance: random.Random, taste: Taste) -> Plan:
    plan = Plan(
        agent=chance.choice(["clerk", "coder"]),
        start_at=chance.uniform(0.0, 12.0),
        mode=chance.choice([None] * 6 + ["off", "shadow"]),
        person=chance.choice(PEOPLE),
    )
    plan.messages = [_message(chance, taste) for _ in range(chance.randint(3, 7))]
    staged = 0.7 if taste.staged else 0.1
    scenes = ((_race, 0.3), (_late_effect, 0.3), (_many_reads, 0.12), (_one_by_one, staged), (_failure_last, 0.15))
    for scene, share in scenes:
        if chance.random() < share:
            at = chance.randrange(len(plan.messages))
            plan.messages[at:at] = scene(chance, taste)
    if chance.random() < 0.25:
        plan.leave_after = chance.uniform(0.0, 3.0)
        plan.vanishes = chance.random() < 0.5
        while plan.vanishes and plan.messages[-1].graph is not None:
            plan.messages[-1] = _message(chance, taste)
    return plan


def _message(chance: random.Random, taste: Taste) -> Message:
    message = Message(calls=[], model_seconds=chance.choice([0.1, 0.6, 2.0, 5.0]), user=chance.random() < 0.4)
    kind = chance.random()
    if kind < 0.08:
        return message
    if chance.random() < 0.15:
        message.calls, message.graph = draw_graph(chance, taste)
        _accidents(chance, message, taste)
        message.timeout_seconds, message.cancel, message.ask_again = None, None, ""
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


def _one_by_one(chance: random.Random, taste: Taste) -> list[Message]:
    """Staged calls with time between them, so that what has run ahead of them can be committed."""
    return [Message(calls=[draw_call(chance, ("add",), taste)], model_seconds=2.0) for _ in range(4)]


def _failure_last(chance: random.Random, _taste: Taste) -> list[Message]:
    """A plan that is told again after everything of it has ended."""
    calls, graph = failing_last(chance)
    return [Message(calls=calls, model_seconds=0.6, graph=graph)]


def _many_reads(chance: random.Random, taste: Taste) -> list[Message]:
    """So many reads that it is known how long they take; then some of them get second attempts."""
    messages = [Message(calls=[Planned("get", {"id": DOCS + number}) for number in range(24)], model_seconds=0.1)]
    for _ in range(3):
        calls = [Planned("get", {"id": chance.randrange(DOCS + 24)}) for _ in range(chance.randint(1, 6))]
        writes = [draw_call(chance, taste.writes, taste)] if chance.random() < 0.3 else []
        messages.append(Message(calls=calls + writes, model_seconds=0.6))
        _accidents(chance, messages[-1], taste)
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
