"""A worker of its own process that can be frozen: run by test_consumers.py, not a test.

Takes one message, says so, and commits after a while on the condition that nobody else has committed.
Arguments: address, password, subject of the work, subject of the commit.
"""

from __future__ import annotations

import asyncio
import sys

from forerun.runtime.bus import ConsumerSpec, Message
from forerun.runtime.bus_errors import SequenceMismatch
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds

ACK_WAIT_SECONDS = 1.0
WORK_SECONDS = 0.6


def spec(subject: str) -> ConsumerSpec:
    return ConsumerSpec("AUDITS", "workers", (subject,), ack_wait_seconds=ACK_WAIT_SECONDS, retry_delay_seconds=0.05)


async def main(url: str, password: str, work: str, commit: str) -> None:
    clock = SystemClock()
    bus = await NatsBus.connect(NatsOptions((url,), "admin", password), clock=clock, ids=SystemIds(clock))
    ended = asyncio.Event()

    async def handler(message: Message) -> None:
        committed = await bus.read(commit, limit=1)
        print(f"started {message.deliveries}", flush=True)
        await asyncio.sleep(WORK_SECONDS)
        try:
            last = committed[-1].sequence or 0 if committed else 0
            await bus.append(commit, b"frozen", expected_last_sequence=last, timeout_seconds=3.0)
            print("committed", flush=True)
        except SequenceMismatch:
            print("fenced", flush=True)
        finally:
            ended.set()

    consumption = await bus.consume(spec(work), handler)
    print("ready", flush=True)
    await ended.wait()
    await bus.close(2.0)
    print(f"acknowledged {consumption.acknowledged} lost {consumption.lost}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
