"""What the parts of the client want of each other: a session of its client, a connection of its session, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from forerun.client._calls import Batch, OpenCall
from forerun.client._errors import ForerunClientError
from forerun.client._results import Failure, Result, ToolInfo
from forerun.v1 import session_pb2

if TYPE_CHECKING:
    from forerun.client._connection import Connection
    from forerun.client._direct import Direct
    from forerun.client._session import AsyncSession


class Platform(Protocol):
    """What a session needs of its client."""

    @property
    def direct(self) -> Direct | None:
        """The way around the platform that the program gave."""
        ...

    @property
    def direct_after_seconds(self) -> float:
        """How long an outage may last before it is used."""
        ...

    def goes_direct(self, session: AsyncSession, direct: bool) -> None:
        """The session's calls begin or cease to go around the platform."""
        ...

    def reads(self, agent: str, tool: str) -> bool:
        """Whether a tool only reads, as far as the platform has said."""
        ...

    async def learn(self, agent: str) -> None:
        """Asks what the tools of an agent do, for a time when nobody can be asked."""
        ...

    async def known_tools(self, agent: str, *, ask: bool) -> Sequence[ToolInfo]:
        """The platform's tools: asked for now, or those that it has named before."""
        ...

    def connect(self, session: AsyncSession, hello: session_pb2.Hello, listener: Listener) -> Connection:
        """A connection for a session; the listener hears what comes over it."""
        ...

    async def timeouts(self, agent: str) -> Mapping[str, float]:
        """The tools' own time limits, in seconds."""
        ...

    def forget(self, session: AsyncSession) -> None:
        """The session is closed."""
        ...


class Listener(Protocol):
    """What the session does with messages that are not about calls."""

    def welcomed(self, message: session_pb2.Welcome) -> None:
        """The session is open, or open again."""
        ...

    def invoked(self, message: session_pb2.ClientToolInvocation) -> None:
        """A tool of the client is called."""
        ...

    def invocation_cancelled(self, invocation: str) -> None:
        """A tool of the client is to stop."""
        ...

    def disconnected(self) -> None:
        """The connection broke; what was invoked over it is not wanted any more."""
        ...

    def direct_writes(self) -> session_pb2.DirectWrites.ValueType:
        """What was written past the platform since it was last told."""
        ...

    def takes(self, one: OpenCall, result: Result, batch: Batch) -> bool:
        """Takes a call for which the platform could do nothing."""
        ...

    def goes_on(self, error: ForerunClientError) -> bool:
        """Whether the session lives on without the platform after this end."""
        ...


class Road(Protocol):
    """The way to the platform, as far as it matters here."""

    @property
    def batches(self) -> list[Batch]:
        """Batches with calls that are not answered."""
        ...

    def ask_again(self, batch: Batch) -> None:
        """Sends what is open of a batch when the platform is there."""
        ...

    def reconnect(self) -> None:
        """Says hello again."""
        ...

    def give_up(self, batch: Batch, failure: Failure) -> None:
        """Nobody waits for the open calls of a batch any more."""
        ...
