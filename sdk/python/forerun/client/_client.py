"""The way to a platform for asyncio programs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._answers import Answers
from forerun.client._asking import DEADLINE_DEFAULT_SECONDS
from forerun.client._channel import open_channel
from forerun.client._connection import Connection
from forerun.client._direct import Direct
from forerun.client._errors import ForerunClientError, InvalidRequest, NotConfigured, from_rpc_error
from forerun.client._ids import Ids, SystemIds
from forerun.client._local import resolve
from forerun.client._ports import Listener
from forerun.client._results import ErasedServer, Mode, ToolInfo, Totals, only_reads, totals_of
from forerun.client._session import AsyncSession
from forerun.client._tools import Tool, ToolHost
from forerun.v1 import answer_pb2_grpc, session_pb2, session_pb2_grpc

_UNARY_SECONDS: Final = 10.0
DIRECT_AFTER_SECONDS: Final = 3.0
"""Longer than another replica needs to take a session over."""
_NOT_THERE_YET: Final = frozenset({"ADDRESS_MISSING", "CREDENTIAL_MISSING"})
_LOG: Final = logging.getLogger("forerun.client")


class AsyncClient(ToolHost):
    """A connection to a Forerun platform, shared by any number of sessions.

    Args:
        address: `host:port`, or several with commas between them: replicas of one platform, any of which goes on with
            a session when another one ends. Default: `FORERUN_ADDRESS`, else the one that `forerun up` started here.
        token: Bearer token. Default: `FORERUN_TOKEN`, else that of the local platform.
        credentials: Encrypts the connection; without them it is plain, for loopback and trusted networks.
        channel: Used instead of a connection of its own, and not closed; `address` and `token` are then optional.
        ids: Makes session ids and jitter; replaced where runs have to repeat exactly.
        connect_timeout_seconds: Longest time to open a session, retries included.
        direct: Runs a call around the platform while that cannot be reached. Functions registered as tools need none.
        direct_after_seconds: How long an outage may last before calls are run so. Another replica takes a session over
            within 2 seconds.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        channel: grpc.aio.Channel | None = None,
        ids: Ids | None = None,
        connect_timeout_seconds: float = 15.0,
        direct: Direct | None = None,
        direct_after_seconds: float = DIRECT_AFTER_SECONDS,
    ) -> None:
        self._address = address
        self._token = token
        self._credentials = credentials
        self._channel = channel
        self._owned: grpc.aio.Channel | None = None
        self._ids: Ids = ids if ids is not None else SystemIds()
        self._connect_timeout_seconds = connect_timeout_seconds
        self.direct = direct
        self.direct_after_seconds = direct_after_seconds
        self._opened = False
        self._known: dict[str, Sequence[ToolInfo]] = {}
        self._reads: dict[str, frozenset[str]] = {}
        self._going_direct: list[AsyncSession] = []
        self._stub: session_pb2_grpc.SessionServiceStub | None = None
        self._tools: dict[str, Tool] = {}
        self._sessions: list[AsyncSession] = []

    @property
    def address(self) -> str:
        """Where the platform is; known once the client is open."""
        return self._address or ("the given channel" if self._channel is not None else "an unknown address")

    async def __aenter__(self) -> AsyncClient:
        """Finds out where the platform is. The connection itself is made by the first session.

        Raises:
            NotConfigured: nothing says where the platform is, its address is none, or the token is missing. With a way
                around the platform, nothing but a wrong address is an error: `forerun up` may come later.
        """
        self._opened = True
        try:
            self._open_stub()
        except NotConfigured as error:
            if error.reason not in _NOT_THERE_YET or (self.direct is None and not self._tools):
                raise
            _LOG.warning("%s; until then calls run directly, without speculation", error.message)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the open sessions and the connection. May be repeated."""
        for session in list(self._sessions):
            await session.close("the client was closed")
        owned, self._owned = self._owned, None
        self._stub, self._opened = None, False
        if owned is not None:
            await owned.close()

    def session(
        self,
        agent: str,
        *,
        session_id: str | None = None,
        tools: Sequence[str] = (),
        mode: Mode | str | None = None,
        label: str = "",
        resume: bool = False,
    ) -> AsyncSession:
        """A session, opened by `async with`.

        Args:
            agent: Name of the agent: the same for all its runs, because the platform learns per agent.
            session_id: UUIDv7 of the session; a new one by default.
            tools: Names of the tools that the agent can call; empty for all. Only these run ahead.
            mode: Lowers the policy's mode for this session (`off`, `shadow`, `exact`).
            label: Logical name, for tools that are told the session.
            resume: The session exists already, and this program goes on with it.
        """
        if resume and session_id is None:
            raise InvalidRequest("ARGUMENT_INVALID", "resume=True needs the session_id to go on with")
        return AsyncSession(
            self,
            agent,
            session_id=session_id or self._ids.uuid7(),
            tools=tools,
            mode=Mode(mode) if mode is not None else None,
            label=label,
            resume=resume,
            own_tools=self._tools,
            connect_timeout_seconds=self._connect_timeout_seconds,
        )

    async def get_totals(self) -> Totals:
        """Counts of the platform since it started.

        Raises:
            ForerunClientError: it does not answer, or refuses.
        """
        response = await self._unary("GetTotals", session_pb2.GetTotalsRequest())
        return totals_of(response.totals)

    async def list_tools(self, agent: str) -> list[ToolInfo]:
        """The tools that a session of an agent can call.

        Raises:
            ForerunClientError: the platform does not answer, or refuses.
        """
        response = await self._unary("ListSessionTools", session_pb2.ListSessionToolsRequest(agent=agent))
        return [
            ToolInfo(
                name=tool.name,
                version=tool.version,
                input_schema=tool.input_schema,
                description=tool.description,
                timeout_seconds=(
                    tool.contract.timeout_seconds
                    if tool.contract.HasField("timeout_seconds")
                    else DEADLINE_DEFAULT_SECONDS
                ),
                reads=only_reads(tool.contract),
            )
            for tool in response.tools
        ]

    async def set_speculation(self, *, on: bool, tenant: str = "", reason: str = "") -> int:
        """Switches speculation for a tenant or all; the revision of the switch. Calls go on, only nothing runs ahead.

        Args:
            on: Whether it may run.
            tenant: The tenant. Empty: all tenants. A user's token may name its own tenant, an operator's any and all.
            reason: For the record.

        Raises:
            ForerunClientError: the platform does not answer, or refuses.
        """
        request = session_pb2.SetSpeculationRequest(on=on, tenant=tenant, reason=reason)
        return int((await self._unary("SetSpeculation", request)).revision)

    async def erase_histories(self, tenant: str, *, wait_seconds: float = 10.0) -> list[ErasedServer]:
        """Makes all model servers forget the earlier outputs of a tenant's agents, from which they draft.

        A server that is away now erases them when it is back, before it reads what it has saved.

        Args:
            tenant: Whose. A user's token may name its own tenant, an operator's any.
            wait_seconds: How long to wait for the servers that run, at most 60. They go on with it in any case.

        Returns:
            What each model server that runs has erased, by name.

        Raises:
            ForerunClientError: the platform does not answer, or refuses.
        """
        request = session_pb2.EraseHistoriesRequest(tenant=tenant, wait_seconds=wait_seconds)
        response = await self._unary("EraseHistories", request, _UNARY_SECONDS + wait_seconds)
        return [ErasedServer(one.name, one.erased, one.histories, one.tokens, one.files) for one in response.servers]

    def answers(self, agent: str, *, session: str = "") -> Answers:
        """Answers of the platform's models.

        Args:
            agent: Name of the agent, which decides the policy.
            session: Id of the session that the answers belong to, for the ledger.
        """
        return Answers(
            agent,
            session,
            lambda: answer_pb2_grpc.AnswerServiceStub(self._open_channel()),
            self._metadata,
            lambda: self.address,
        )

    # ------------------------------------------------------------ used by sessions

    def connect(self, session: AsyncSession, hello: session_pb2.Hello, listener: Listener) -> Connection:
        """A connection for a session; the listener hears what comes over it."""
        self._check()
        self._sessions.append(session)
        return Connection(
            self._open_stub, hello, listener, metadata=self._metadata, address=lambda: self.address, ids=self._ids
        )

    async def timeouts(self, agent: str) -> Mapping[str, float]:
        """The tools' own time limits, in seconds."""
        return {tool.name: tool.timeout_seconds for tool in await self.list_tools(agent)}

    def reads(self, agent: str, tool: str) -> bool:
        """Whether a tool only reads, as far as the platform has said."""
        return tool in self._reads.get(agent, ())

    async def learn(self, agent: str) -> None:
        """Asks what the tools of an agent do, for a time when nobody can be asked."""
        with contextlib.suppress(ForerunClientError):
            await self.known_tools(agent, ask=True)

    async def known_tools(self, agent: str, *, ask: bool) -> Sequence[ToolInfo]:
        """The platform's tools: asked for now, or those that it has named before."""
        if ask:
            self._known[agent] = await self.list_tools(agent)
            self._reads[agent] = frozenset(tool.name for tool in self._known[agent] if tool.reads)
        return self._known.get(agent, ())

    def goes_direct(self, session: AsyncSession, direct: bool) -> None:
        """A session's calls begin or cease to go around the platform. The log says so once, not for each session."""
        if direct:
            self._going_direct.append(session)
            if len(self._going_direct) == 1:
                _LOG.warning("no platform answers at %s: calls run directly, without speculation", self.address)
        elif session in self._going_direct:
            self._going_direct.remove(session)
            if not self._going_direct:
                _LOG.warning("calls go through the platform at %s again", self.address)

    def forget(self, session: AsyncSession) -> None:
        """The session is closed."""
        for sessions in (self._sessions, self._going_direct):
            if session in sessions:
                sessions.remove(session)

    def _take_tool(self, tool: Tool) -> None:
        self._tools[tool.name] = tool

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()

    async def _unary(self, method: str, request: Any, seconds: float = _UNARY_SECONDS) -> Any:
        try:
            return await getattr(self._open_stub(), method)(request, timeout=seconds, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.address).error from error

    def _open_stub(self) -> session_pb2_grpc.SessionServiceStub:
        """The service. Where nothing said where it is, this looks again.

        Raises:
            NotConfigured: nothing says so yet.
        """
        if self._stub is None:
            self._stub = session_pb2_grpc.SessionServiceStub(self._open_channel())
        return self._stub

    def _open_channel(self) -> grpc.aio.Channel:
        self._check()
        if self._channel is not None:
            return self._channel
        if self._owned is None:
            self._address, self._token = resolve(self._address, self._token)
            # Channels belong to the loop that runs when they are made.
            self._owned = open_channel(self._address, self._credentials)
        return self._owned

    def _check(self) -> None:
        if not self._opened:
            raise InvalidRequest("PROTOCOL_VIOLATION", "open the client first: `async with AsyncClient() as client`")
