"""The same client for programs without asyncio: the asynchronous one, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import grpc

from forerun.client._client import DIRECT_AFTER_SECONDS, AsyncClient
from forerun.client._direct import Direct
from forerun.client._errors import InvalidRequest
from forerun.client._json import Arguments
from forerun.client._plan import OnFailure, PlanResult, PlanTask
from forerun.client._results import Call, ErasedServer, Mode, Result, ToolInfo, Totals
from forerun.client._session import AsyncSession

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Loop:
    """An event loop in a thread. The thread is a daemon: an agent that forgets to close its client can still end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="forerun-client", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine and waits for it. An interrupt of the waiting thread cancels the coroutine."""
        if self._loop.is_closed():
            work.close()
            raise InvalidRequest("PROTOCOL_VIOLATION", "the client is closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the thread."""
        if self._loop.is_closed():
            return
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        # Functions that still run in threads of the loop are not waited for: there is no bound for them.
        self._loop.close()


class Session:
    """A session; see `AsyncSession`. May be used from several threads."""

    def __init__(self, loop: _Loop, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    def __enter__(self) -> Session:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._session.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """UUIDv7 of the session."""
        return self._session.id

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self._session.agent

    @property
    def mode(self) -> Mode | None:
        """The mode in force, once the session is open."""
        return self._session.mode

    @property
    def held_out(self) -> bool:
        """True where the hold-out took the session."""
        return self._session.held_out

    @property
    def policy(self) -> str:
        """Name and version of the policy in force."""
        return self._session.policy

    @property
    def direct(self) -> bool:
        """Calls run around the platform now; see `AsyncSession.direct`."""
        return self._session.direct

    @property
    def direct_calls(self) -> int:
        """How many calls ran around the platform."""
        return self._session.direct_calls

    @property
    def totals(self) -> Totals | None:
        """Counts of the session, after it was closed."""
        return self._session.totals

    @overload
    def tool(self, function: _Function, /) -> _Function: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, schema: Mapping[str, object] | None = None
    ) -> Callable[[_Function], _Function]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        schema: Mapping[str, object] | None = None,
    ) -> Any:
        """Registers a function as a tool of this session; see `AsyncSession.tool`."""
        register = self._session.tool(name=name, schema=schema)
        return register if function is None else register(function)

    def open(self) -> None:
        """Opens the session; `with` does it."""
        self._loop.run(self._session.open())

    def user_turn(self, text: str) -> None:
        """The user said something."""
        self._loop.run(self._session.user_turn(text))

    def model_started(self) -> None:
        """A model request was started."""
        self._loop.run(self._session.model_started())

    def assistant_message(self, text: str) -> None:
        """The model's message is complete; its calls follow."""
        self._loop.run(self._session.assistant_message(text))

    def task_outcome(self, reward: float, label: str = "") -> None:
        """How the task went; see `AsyncSession.task_outcome`."""
        self._loop.run(self._session.task_outcome(reward, label))

    def call_tool(
        self, name: str, arguments: Arguments | None = None, *, timeout_seconds: float | None = None
    ) -> Result:
        """Runs one call; see `AsyncSession.call_tool`."""
        return self._loop.run(self._session.call_tool(name, arguments, timeout_seconds=timeout_seconds))

    def call_tools(self, calls: Sequence[Call], *, timeout_seconds: float | None = None) -> list[Result]:
        """Runs the calls of one message; see `AsyncSession.call_tools`."""
        return self._loop.run(self._session.call_tools(calls, timeout_seconds=timeout_seconds))

    def stream_tools(self, calls: Sequence[Call], *, timeout_seconds: float | None = None) -> Iterator[Result]:
        """Runs the calls of one message; results as they come, see `AsyncSession.stream_tools`."""
        results = self._session.stream_tools(calls, timeout_seconds=timeout_seconds)

        async def following() -> Result | None:
            return await anext(results, None)

        try:
            while (result := self._loop.run(following())) is not None:
                yield result
        finally:
            self._loop.run(results.aclose())

    def run_plan(self, tasks: Sequence[PlanTask], *, on_failure: OnFailure = OnFailure.ISOLATE) -> PlanResult:
        """Runs a plan that is complete; see `AsyncSession.run_plan`."""
        return self._loop.run(self._session.run_plan(tasks, on_failure=on_failure))

    def list_tools(self) -> list[ToolInfo]:
        """The tools that this session can call; see `AsyncSession.list_tools`."""
        return self._loop.run(self._session.list_tools())

    def cancel(self, call: Call) -> None:
        """Takes one call back, from another thread than the one that waits for it."""
        self._loop.run(self._session.cancel(call))

    def close(self, reason: str = "done") -> None:
        """Ends the session; see `AsyncSession.close`."""
        self._loop.run(self._session.close(reason))


class Client:
    """A connection to a Forerun platform; see `AsyncClient`. May be used from several threads.

    Args:
        address: `host:port`. Default: `FORERUN_ADDRESS`, else the platform that `forerun up` started here.
        token: Bearer token. Default: `FORERUN_TOKEN`, else that of the local platform.
        credentials: Encrypts the connection.
        connect_timeout_seconds: Longest time to open a session, retries included.
        direct: Runs a call around the platform while that cannot be reached; see `AsyncClient`.
        direct_after_seconds: How long an outage may last before calls are run so.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        connect_timeout_seconds: float = 15.0,
        direct: Direct | None = None,
        direct_after_seconds: float = DIRECT_AFTER_SECONDS,
    ) -> None:
        self._client = AsyncClient(
            address,
            token,
            credentials=credentials,
            connect_timeout_seconds=connect_timeout_seconds,
            direct=direct,
            direct_after_seconds=direct_after_seconds,
        )
        self._loop: _Loop | None = None

    def __enter__(self) -> Client:
        """Finds out where the platform is; see `AsyncClient`."""
        loop = self._loop = _Loop()
        try:
            loop.run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the platform is; known once the client is open."""
        return self._client.address

    def close(self) -> None:
        """Closes the open sessions, the connection and the thread. May be repeated."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self._client.close())
            finally:
                loop.close()

    def session(
        self,
        agent: str,
        *,
        session_id: str | None = None,
        tools: Sequence[str] = (),
        mode: Mode | str | None = None,
        label: str = "",
        resume: bool = False,
    ) -> Session:
        """A session, opened by `with`; see `AsyncClient.session`."""
        session = self._client.session(agent, session_id=session_id, tools=tools, mode=mode, label=label, resume=resume)
        return Session(self._open_loop(), session)

    @overload
    def tool(self, function: _Function, /) -> _Function: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, schema: Mapping[str, object] | None = None
    ) -> Callable[[_Function], _Function]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        schema: Mapping[str, object] | None = None,
    ) -> Any:
        """Registers a function as a tool of all sessions that are made afterwards; see `AsyncSession.tool`."""
        register = self._client.tool(name=name, schema=schema)
        return register if function is None else register(function)

    def get_totals(self) -> Totals:
        """Counts of the platform since it started."""
        return self._open_loop().run(self._client.get_totals())

    def list_tools(self, agent: str) -> list[ToolInfo]:
        """The tools that a session of an agent can call."""
        return self._open_loop().run(self._client.list_tools(agent))

    def set_speculation(self, *, on: bool, tenant: str = "", reason: str = "") -> int:
        """Switches speculation; see `AsyncClient.set_speculation`."""
        return self._open_loop().run(self._client.set_speculation(on=on, tenant=tenant, reason=reason))

    def erase_histories(self, tenant: str, *, wait_seconds: float = 10.0) -> list[ErasedServer]:
        """Makes all model servers forget a tenant; see `AsyncClient.erase_histories`."""
        return self._open_loop().run(self._client.erase_histories(tenant, wait_seconds=wait_seconds))

    def _open_loop(self) -> _Loop:
        if self._loop is None:
            raise InvalidRequest("PROTOCOL_VIOLATION", "open the client first: `with Client() as client`")
        return self._loop
