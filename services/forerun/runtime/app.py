"""The life of a process: start in order, serve, stop in order within a bound.

A service's `build()` returns an `App`; `run` starts its parts, waits for a signal or a failure, and stops them in
reverse: first nothing says "ready" any more, then the server lets its calls finish, then what the calls needed goes
away. Every step has its own bound and all together have one hard bound, so no remote peer can keep a process alive.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from forerun.runtime import metrics_table as m
from forerun.runtime.errors import Bug, ErrorReason
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import Network, Register, ServerHandle
from forerun.runtime.tasks import Failure

_LOG: Final = logging.getLogger(__name__)

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1

# Between telling a part to stop and giving up on it, so that its own bound is the one that acts.
_MARGIN_SECONDS: Final = 0.5
# After the hard bound, how long cancelled tasks may take to clean up.
_FORCED_SECONDS: Final = 3.0
# After the stop, how long threads may keep the process alive.
_EXIT_SECONDS: Final = 3.0
# Between two collections of young objects; one call makes several hundred.
_COLLECT_AFTER_OBJECTS: Final = 5_000
_LAG_PROBE_SECONDS: Final = 1.0


class Component(Protocol):
    """Something that is started and stopped with the process."""

    async def start(self) -> None:
        """Gets ready to be used; returns when it is."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """Ends its work: what takes longer than `grace_seconds` is given up."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """A component with its name and bounds.

    Attributes:
        name: For logs.
        component: What is started and stopped.
        stop_seconds: Longest time to stop; None takes what remains of the process's bound after all others, which is
            for the one that waits for calls in flight.
        start_seconds: Longest time to start.
    """

    name: str
    component: Component
    stop_seconds: float | None = 5.0
    start_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A process, wired and not started.

    Attributes:
        service: Its name.
        parts: In the order in which they start.
        metrics: Where the event loop's lag is measured.
        drain_seconds: Between "not ready" and the end of accepting, so that load balancers notice.
        failed: Set by whoever finds that the process cannot go on; see `TaskScope`.
    """

    service: str
    parts: Sequence[Part]
    metrics: Metrics
    drain_seconds: float = 0.0
    failed: Failure = field(default_factory=Failure)

    async def start(self) -> None:
        """Starts all parts in order, then says "ready". If one fails, the started ones are stopped again.

        Raises:
            ForerunError: what the part that failed said.
        """
        started: list[Part] = []
        try:
            for part in self.parts:
                started.append(part)
                async with asyncio.timeout(part.start_seconds):
                    await part.component.start()
        except BaseException as error:
            _LOG.error("start failed", extra={"fields": {"forerun.component": started[-1].name}})
            await self._stop_parts(started, asyncio.get_running_loop().time() + _FORCED_SECONDS)
            if isinstance(error, TimeoutError):
                raise Bug(
                    ErrorReason.DEPENDENCY_MISSING,
                    f"{started[-1].name} did not start within {started[-1].start_seconds:g} s",
                ) from error
            raise
        await self.set_ready(True)
        _LOG.info("ready", extra={"fields": {"forerun.component": self.service}})

    async def set_ready(self, ready: bool) -> None:
        """What health says about readiness."""
        for part in self.parts:
            if isinstance(part.component, Served):
                await part.component.set_ready(ready)

    async def stop(self, shutdown_seconds: float) -> bool:
        """Stops within the bound; False if a part had to be given up."""
        deadline = asyncio.get_running_loop().time() + shutdown_seconds
        await self.set_ready(False)
        if self.drain_seconds > 0:
            with suppress(asyncio.CancelledError):  # cut short: go on at once
                await asyncio.sleep(min(self.drain_seconds, shutdown_seconds / 2))
        return await self._stop_parts(self.parts, deadline)

    async def _stop_parts(self, parts: Sequence[Part], deadline: float) -> bool:
        clean = True
        remaining = list(parts)
        while remaining:
            part = remaining[-1]
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            wanted = sum(other.stop_seconds or 0.0 for other in remaining)
            if part.stop_seconds is None:
                bound = max(left / 2, left - wanted)
            else:
                # Where there is less time than they may take, each gets its share: none starves those behind it.
                bound = part.stop_seconds * min(1.0, left / wanted) if wanted else 0.0
            try:
                clean = await _stop(part, bound) and clean
            except asyncio.CancelledError:
                # The stop is cut short: this part again and all others, without any grace.
                clean, deadline = False, 0.0
                await _stop(part, 0.0)
            remaining.pop()
        return clean


async def _stop(part: Part, bound_seconds: float) -> bool:
    try:
        async with asyncio.timeout(bound_seconds + _MARGIN_SECONDS):
            await part.component.stop(bound_seconds)
    except TimeoutError:
        _LOG.error("stopping took too long", extra={"fields": {"forerun.component": part.name}})
        return False
    except Exception:
        _LOG.exception("stopping failed", extra={"fields": {"forerun.component": part.name}})
        return False
    return True


class Served:
    """The gRPC server of a process as a component.

    Args:
        network: Where it listens.
        name: The process's name.
        target: `host:port`; port 0 takes a free one.
        register: Each adds one servicer.
        services: Full names of the services.
        listening: Called with the real address once it listens.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        target: str,
        register: Sequence[Register],
        *,
        services: Sequence[str],
        listening: Callable[[str], None] | None = None,
    ) -> None:
        self._network = network
        self._name = name
        self._target = target
        self._register = register
        self._services = services
        self._listening = listening
        self._handle: ServerHandle | None = None

    @property
    def address(self) -> str:
        """Where clients reach it.

        Raises:
            Bug: it was not started.
        """
        if self._handle is None:
            raise Bug(ErrorReason.INTERNAL, f"the server of {self._name} was not started")
        return self._handle.address

    async def start(self) -> None:
        """Listens; not ready yet."""
        self._handle = await self._network.serve(self._name, self._target, self._register, services=self._services)
        _LOG.info("listening", extra={"fields": {"server.address": self._handle.address}})
        if self._listening is not None:
            self._listening(self._handle.address)

    async def set_ready(self, ready: bool) -> None:
        """What health says."""
        if self._handle is not None:
            await self._handle.set_serving(ready)

    async def stop(self, grace_seconds: float) -> None:
        """Lets running calls finish."""
        if self._handle is not None:
            await self._handle.stop(grace_seconds)


class Callbacks:
    """A component made of two functions, for things whose own methods have other names.

    Args:
        start: Awaited at start.
        stop: Awaited at stop with the grace in seconds.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Awaitable[object]] | None = None,
        stop: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._start = start
        self._stop = stop

    async def start(self) -> None:
        """Calls the first function."""
        if self._start is not None:
            await self._start()

    async def stop(self, grace_seconds: float) -> None:
        """Calls the second function."""
        if self._stop is not None:
            await self._stop(grace_seconds)


async def run(app: App, shutdown_seconds: float) -> int:
    """Runs a process to its end and returns its exit code: 0 after a clean stop, 1 otherwise.

    SIGTERM and SIGINT begin the stop; a second one cuts it short.

    Args:
        app: The process.
        shutdown_seconds: The bound of the stop; forcing it adds at most ten seconds, which belong to what the
            supervisor has to wait before it kills.

    Raises:
        ForerunError: the start failed.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue(maxsize=0)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        return await _live(app, shutdown_seconds, signals)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _live(app: App, shutdown_seconds: float, signals: asyncio.Queue[int]) -> int:
    first = asyncio.ensure_future(signals.get())
    failure = asyncio.ensure_future(app.failed.wait())
    lag = asyncio.ensure_future(_watch_loop(app.metrics))
    starting = asyncio.ensure_future(app.start())
    try:
        await asyncio.wait([starting, first], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            return EXIT_CLEAN  # stopped before it was ready
        _spare_the_collector()
        await asyncio.wait([first, failure], return_when=asyncio.FIRST_COMPLETED)
        _LOG.info("stopping", extra={"fields": {"forerun.seconds": shutdown_seconds}})
        clean = await _stop_within(app, shutdown_seconds, signals)
    finally:
        for task in (first, failure, lag):
            task.cancel()
    _LOG.info("stopped", extra={"fields": {"forerun.forced": not clean}})
    return EXIT_CLEAN if clean and app.failed.error is None else EXIT_FAILED


def _spare_the_collector() -> None:
    """Leaves what lives as long as the process out of every collection of garbage.

    Modules, descriptors and schemas are several hundred thousand objects: to look at them again and again costs a few
    per cent of the processor, and now and then a pause of 20 ms and more that every call feels.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 20, 10)


async def _stop_within(app: App, shutdown_seconds: float, signals: asyncio.Queue[int]) -> bool:
    """Stops, unless another signal or the hard bound comes first."""
    stopping = asyncio.ensure_future(app.stop(shutdown_seconds))
    forced = asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait(
            [stopping, forced], timeout=shutdown_seconds + _FORCED_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if stopping.done():
            return stopping.result()
        stopping.cancel()
        await asyncio.wait([stopping], timeout=_FORCED_SECONDS)
        return False
    finally:
        forced.cancel()


async def _watch_loop(metrics: Metrics) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_PROBE_SECONDS
        await asyncio.sleep(_LAG_PROBE_SECONDS)
        metrics.observe(m.LOOP_LAG_SECONDS, max(0.0, loop.time() - due))


def run_process(build: Callable[[], App], shutdown_seconds: float) -> int:
    """Builds and runs a process in an event loop of its own; the exit code.

    Raises:
        ForerunError: it could not be built or started.
    """

    async def main() -> int:
        code = await run(build(), shutdown_seconds)
        # Python waits for threads of executors without a bound, also for one that hangs in a system call.
        watchdog = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
        watchdog.daemon = True
        watchdog.start()
        return code

    return asyncio.run(main())
