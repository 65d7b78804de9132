"""Tools of the tests: a connector that is told what to do, and workspaces that remember."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from forerun.runtime.clock import Clock
from forerun.sandbox.connectors.port import Invocation, Result, Sink
from forerun.sandbox.demand import Demand
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import CommandEndpoint, Hints, PythonEndpoint, Server, Tool, tool
from forerun.sandbox.worker.engine import Engine
from forerun.sandbox.worker.execution import Chunk, Finished, Request, Sizes, Started, Step
from forerun.sandbox.worker.slots import Priority, Slots
from forerun.sandbox.workspaces.store import Workspaces

OWNER = Owner("acme", "s1")


def python_tool(name: str = "t") -> Tool:
    return tool(name, Server("s"), PythonEndpoint("m:f"), hints=Hints())


def invocation(subject: Tool | None = None, **changes: object) -> Invocation:
    speculative = changes.pop("speculative", False)
    made = Invocation(
        tool=subject or python_tool(),
        raw=b"{}",
        arguments={},
        tenant="acme",
        principal="ann",
        credential_scope="c",
        session="s1",
        session_label="",
        demand=Demand(not speculative),
        timeout_seconds=60.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """A connector: each call takes `seconds`, gives `chunks` evenly over them, then answers."""

    seconds: float = 1.0
    chunks: tuple[bytes, ...] = ()
    answer: bytes = b"done"
    unkillable_seconds: float = 0.0
    fail: BaseException | None = None
    certain: bool = True
    accepted_only: bool = False
    started: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    running: int = 0
    peak: int = 0

    async def call(self, asked: Invocation, sink: Sink) -> Result:
        self.started.append(asked.tool.name)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            for chunk in self.chunks:
                await asyncio.sleep(self.seconds / len(self.chunks))
                sink(chunk)
            if not self.chunks:
                await asyncio.sleep(self.seconds)
            if self.fail is not None:
                raise self.fail
            return Result(b"".join(self.chunks) or self.answer, "text/plain", may_continue=self.accepted_only)
        except asyncio.CancelledError:
            self.cancelled.append(asked.tool.name)
            if self.unkillable_seconds:
                await asyncio.sleep(self.unkillable_seconds)
            raise
        finally:
            self.running -= 1

    def ends_with_call(self, asked: Invocation) -> bool:
        return self.certain

    async def close_session(self, owner: Owner) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass
class Writing:
    """A connector that writes a line into its fork, then answers with it."""

    workspaces: Workspaces
    line: str = "first"
    inside: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    answer_bytes: int = 0

    async def call(self, asked: Invocation, sink: Sink) -> Result:
        workspace = await self.workspaces.of(asked.owner, None)
        async with workspace.use(asked.fork) as view:
            assert isinstance(view.mount, Bind)
            with (Path(view.mount.path) / "log").open("a") as log:
                log.write(f"{self.line}\n")
            self.inside.set()
            await self.go_on.wait()
        return Result(self.line.encode().ljust(self.answer_bytes), "text/plain; x=1", tool_error=True)

    def ends_with_call(self, asked: Invocation) -> bool:
        return True

    async def close_session(self, owner: Owner) -> None:
        pass

    async def close(self) -> None:
        pass


class Gate:
    """Holds the first call of a blocking function up."""

    def __init__(self, real: Callable[..., object]) -> None:
        self._real = real
        self._loop = asyncio.get_running_loop()
        self._used = False
        self.inside = asyncio.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: object) -> object:
        if not self._used:
            self._used = True
            self._loop.call_soon_threadsafe(self.inside.set)
            assert self.go_on.wait(20)
        return self._real(*arguments)


def ahead(execution: str) -> Request:
    """The same write, run ahead of its call in a fork of its own."""
    real = staged(execution, execution, speculative=True)
    return Request(execution, real.invocation, Priority.SPECULATIVE)


def staged(execution: str, fork: str = "f", **changes: object) -> Request:
    """A real call that writes."""
    asked = invocation(tool("w", Server("s"), CommandEndpoint(("w",)), hints=Hints()), fork=fork, **changes)
    return Request(execution, asked, Priority.AUTHORITATIVE, merge_on_success=True)


def staging_engine(connector: Writing, clock: Clock, ended: Callable[[], None] = lambda: None) -> Engine:
    slots = Slots(authoritative=4, speculative=1, queue=4, changed=lambda: None)
    return Engine(
        {CommandEndpoint: connector}, connector.workspaces, slots, clock,
        sizes=Sizes(inline_bytes=4 * 1024**2, chunk_bytes=1024**2), ended=lambda *_: ended(),
    )  # fmt: skip


class Rig:
    """An engine with one connector under virtual time."""

    def __init__(
        self,
        clock: Clock,
        workspaces: Workspaces,
        connector: Scripted | None = None,
        *,
        authoritative: int = 2,
        speculative: int = 2,
        queue: int = 10,
    ) -> None:
        self.connector = connector or Scripted()
        self.ends: list[Finished] = []
        self.slots = Slots(authoritative=authoritative, speculative=speculative, queue=queue, changed=lambda: None)
        self.engine = Engine(
            {PythonEndpoint: self.connector},
            workspaces,
            self.slots,
            clock,
            sizes=Sizes(inline_bytes=10, chunk_bytes=8),
            ended=lambda _, finished: self.ends.append(finished),
        )
        self._numbers = 0

    def ask(
        self,
        name: str = "t",
        priority: Priority = Priority.AUTHORITATIVE,
        *,
        limit: int | None = None,
        **changes: object,
    ) -> Call:
        self._numbers += 1
        request = Request(
            f"e{self._numbers}",
            invocation(python_tool(name), speculative=priority is not Priority.AUTHORITATIVE, **changes),
            priority,
            limit,
        )
        return Call(self.engine, request)


class Call:
    """A running execution, read by a task of its own."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.id = request.execution
        self.steps: list[tuple[float, Step]] = []
        self.task = asyncio.ensure_future(self._read(engine.execute(request)))

    async def _read(self, steps: AsyncIterator[Step]) -> Finished:
        async with aclosing(steps) as open_steps:  # type: ignore[type-var]
            async for step in open_steps:
                self.steps.append((asyncio.get_running_loop().time(), step))
                if isinstance(step, Finished):
                    return step
        raise AssertionError("an execution ended without Finished")

    async def end(self) -> Finished:
        return await self.task

    @property
    def started_at(self) -> float | None:
        return next((at for at, step in self.steps if isinstance(step, Started)), None)

    @property
    def chunks(self) -> list[tuple[float, bytes]]:
        return [(at, step.data) for at, step in self.steps if isinstance(step, Chunk)]
