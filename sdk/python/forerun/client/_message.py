"""A model's message while it streams: its calls are told to the platform as soon as their arguments are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from forerun.client._errors import InvalidRequest
from forerun.client._results import Call, Result


class MessageSession(Protocol):
    """What a streamed message needs of its session."""

    async def partial_message(self, calls: Sequence[Call], *, first: int = 0) -> None:
        """Tells calls whose arguments are complete."""
        ...

    async def assistant_message(self, text: str) -> None:
        """Tells the complete text."""
        ...

    async def call_tools(self, calls: Sequence[Call], *, timeout_seconds: float | None = None) -> list[Result]:
        """Runs the calls of the complete message."""
        ...


class ArgumentText:
    """The argument text of one call as it grows; says when its JSON object is closed.

    It only counts brackets outside of strings: the platform gets the whole text and finds what is wrong in it.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "_parts", "closed")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self.closed = False
        """The first object of the text has ended."""

    @property
    def text(self) -> str:
        """The text so far; without any it means an empty object."""
        return "".join(self._parts) or "{}"

    def add(self, delta: str) -> None:
        """The next characters."""
        self._parts.append(delta)
        if self.closed:
            return
        for character in delta:
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.closed = True
                    return


@dataclass(slots=True)
class _Growing:
    name: str = ""
    provider_call_id: str = ""
    arguments: ArgumentText = field(default_factory=ArgumentText)
    over: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.name) and (self.over or self.arguments.closed)

    def call(self) -> Call:
        return Call(self.name, self.arguments.text, self.provider_call_id)


class StreamedMessage:
    """Takes a message piece by piece. Made by `AsyncSession.streamed_message`, used as an async context manager.

        async with session.streamed_message() as message:
            async for chunk in stream:
                await message.openai(chunk["choices"][0]["delta"])
            results = await message.call_tools()

    Safe reads among the calls start while the message still streams; leaving the block without `call_tools` commits
    nothing of it.
    """

    def __init__(self, session: MessageSession) -> None:
        self._session = session
        self._text: list[str] = []
        self._calls: dict[int, _Growing] = {}
        self._told = 0
        self._over = False

    async def __aenter__(self) -> StreamedMessage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over = True

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def calls(self) -> list[Call]:
        """The calls so far, in order; the last one may still grow."""
        return [self._calls[index].call() for index in sorted(self._calls)]

    async def add_text(self, delta: str) -> None:
        """The next characters of the text."""
        self._check()
        self._text.append(delta)

    async def add_call(
        self, index: int, *, name: str = "", arguments: str = "", provider_call_id: str = "", over: bool = False
    ) -> None:
        """The next piece of a call.

        Args:
            index: Position of the call in the message, from 0 on.
            name: The tool's name, in the piece that has it.
            arguments: The next characters of the argument text.
            provider_call_id: The provider's id, in the piece that has it.
            over: Nothing more comes for this call.

        Raises:
            InvalidRequest: a call before it was skipped, or the message is over.
        """
        self._check()
        if index not in self._calls:
            if index != len(self._calls):
                raise InvalidRequest("PROTOCOL_VIOLATION", f"call {index} begins before call {len(self._calls)}")
            if index:
                self._calls[index - 1].over = True
            self._calls[index] = _Growing()
        call = self._calls[index]
        call.name += name
        call.provider_call_id += provider_call_id
        if arguments:
            call.arguments.add(arguments)
        call.over |= over
        await self._tell()

    async def openai(self, delta: Mapping[str, Any]) -> None:
        """Takes the `delta` of a choice of an OpenAI-compatible chat completion stream, as a mapping."""
        if delta.get("content"):
            await self.add_text(delta["content"])
        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            await self.add_call(
                piece["index"],
                name=function.get("name") or "",
                arguments=function.get("arguments") or "",
                provider_call_id=piece.get("id") or "",
            )

    async def anthropic(self, event: Mapping[str, Any]) -> None:
        """Takes one event of an Anthropic message stream, as a mapping."""
        kind, block = event.get("type"), event.get("content_block") or {}
        delta = event.get("delta") or {}
        if kind == "content_block_start" and block.get("type") == "tool_use":
            await self.add_call(len(self._calls), name=block["name"], provider_call_id=block["id"])
        elif kind == "content_block_delta" and delta.get("type") == "text_delta":
            await self.add_text(delta["text"])
        elif kind == "content_block_delta" and delta.get("type") == "input_json_delta":
            await self.add_call(len(self._calls) - 1, arguments=delta["partial_json"])
        elif kind == "content_block_stop" and self._calls:
            # A block ends before the next one begins: whatever ended, the last call has nothing to come.
            await self.add_call(len(self._calls) - 1, over=True)

    async def call_tools(self, *, timeout_seconds: float | None = None) -> list[Result]:
        """The message is complete: its text is recorded and its calls run, those that were read early at once.

        Args:
            timeout_seconds: As in `AsyncSession.call_tools`.

        Raises:
            ForerunClientError: as `AsyncSession.call_tools`.
        """
        self._check()
        self._over = True
        if self._text or not self._calls:
            await self._session.assistant_message(self.text)
        return await self._session.call_tools(self.calls, timeout_seconds=timeout_seconds) if self._calls else []

    async def _tell(self) -> None:
        """Tells the platform of calls that are complete now, without a gap."""
        first, ready = self._told, []
        while (call := self._calls.get(self._told)) is not None and call.complete:
            ready.append(call.call())
            self._told += 1
        if ready:
            await self._session.partial_message(ready, first=first)

    def _check(self) -> None:
        if self._over:
            raise InvalidRequest("PROTOCOL_VIOLATION", "this message is over; the next one is a new streamed_message")
