"""Three brokers, of which the leader is killed (D1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from forerun.cli.up.ports import free_ports
from forerun.runtime import subjects
from forerun.runtime.broker import find_server, new_passwords
from forerun.runtime.bus import ConsumerSpec, Message
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_api import call
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ForerunError
from forerun.runtime.ids import SystemIds
from forerun.runtime.topology import CLUSTER_REPLICAS, EVENTS, TOPOLOGY
from forerun.runtime.topology_render import ServerOptions, render_config
from tests.contract.runtime_bus.platforms import eventually

JOURNAL = subjects.event(0, "t", "a", "s")


@dataclass
class Cluster:
    """Three brokers that replicate to each other."""

    directory: Path
    ids: SystemIds
    ports: list[int] = field(init=False)
    passwords: dict[str, str] = field(init=False)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = free_ports(2 * CLUSTER_REPLICAS, self.ids)
        self.passwords = new_passwords(self.ids)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"nats://127.0.0.1:{port}" for port in self.ports[:CLUSTER_REPLICAS])

    async def start(self, number: int) -> None:
        """Starts one of them, from the configuration that production renders and the routes to the others."""
        name, home = f"n{number}", self.directory / f"n{number}"
        home.mkdir(exist_ok=True)
        options = ServerOptions(store_dir=home / "jetstream", passwords=self.passwords, port=self.ports[number])
        routes = self.ports[CLUSTER_REPLICAS:]
        config = json.loads(render_config(TOPOLOGY, options)) | {
            "server_name": name,
            "cluster": {
                "name": "forerun",
                "host": "127.0.0.1",
                "port": routes[number],
                "routes": [f"nats://127.0.0.1:{port}" for port in routes],
            },
        }
        (home / "nats.conf").write_text(json.dumps(config))
        with (home / "log").open("wb") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                str(find_server()), "-c", str(home / "nats.conf"), stdout=log, stderr=log
            )

    async def kill(self, name: str) -> None:
        """Ends one as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        await process.wait()


@asynccontextmanager
async def cluster(directory: Path, ids: SystemIds) -> AsyncIterator[Cluster]:
    made = Cluster(directory, ids)
    try:
        for number in range(CLUSTER_REPLICAS):
            await made.start(number)
        yield made
    finally:
        for name in list(made.processes):
            await made.kill(name)


async def until_done(work: object, seconds: float = 25.0) -> None:
    """Repeats a call until the cluster takes it: it elects a leader first."""
    assert callable(work)
    async with asyncio.timeout(seconds):
        while True:
            try:
                await work()
            except ForerunError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_consumer_goes_on_when_the_leader_of_three_brokers_is_killed(tmp_path: Path) -> None:
    clock = SystemClock()
    ids = SystemIds(clock)
    async with cluster(tmp_path, ids) as brokers:
        options = NatsOptions(brokers.urls, "admin", brokers.passwords["admin"], reconnect_max_seconds=0.1)
        bus: list[NatsBus] = []

        async def connect() -> None:
            bus.append(await NatsBus.connect(options, clock=clock, ids=ids, timeout_seconds=2.0))

        await until_done(connect)
        (connected,) = bus
        try:
            await until_done(lambda: connected.declare_stream(TOPOLOGY.stream(EVENTS), replicas=CLUSTER_REPLICAS))
            handled: list[int] = []

            async def handler(message: Message) -> None:
                handled.append(int(message.data))

            spec = ConsumerSpec(EVENTS, "learn", ("forerun.v1.event.>",), ack_wait_seconds=2.0)
            consumption = await connected.consume(spec, handler)

            async def append(number: int) -> None:
                await until_done(
                    lambda: connected.append(JOURNAL, b"%d" % number, message_id=f"m{number}", timeout_seconds=1.0)
                )

            await asyncio.gather(*(append(number) for number in range(10)))
            await eventually(lambda: consumption.acknowledged == 10, seconds=10.0)
            info = await call(connected._wire, f"STREAM.INFO.{EVENTS}")
            await brokers.kill(info["cluster"]["leader"])
            async with asyncio.timeout(30.0):
                await asyncio.gather(*(append(number) for number in range(10, 110)))
                await eventually(lambda: set(handled) == set(range(110)), seconds=30.0)
            stored: list[int] = []

            async def read() -> None:
                stored[:] = [int(message.data) for message in await connected.read(JOURNAL, limit=1_000)]

            await until_done(read)
            assert sorted(stored) == list(range(110)), "each is stored once"
            await eventually(lambda: consumption.healthy, seconds=10.0)
        finally:
            await connected.close(2.0)
