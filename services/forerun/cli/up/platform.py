"""A platform on this machine: a real broker and all services, as processes on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.cli.up.directory import DataDirectory
from forerun.cli.up.layout import BROKER, HOST, ORCHESTRATOR, SHUTDOWN_SECONDS, Layout, instances
from forerun.cli.up.ports import free_ports, is_free
from forerun.cli.up.processes import Backoff, ServiceProcess, tether
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import Bug, ErrorReason, FailedPrecondition, ForerunError, Unavailable
from forerun.runtime.ids import Ids, SystemIds
from forerun.runtime.policy import policies_of, read_policy_file
from forerun.runtime.topology import ensure

DEFAULT_PORT: Final = 7400

_POLL_SECONDS: Final = 0.1
_HEALTH_SECONDS: Final = 2.0
_BROKER_SECONDS: Final = 20.0
# What a service may take beyond its own bound before it is killed: its forced steps, see runtime.app.
_FORCED_SECONDS: Final = 10.0


class Platform:
    """Starts, watches and stops a platform.

    Args:
        data_dir: Where it keeps everything; one platform at a time may use it.
        policy_file: Policies and tool servers; None takes `policy.yaml` of the data directory.
        port: The orchestrator's port, which must be free; 0 takes any free one.
        replicas: How many processes of a service run, by its name; one of each by default. With several
            orchestrators the session of one that ends goes on through another.
        environment: Further variables for the services, such as settings of theirs.
        start_timeout_seconds: Until everything serves.

    Raises:
        InvalidArgument: `replicas` names what cannot be.
    """

    def __init__(
        self,
        data_dir: Path,
        policy_file: Path | None = None,
        *,
        port: int = DEFAULT_PORT,
        replicas: Mapping[str, int] | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self._directory = DataDirectory(data_dir.absolute())
        self._policy_file = (policy_file or self._directory.policy_file).absolute()
        self._port = port
        self._replicas = dict(replicas or {})
        self._instances = instances(self._replicas)
        self._environment = dict(environment or {})
        self._start_timeout_seconds = start_timeout_seconds
        self._clock = SystemClock()
        self._ids: Ids = SystemIds(self._clock)
        self._layout: Layout | None = None
        self._broker: Broker | None = None
        self._broker_restarts = 0
        self._broker_restarting = False
        self._broker_killed = False
        self._services: dict[str, ServiceProcess] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._token = ""
        self._stopping = False
        self._locked = False

    # ------------------------------------------------------------ what others ask

    @property
    def address(self) -> str:
        """Where agents connect: `host:port`, or several with commas between them where there are replicas."""
        return ",".join(self._started_layout().addresses(ORCHESTRATOR))

    @property
    def token(self) -> str:
        """The user's token."""
        return self._token

    @property
    def directory(self) -> DataDirectory:
        """The data directory."""
        return self._directory

    @property
    def restarts(self) -> int:
        """How often something had to be started again."""
        return self._broker_restarts + sum(service.restarts for service in self._services.values())

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of all processes but the broker's: those of the services, and `orchestrator-2` and so on."""
        return tuple(self._instances)

    def address_of(self, process: str) -> str:
        """Where a process, or the `broker`, listens: the same over its restarts."""
        layout = self._started_layout()
        return layout.nats_url if process == BROKER else layout.address(process)

    def pid_of(self, process: str) -> int | None:
        """The id of a process, or of the `broker`'s; None while there is none."""
        if process == BROKER:
            return self._broker.pid if self._broker is not None else None
        return self._services[process].pid if process in self._services else None

    def _started_layout(self) -> Layout:
        if self._layout is None:
            raise Bug(ErrorReason.INTERNAL, "the platform was not started")
        return self._layout

    @property
    def internal_token(self) -> str:
        """The token that services show to each other; whoever has it may act for everybody."""
        return self._directory.internal_token_file.read_text().strip()

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Platform:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts everything and returns when it serves.

        Raises:
            ForerunError: something is missing, taken or wrong, or did not serve in time; everything is stopped again.
        """
        self._directory.lock()
        self._locked = True
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        passwords = new_passwords(self._ids)
        self._token = self._directory.prepare(passwords, self._ids)
        policies_of(read_policy_file(self._policy_file))
        ports = self._choose_ports()
        self._broker = Broker(self._directory.data(BROKER), passwords, port=ports.pop(), launcher=tether())
        nats_url = await self._broker.start(_BROKER_SECONDS)
        await self._set_up_broker()
        orchestrator_port = self._port or ports.pop()
        self._layout = Layout(
            directory=self._directory,
            policy_file=self._policy_file,
            ports={name: orchestrator_port if name == ORCHESTRATOR else ports.pop() for name in self._instances},
            metrics_ports={name: ports.pop() for name in self._instances},
            nats_url=nats_url,
            replicas=self._replicas,
        )
        for name, kind in self._instances.items():
            environment = {**os.environ, **self._environment, **self._layout.environment(name)}
            service = ServiceProcess(name, kind, environment, self._directory.log_file(name), self._write_run)
            self._services[name] = service
            await service.start()
        await self._until_first_serving()
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._watch_broker(), name="watch broker")]
        self._watchers += [
            loop.create_task(service.watch(), name=f"watch {name}") for name, service in self._services.items()
        ]
        self._write_run()

    def _choose_ports(self) -> list[int]:
        if self._port and not is_free(self._port):
            raise FailedPrecondition(
                ErrorReason.DEPENDENCY_MISSING,
                f"port {self._port} is taken, perhaps by another platform; use --port with a free one, or 0 for any",
                metadata={"port": str(self._port)},
            )
        # The broker, each process with its metrics, and one that is not needed where the orchestrator's is given.
        return [port for port in free_ports(2 + 2 * len(self._instances) + 1, self._ids) if port != self._port]

    async def _set_up_broker(self) -> None:
        assert self._broker is not None
        options = NatsOptions(servers=(self._broker.url,), user="admin", password=self._broker.password("admin"))
        bus = await NatsBus.connect(options, clock=self._clock, ids=self._ids, timeout_seconds=_BROKER_SECONDS)
        try:
            await ensure(bus)
        finally:
            await bus.close(1.0)

    async def stop(self) -> None:
        """Stops everything in order, by force where it takes too long. May be repeated."""
        self._stopping = True
        watchers, self._watchers = self._watchers, []
        for task in watchers:
            task.cancel()
        if watchers:
            await asyncio.wait(watchers)
        bound = SHUTDOWN_SECONDS + _FORCED_SECONDS
        services = self._services
        # Agents see the orchestrator; what it needs stays until it has ended.
        await asyncio.gather(*(one.stop(bound) for one in services.values() if one.service == ORCHESTRATOR))
        await asyncio.gather(*(one.stop(bound) for one in services.values() if one.service != ORCHESTRATOR))
        if self._broker is not None:
            await self._broker.stop()
        if self._locked:
            self._locked = False
            self._directory.release()

    def end_now(self) -> None:
        """Kills everything; for a person who does not want to wait."""
        for service in self._services.values():
            service.kill()
        if self._broker is not None and self._broker.pid is not None:
            os.kill(self._broker.pid, signal.SIGKILL)

    async def restart(self, process: str) -> None:
        """Stops a process, or the `broker`, in order; returns when its next one serves.

        Raises:
            Unavailable: it does not serve in time; the message holds the end of its log.
        """
        if process == BROKER:
            await self._restart_broker()
        else:
            await self._services[process].restart(SHUTDOWN_SECONDS + _FORCED_SECONDS)
        await self.until_serving(self._start_timeout_seconds)

    async def roll(self) -> None:
        """Restarts every process, one after another: each serves before the next one is stopped.

        Raises:
            Unavailable: one does not serve in time; the others were left alone.
        """
        for process in (*self._instances, BROKER):
            await self.restart(process)

    async def _restart_broker(self) -> None:
        assert self._broker is not None
        self._broker_restarting = True
        await self._broker.stop()
        while self._broker_restarting:  # noqa: ASYNC110  (its watcher starts it)
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self, process: str) -> None:
        """Ends a process, or the `broker`, as a crash would. It is started again."""
        if process != BROKER:
            self._services[process].kill()
        elif self._broker is not None and self._broker.pid is not None:
            self._broker_killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._broker.pid, signal.SIGKILL)

    async def until_failed(self) -> ForerunError:
        """Waits until the platform cannot go on, because something ends again and again; why."""
        done, _ = await asyncio.wait(self._watchers, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, ForerunError):
                return error
            if error is not None:
                raise error
        return Unavailable(ErrorReason.SHUTTING_DOWN, "the platform was stopped")

    # ------------------------------------------------------------ watching

    async def _watch_broker(self) -> None:
        broker, backoff = self._broker, Backoff()
        assert broker is not None
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            while broker.pid is not None:  # noqa: ASYNC110  (the broker object gives no event)
                await asyncio.sleep(_POLL_SECONDS)
            if self._broker_restarting:
                await broker.start(_BROKER_SECONDS)
                self._broker_restarting = False
                self._write_run()
                continue
            pause_seconds = backoff.next_seconds(loop.time() - started_at, asked_for=self._broker_killed)
            self._broker_killed = False
            if pause_seconds is None:
                raise Unavailable(
                    ErrorReason.BROKER_UNAVAILABLE,
                    f"nats-server ends again and again; its log ends with:\n{broker.log_tail()}",
                )
            await asyncio.sleep(pause_seconds)
            self._broker_restarts += 1
            started_at = loop.time()
            with contextlib.suppress(Unavailable, FailedPrecondition):  # tried again, until it is given up
                await broker.start(_BROKER_SECONDS)
                self._write_run()

    async def until_serving(self, timeout_seconds: float) -> None:
        """Waits until every process serves, for example after a restart.

        Raises:
            Unavailable: one does not in time; the message holds the end of its log.
        """
        waiting = list(self._services)
        try:
            async with asyncio.timeout(timeout_seconds):
                for name in list(waiting):
                    await self._until_serves(name)
                    waiting.remove(name)
        except TimeoutError:
            service = self._services[waiting[0]]
            raise Unavailable(
                ErrorReason.PEER_UNAVAILABLE,
                f"{service.name} does not serve after {timeout_seconds:g} s; its log ends with:\n{service.log_tail}",
                metadata={"service": service.name},
            ) from None

    async def _until_first_serving(self) -> None:
        """At the first start a service that ends is an error, not an accident."""
        serving = asyncio.ensure_future(self.until_serving(self._start_timeout_seconds))
        ends = {asyncio.ensure_future(service.ended()): service for service in self._services.values()}
        try:
            done, _ = await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
            if serving not in done:
                service = next(service for task, service in ends.items() if task in done)
                raise FailedPrecondition(
                    ErrorReason.SETTING_INVALID,
                    f"{service.name} ended at its start; its log ends with:\n{service.log_tail}",
                    metadata={"service": service.name},
                )
            await serving
        finally:
            for task in (serving, *ends):
                task.cancel()
            await asyncio.wait([serving, *ends])

    async def _until_serves(self, name: str) -> None:
        channel = grpc.aio.insecure_channel(self.address_of(name), options=[("grpc.use_local_subchannel_pool", 1)])
        async with channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs name no methods
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_SECONDS)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(_POLL_SECONDS)

    def _write_run(self) -> None:
        if self._layout is None or self._stopping:
            return
        services = {
            name: {
                "address": self._layout.address(name),
                "metrics_address": f"{HOST}:{self._layout.metrics_ports[name]}",
                "pid": service.pid,
                "log_file": str(self._directory.log_file(name)),
            }
            for name, service in self._services.items()
        }
        self._directory.write_run(
            {
                "address": self.address,
                "token_file": str(self._directory.token_file),
                "pid": os.getpid(),
                "policy_file": str(self._policy_file),
                "nats_url": self._layout.nats_url,
                "broker_pid": self.pid_of(BROKER),
                "services": services,
            }
        )
