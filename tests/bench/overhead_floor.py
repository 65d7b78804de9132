"""What the parts of a call cost by themselves on this machine: the bound below which no platform of this kind can get.

Measured with the same libraries and nothing of the platform's own around them: a unary gRPC call, a message over a gRPC
stream that stays, each at both ends, and a durable append to a broker, at the publisher and at the broker.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.subjects import event
from forerun.runtime.topology import ensure
from tests.bench.processes import cpu_seconds
from tests.bench.results import Row
from tests.bench.servers import ECHO_METHOD, ECHO_STREAM
from tests.bench.stage import Stage

_TIMES: Final = 200
_PAUSE_SECONDS: Final = 0.015
_BODY: Final = b"x" * 300
_DEADLINE_SECONDS: Final = 10.0
_APPENDS_OF_A_MISS: Final = 3
"""Two events and a ledger line."""

UNARY: Final = "server of a plain echo"
MISS: Final = "transport of a miss by itself"


async def floors(stage: Stage) -> list[Row]:
    """A row for each part, and one for what a miss takes of them together."""
    once: Any = stage.echo.unary_unary(ECHO_METHOD)
    stream: Any = stage.echo.stream_stream(ECHO_STREAM)()

    async def unary() -> None:
        await once(_BODY, timeout=_DEADLINE_SECONDS)

    async def message() -> None:
        await stream.write(_BODY)
        await stream.read()

    async def nothing() -> None:
        await asyncio.sleep(0)

    await message()
    waiting, _ = await _each(nothing, stage.echo_pid)
    unary_here, unary_there = await _each(unary, stage.echo_pid)
    here, there = await _each(message, stage.echo_pid)
    stream.cancel()
    publisher, broker = await _appends()
    publisher, here, unary_here = publisher - waiting, here - waiting, unary_here - waiting
    # The orchestrator serves the client's stream and is the client of the worker's, and the worker serves that.
    miss = there + here + there + _APPENDS_OF_A_MISS * (publisher + broker)
    rows = [
        (UNARY, unary_there),
        ("client of a plain echo", unary_here),
        ("server of a message over an open stream", there),
        ("client of a message over an open stream", here),
        ("publisher of an append to the broker", publisher),
        ("broker of an append", broker),
        (MISS, miss),
    ]
    return [Row(name=name, value=value, unit="ms CPU/call", n=_TIMES) for name, value in rows]


async def _appends() -> tuple[float, float]:
    """Milliseconds of an append at the publisher and at a broker of its own, where nobody else is."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with tempfile.TemporaryDirectory(prefix="forerun-bench-broker-") as folder:
        broker = Broker(Path(folder), new_passwords(ids))
        url = await broker.start()
        try:
            assert broker.pid is not None
            options = NatsOptions(servers=(url,), user="admin", password=broker.password("admin"))
            bus = await NatsBus.connect(options, clock=clock, ids=ids)
            await ensure(bus)
            sequence = 0

            async def append() -> None:
                nonlocal sequence
                sequence = await bus.append(
                    event(0, "bench", "bench", "bench"),
                    _BODY,
                    expected_last_sequence=sequence,
                    timeout_seconds=_DEADLINE_SECONDS,
                )

            figures = await _each(append, broker.pid)
            await bus.close(1.0)
            return figures
        finally:
            await broker.stop()


async def _each(work: Callable[[], Awaitable[None]], pid: int) -> tuple[float, float]:
    """Milliseconds of CPU, here and in another process, for each time; with pauses, as between calls."""
    before, here = cpu_seconds(pid), time.process_time()
    for _ in range(_TIMES):
        await work()
        await asyncio.sleep(_PAUSE_SECONDS)
    return (time.process_time() - here) * 1000.0 / _TIMES, (cpu_seconds(pid) - before) * 1000.0 / _TIMES
