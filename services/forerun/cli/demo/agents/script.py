"""What a scripted model says and hears, and how it varies.

A script is a generator: it yields messages with tool calls and is sent the observations of these calls, in call order.
It depends on the seed, the session and the observations only, so it behaves the same in every run that shows it the
same observations, and a single changed byte that matters sends it another way.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forerun.cli.demo.draws import Kind, fraction
from forerun.core.canonical import JsonValue


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a message."""

    tool: str
    arguments: dict[str, JsonValue]

    @property
    def arguments_json(self) -> bytes:
        """The JSON text that is sent."""
        return json.dumps(self.arguments, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the model.

    Attributes:
        text: What it says.
        calls: What it asks for. A message without calls is the final answer.
    """

    text: str
    calls: Sequence[Call] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to one call, as the agent received it.

    Attributes:
        content: The bytes.
        tool_error: The tool itself reports a failure.
        status: How the call ended; OK for everything that a tool answered.
    """

    content: bytes
    tool_error: bool = False
    status: str = "OK"

    def value(self) -> dict[str, JsonValue]:
        """The answer as JSON. The demo's tools answer with JSON objects; anything else counts as an empty one."""
        try:
            parsed = json.loads(self.content)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}


Script: TypeAlias = Generator[Message, Sequence[Observation], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of one agent: a session's logical name and what the user says.

    Attributes:
        session: Logical name, such as R07; also the ticket that the agent works on.
        agent: Name of the agent.
        user_text: The user's words.
        subject: What the task is about: an entity of the corpus, or a seeded fault. No two tasks share one.
        model: Kind of the model's draws.
    """

    session: str
    agent: str
    user_text: str
    subject: str
    model: Kind


@dataclass(frozen=True, slots=True)
class Whim:
    """The model's variation from task to task, drawn from the seed: no history of a session foretells it."""

    seed: int
    session: str

    def happens(self, name: str, share: float) -> bool:
        """True in that share of the sessions."""
        return fraction(self.seed, self.session, "whim", name) < share

    def pick(self, name: str, options: Sequence[str]) -> str:
        """One of the options, all as likely."""
        return options[int(fraction(self.seed, self.session, "whim", name) * len(options))]


def text_at(value: JsonValue, *path: str | int) -> str:
    """The string at a path of a JSON value, or an empty one where there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return ""
    return value if isinstance(value, str) else ""


def list_at(value: Mapping[str, JsonValue], name: str) -> list[JsonValue]:
    """The list under a name, or an empty one."""
    found = value.get(name)
    return found if isinstance(found, list) else []
