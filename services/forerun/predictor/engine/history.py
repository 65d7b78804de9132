"""What a session's history is made of, as the engine reads it. The service converts journal entries to these."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.canonical import JsonValue


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session began. Only `tools`, the ones that the agent declared, are ever predicted.

    Attributes:
        tools: Their names.
        schemas: Names and JSON Schemas of those whose arguments are known.
    """

    tools: tuple[str, ...]
    schemas: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user said something."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantText:
    """The model's message is complete. Where it asks for calls as well, this comes first.

    Attributes:
        text: The text.
        seconds: Time since the model request was started; None where it was not measured.
    """

    text: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ModelStarted:
    """A model request was started: the moment a prediction is for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a message.

    Attributes:
        index: Position in the message, from 0 on.
        tool: Name of the tool.
        arguments: The arguments, exact: integers as int, other numbers as Decimal.
    """

    index: int
    tool: str
    arguments: JsonValue


@dataclass(frozen=True, slots=True)
class CallsAsked:
    """The calls of one message, in order.

    Attributes:
        turn: Number of the message.
        calls: Its calls.
        seconds: Time since the model request was started, where the message had no text before; None otherwise.
    """

    turn: int
    calls: tuple[Asked, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call was answered.

    Attributes:
        turn: Number of the message that asked for it.
        index: Position of the call in that message.
        ok: False where the tool or the way to it failed.
        observation: The answer, or nothing where it is not known here.
        seconds: How long the execution took; None where it was not measured.
    """

    turn: int
    index: int
    ok: bool
    observation: bytes
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session ended. A step that was open ends without a call."""


Event = SessionOpened | UserTurn | AssistantText | ModelStarted | CallsAsked | CallFinished | SessionClosed
