"""Operators as processes between a real API server and a real broker."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.operator.crds.kinds import API_VERSION, KINDS, Kind
from forerun.operator.kubernetes.access import find_access
from forerun.operator.kubernetes.client import Client
from forerun.operator.kubernetes.rights import Right, needed
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus import KeyValue
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.topology import CAPACITY, POLICIES, TOPOLOGY, ensure
from forerun.v1 import capacity_pb2, policy_pb2
from tests.cluster.kubernetes.control_plane import ControlPlane
from tests.cluster.kubernetes.places import REPOSITORY
from tests.cluster.kubernetes.processes import Processes

Object = dict[str, Any]

PATIENCE_SECONDS = 45.0
CRDS = REPOSITORY / "helm" / "forerun" / "files" / "crds"


def install_definitions(plane: ControlPlane) -> None:
    """The custom resource definitions of the chart, and waits until they are served."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")
    for kind in KINDS:
        plane.kubectl("wait", "--for=condition=Established", f"crd/{kind.plural}.forerun.dev", "--timeout=60s")


def manifest(kind: Kind, name: str, spec: Object, namespace: str) -> Object:
    return {
        "apiVersion": API_VERSION, "kind": kind.name, "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    }  # fmt: skip


@dataclass(slots=True)
class Stage:
    """One namespace, one broker, and the operators of a test.

    Attributes:
        plane: The API server.
        namespace: Of the test alone.
        directory: Of the test alone.
        broker: The broker.
        bus: A connection of its administrator.
    """

    plane: ControlPlane
    namespace: str
    directory: Path
    broker: Broker
    bus: NatsBus
    processes: Processes
    client: Client
    _started: list[str] = field(default_factory=list)

    def operator(
        self,
        name: str = "operator",
        *,
        kubeconfig: Path | None = None,
        namespaces: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> int:
        """Starts an operator; its process id. `settings` are further ones, by the ends of their variables' names."""
        password = self.directory / "operator.password"
        password.write_text(self.broker.password("operator"))
        environment = {
            "FORERUN_OPERATOR_KUBECONFIG": str(kubeconfig or self.plane.kubeconfig),
            "FORERUN_OPERATOR_NAMESPACES": self.namespace if namespaces is None else namespaces,
            "FORERUN_OPERATOR_LEASE_NAMESPACE": self.namespace,
            "FORERUN_OPERATOR_LISTEN_ADDRESS": "127.0.0.1:0",
            "FORERUN_OPERATOR_METRICS_ADDRESS": "127.0.0.1:0",
            "FORERUN_OPERATOR_NATS_URL": self.broker.url,
            "FORERUN_OPERATOR_NATS_PASSWORD_FILE": str(password),
            "FORERUN_OPERATOR_RESYNC_SECONDS": "5",
            **{f"FORERUN_OPERATOR_{name}": value for name, value in (settings or {}).items()},
        }
        self._started.append(name)
        return self.processes.start(name, [sys.executable, "-m", "forerun.operator"], environment)

    def apply(self, kind: Kind, name: str, spec: Object, *, namespace: str | None = None) -> None:
        """Writes a custom resource as a person would."""
        self.plane.kubectl(
            "apply", "--filename=-", stdin=json.dumps(manifest(kind, name, spec, namespace or self.namespace))
        )

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        """A custom resource."""
        return await self.client.get(
            f"/apis/{API_VERSION}/namespaces/{namespace or self.namespace}/{kind.plural}/{name}"
        )

    async def condition(
        self, kind: Kind, name: str, type_: str, *, reason: str, generation: int | None = None
    ) -> Object:
        """Waits until a condition has a reason, for the present generation; the condition."""

        async def look() -> Object | None:
            found = await self.get(kind, name)
            for one in found.get("status", {}).get("conditions", ()):
                current = one["observedGeneration"] == (generation or found["metadata"]["generation"])
                if one["type"] == type_ and one["reason"] == reason and current:
                    return dict(one)
            return None

        found: Object = await eventually(look, f"{kind.name} {name}: {type_} {reason}", self.tell)
        return found

    async def broker_back(self) -> None:
        """Starts the broker again, and waits for our own connection to it."""
        await self.broker.start()

        async def connected() -> bool:
            return self.bus.connected

        await eventually(connected, "our connection to the broker")

    @property
    def policies(self) -> KeyValue:
        """What is published."""
        return self.bus.kv(POLICIES)

    async def published(self, kind: Kind, name: str) -> policy_pb2.PolicyFile | None:
        """What the services have of an object."""
        entry = await self.policies.get(f"{kind.plural}/{self.namespace}/{name}")
        return None if entry is None else policy_pb2.PolicyFile.FromString(entry.value)

    async def capacity(self, pool: str) -> capacity_pb2.PoolCapacity | None:
        """What was decided for a pool."""
        entry = await self.bus.kv(CAPACITY).get(pool)
        return None if entry is None else capacity_pb2.PoolCapacity.FromString(entry.value)

    async def replicas(self, deployment: str) -> int:
        """The size that a Deployment was asked for."""
        found = await self.client.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{deployment}")
        return int(found["spec"]["replicas"])

    def events(self) -> list[Object]:
        """All events of the namespace."""
        listed = json.loads(self.plane.kubectl("get", "events.events.k8s.io", "-n", self.namespace, "-o", "json"))
        return list(listed["items"])

    def deployment(self, name: str, replicas: int) -> None:
        """A Deployment whose pods never run: nothing here makes any."""
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "pause:none"}]},
        }
        body = {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
        }  # fmt: skip
        self.plane.kubectl("apply", "--filename=-", stdin=json.dumps(body))

    def ready(self, name: str, replicas: int) -> None:
        """Says of a Deployment's pods what its controller would say."""
        status = {"status": {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}}
        self.plane.kubectl(
            "patch", "deployment", name, "-n", self.namespace, "--subresource=status", "--type=merge",
            f"--patch={json.dumps(status)}",
        )  # fmt: skip

    def tell(self) -> str:
        """The end of the operators' logs, for failures."""
        return "\n".join(f"{name}: {self.processes.log_tail(name)}" for name in self._started)

    def role(self, user: str, rights: tuple[Right, ...], kubeconfig: Path) -> None:
        """A user with exactly some rights, by Roles alone."""
        by_namespace: dict[str, list[Object]] = {}
        for right in rights:
            rule = {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
            by_namespace.setdefault(right.namespace, []).append(rule)
        for namespace, rules in by_namespace.items():
            metadata = {"name": user, "namespace": namespace}
            role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            }  # fmt: skip
            self.plane.kubectl(
                "apply",
                "--filename=-",
                stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]}),
            )
        self.plane.write_kubeconfig(kubeconfig, user)

    def rights(self) -> tuple[Right, ...]:
        """What an operator of this namespace needs."""
        return needed((self.namespace,), self.namespace)


@asynccontextmanager
async def stage(plane: ControlPlane, directory: Path, namespace: str) -> AsyncIterator[Stage]:
    """A stage with its definitions installed; everything that was started on it ends."""
    plane.kubectl("create", "namespace", namespace)
    clock = SystemClock()
    ids = SystemIds(clock)
    broker = Broker(directory / "broker", new_passwords(ids))
    await broker.start()
    options = NatsOptions((broker.url,), "admin", broker.password("admin"), reconnect_max_seconds=0.1)
    bus = await NatsBus.connect(options, clock=clock, ids=ids)
    await ensure(bus, TOPOLOGY)
    processes = Processes(directory, tethered=True)
    client = Client(find_access(plane.kubeconfig))
    made = Stage(plane, namespace, directory, broker, bus, processes, client)
    try:
        yield made
    finally:
        for name in made._started:
            processes.stop(name, kill=True)
        await client.close()
        await bus.close(2.0)
        await broker.stop()
        plane.kubectl("delete", "namespace", namespace, "--wait=false", check=False)


async def eventually(
    look: Callable[[], Any], what: str, tell: Callable[[], str] = lambda: "", seconds: float = PATIENCE_SECONDS
) -> Any:
    """Looks until there is something; what there is.

    Raises:
        AssertionError: there was nothing in time.
    """
    try:
        async with asyncio.timeout(seconds):
            while not (found := await look()):  # noqa: ASYNC110  (other processes give no event)
                await asyncio.sleep(0.05)
            return found
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds:g} s\n{tell()}") from None
