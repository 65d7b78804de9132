"""The port of a model provider: one request, a stream of typed deltas, an end with usage and reason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from forerun.core.tokens import Usage


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asks for.

    Attributes:
        id: The provider's id of it.
        name: The tool.
        arguments: As the model wrote them; nothing is repaired.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: Its text.
        tool_calls: Calls that the assistant asked for.
        tool_call_id: For the role `tool`: the call that it answers.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of its text."""
        calls = sum(len(one.name.encode()) + len(one.arguments.encode()) for one in self.tool_calls)
        return len(self.content.encode()) + calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request for one message.

    Attributes:
        messages: The conversation so far.
        temperature: Of the sampling; None leaves it to the provider.
        top_p: Nucleus sampling; None leaves it to the provider.
        max_output_tokens: Generated tokens, at most; the provider's own bound where it is lower or this is None.
        seed: Of the sampling.
        stop: Texts that end the generation.
        tools: JSON text of the list of tools, in the form of chat completions; empty for none.
        continues: The last message is an assistant's, and is to be gone on with.
        must_call: The answer is a call of one of the tools and nothing else. A model that is served here is held to a
            single valid call, token by token; other providers are asked for it (`tool_choice`), and what they send is
            theirs.
        only_tool: The tool that has to be called then; empty: any.
        describe_tools: The tools go into the prompt by the model's own template; False: the messages describe them.
            Other providers always describe them.
        expected: Texts that the answer may equal, likeliest first: drafts for models that are served here.
        served: Further options of the loop (docs/serving.md), for models that are served here; no other provider sees
            them. `tenant` and `agent` say whose earlier outputs may draft.
    """

    messages: tuple[Message, ...]
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tools: str = ""
    continues: bool = False
    must_call: bool = False
    only_tool: str = ""
    describe_tools: bool = True
    expected: tuple[str, ...] = ()
    served: Mapping[str, Any] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        """Equal replicas have to answer it with equal text."""
        return self.temperature == 0.0

    @property
    def size_bytes(self) -> int:
        """Bytes of everything that becomes part of the prompt."""
        return sum(one.size_bytes for one in self.messages) + len(self.tools.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a request may take. Seconds.

    Attributes:
        first_token: Until the first token.
        between_tokens: Between two tokens.
        total: Altogether.
    """

    first_token: float = 30.0
    between_tokens: float = 15.0
    total: float = 300.0


class FinishReason(StrEnum):
    """Why a generation has ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is added."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a call.

    Attributes:
        index: Place of the call in the message.
        id: The provider's id, with the first part.
        name: The tool, with the first part.
        arguments: Text that is added to the arguments.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation, and the last thing of its stream.

    Attributes:
        reason: Why it has ended.
        usage: Tokens; estimated where the provider did not say.
        model: What the provider says that it has served; empty where it says nothing.
    """

    reason: FinishReason
    usage: Usage
    model: str = ""


ModelEvent = TextDelta | ToolCallDelta | Finished


class ModelPort(Protocol):
    """A provider of one model.

    Closing the generator, or cancelling what reads it, ends the request down to the provider's connection. Nothing is
    repeated here: that is decided in one place (`forerun.core.race_replicas`).
    """

    def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        """Sends a request; deltas as they come, `Finished` at the end.

        Raises:
            ModelError: it failed; a generation that breaks off is one, too.
        """
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...


@dataclass(slots=True)
class Gathered:
    """A message that is put together from its deltas.

    Attributes:
        text: Its text so far.
        finished: Its end, once it is there.
    """

    parts: list[str] = field(default_factory=list)
    calls: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)
    finished: Finished | None = None
    output_bytes: int = 0

    def add(self, event: ModelEvent) -> None:
        """Takes a part."""
        if isinstance(event, TextDelta):
            self.parts.append(event.text)
            self.output_bytes += len(event.text.encode())
        elif isinstance(event, ToolCallDelta):
            known_id, known_name, arguments = self.calls.get(event.index, ("", "", []))
            arguments.append(event.arguments)
            self.calls[event.index] = (event.id or known_id, event.name or known_name, arguments)
            self.output_bytes += len(event.arguments.encode()) + len(event.name.encode())
        else:
            self.finished = event

    @property
    def text(self) -> str:
        """Its text so far."""
        return "".join(self.parts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Its calls so far, in the order of the message."""
        return tuple(ToolCall(i, name, "".join(parts)) for _, (i, name, parts) in sorted(self.calls.items()))
