"""A platform with replicas, its registers, and agents that work on it while it is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from forerun.cli.up import Platform
from forerun.client import AsyncClient, AsyncSession, Call, Result
from forerun.runtime import subjects
from forerun.runtime.bus import EVENT_TYPE_HEADER, Message
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from tests.integration.up.processes import until_gone
from tests.integration.up.registers import Entry, Registers, policy, wrong
from tests.integration.up.toolserver import serving

ORCHESTRATORS = ("orchestrator", "orchestrator-2")
BROKER = "broker"


@dataclass
class Stage:
    """What a test works with.

    Attributes:
        platform: The processes; two of them are orchestrators.
        registers: The tools.
        client: Knows both orchestrators.
    """

    platform: Platform
    registers: Registers
    client: AsyncClient

    def at(self, process: str) -> AsyncClient:
        """A client that knows one replica only."""
        return AsyncClient(self.platform.address_of(process), self.platform.token)

    async def holder(self) -> str:
        """The orchestrator that holds the only open session."""
        for name in ORCHESTRATORS:
            async with self.at(name) as client:
                if (await client.get_totals()).sessions:
                    return name
        raise AssertionError("no orchestrator holds a session")

    @asynccontextmanager
    async def hearing(self, event: str, moment: Callable[[], None]) -> AsyncIterator[None]:
        """Calls a function whenever a journal gets an event of a kind, as the broker passes it on."""
        clock = SystemClock()
        directory = self.platform.directory
        options = NatsOptions(
            (self.platform.address_of(BROKER),), "admin", directory.password_file("admin").read_text().strip()
        )

        async def heard(message: Message) -> None:
            if message.headers.get(EVENT_TYPE_HEADER) == event:
                moment()

        bus = await NatsBus.connect(options, clock=clock, ids=SystemIds(clock), timeout_seconds=10)
        try:
            await bus.subscribe(f"{subjects.PREFIX}.event.>", heard, pending_messages=1_000)
            yield
        finally:
            await bus.close(1.0)

    def kill(self, *names: str) -> None:
        """Ends processes as crashes would, all at the same moment."""
        for name in names:
            self.platform.kill(name)

    async def until_back(self) -> None:
        """Waits until everything runs and serves."""
        async with asyncio.timeout(60):
            while any(self.platform.pid_of(name) is None for name in self.everything):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await self.platform.until_serving(60)

    @property
    def everything(self) -> tuple[str, ...]:
        """All processes, the broker's too."""
        return (*self.platform.processes, BROKER)


@asynccontextmanager
async def staged(directory: Path, **replicas: int) -> AsyncIterator[Stage]:
    """Starts everything, and at the end nothing of it is left."""
    async with serving(Registers(delay_seconds=0.04)) as registers:
        file = directory / "policy.yaml"
        file.write_text(policy(registers))
        counts: Mapping[str, int] = {"orchestrator": 2} | replicas
        async with (
            Platform(directory / "data", file, port=0, replicas=counts) as platform,
            AsyncClient(platform.address, platform.token) as client,
        ):
            yield Stage(platform, registers, client)
    await until_gone(directory / "data")


@dataclass
class Break:
    """Does something once, when a tool has seen enough: the moment is the tools', not the clock's.

    Attributes:
        condition: Whether this is the moment, for an execution and its phase.
        action: What happens then.
        at: Loop time when it happened.
    """

    condition: Callable[[Entry, str], bool]
    action: Callable[[], None]
    at: float | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, entry: Entry, phase: str) -> None:
        """Looks whether this is the moment."""
        if self.at is None and self.condition(entry, phase):
            self.now()

    def now(self) -> None:
        """This is the moment."""
        self.at = asyncio.get_running_loop().time()
        self.action()
        self.happened.set()


@dataclass
class Agent:
    """An agent whose every answer is known beforehand: what it gets instead is a difference.

    Attributes:
        session: Its session.
        name: Its registers.
        results: Everything that it got.
        faults: What was wrong about that.
        answered: Messages that were answered.
    """

    session: AsyncSession
    name: str
    results: list[Result] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    answered: int = 0
    stopping: bool = False
    asking: Sequence[Call] = ()
    ended: Exception | None = None

    @property
    def state(self) -> str:
        """Where it stands, for people."""
        return f"{self.name} after {self.answered}: {[(one.name, one.arguments) for one in self.asking]} {self.ended!r}"

    async def work(self) -> None:
        """Works until it is told to stop."""
        try:
            while not self.stopping:
                await self.step(str(self.answered + 1))
                self.answered += 1
        except Exception as error:
            self.ended = error
            raise

    async def step(self, value: str) -> None:
        """Writes two registers side by side, and reads them back."""
        key = self.name
        await self.session.model_started()
        wrote = await self._ask(Call("put", {"key": key, "value": value}), Call("note", {"key": key, "value": value}))
        await self.session.model_started()
        text = f"{key} {value}"
        read = await self._ask(
            Call("look", {"key": key}), Call("notes", {"key": key}), Call("check", {"key": key}),
            Call("dedent", {"text": f"  {text}"}),
        )  # fmt: skip
        if read[3].ok and read[3].text != text:
            self.faults.append(f"{text}: dedent gave {read[3].text!r}")
        for result, write in zip(read[:3], (wrote[0], wrote[1], wrote[0]), strict=True):
            # What ended unknown may come true later or never; only a write that was acknowledged says what follows.
            if result.ok and write.ok and result.json()["value"] != value:
                self.faults.append(f"{text}: {result.call.name} gave {result.json()}, served {result.served}")

    async def _ask(self, *calls: Call) -> list[Result]:
        self.asking = calls
        async with asyncio.timeout(100):  # the client's own bound is 65 s; nothing waits longer
            results = await self.session.call_tools(list(calls))
        self.asking = ()
        self.results += results
        return results

    async def until_steps(self, count: int) -> None:
        """Waits for so many further steps."""
        target = self.answered + count
        while self.answered < target:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def judge(self, registers: Registers) -> list[str]:
        """Everything that is wrong, by the tools' own log."""
        return self.faults + [fault for result in self.results if (fault := wrong(result, registers)) is not None]


@asynccontextmanager
async def working(stage: Stage, count: int, name: str) -> AsyncIterator[list[Agent]]:
    """Agents that work until the block ends; every one takes some steps after that."""
    sessions = [stage.client.session("agent") for _ in range(count)]
    for session in sessions:
        await session.open()
    agents = [Agent(session, f"{name}-{number}") for number, session in enumerate(sessions)]
    tasks = [asyncio.ensure_future(agent.work()) for agent in agents]
    try:
        yield agents
        await _until_any_ends(tasks, asyncio.gather(*(agent.until_steps(2) for agent in agents)))
        for agent in agents:
            agent.stopping = True
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in sessions:
            await session.close()


async def _until_any_ends(tasks: list[asyncio.Task[None]], goal: Awaitable[object]) -> None:
    waiting = asyncio.ensure_future(goal)
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            waiting.cancel()
            task.result()
    await waiting


async def foreseen(stage: Stage, session: AsyncSession, key: str) -> bool:
    """Greets, and waits until the look that follows was taken ahead; False where the platform does not do it."""
    before = stage.registers.executions("look", key)
    await session.call_tool("dedent", {"text": f"  {key}"})
    await session.model_started()
    try:
        async with asyncio.timeout(0.5):
            while stage.registers.executions("look", key) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            entry = [one for one in stage.registers.log if (one.tool, one.key) == ("look", key)][-1]
            while not entry.done:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        return False
    return True


async def opened_with_a_prefetch(stage: Stage, client: AsyncClient, key: str) -> AsyncSession:
    """Lets the platform learn until it takes a look ahead; the session for which it did.

    The agent is named after the register: what one test teaches is not for another one.
    """
    for _ in range(40):
        # A session of its own each time: one that has looked before knows the answer.
        session = client.session(key)
        await session.open()
        if await foreseen(stage, session, key):
            return session
        await session.call_tool("look", {"key": key})
        await session.close()
    raise AssertionError("nothing is taken ahead")
