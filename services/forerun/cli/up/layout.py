"""Which services a local platform has, and what each is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.cli.up.directory import DataDirectory
from forerun.runtime.errors import ErrorReason, InvalidArgument

HOST: Final = "127.0.0.1"
ORCHESTRATOR: Final = "orchestrator"
BROKER: Final = "broker"
SERVICES: Final = ("snapshots", "sandbox", "verifier", "predictor", ORCHESTRATOR)
"""In the order in which they start; they stop the other way round."""

REPLICATED: Final = frozenset({"sandbox", "verifier", ORCHESTRATOR})
"""Services of which several processes may run; of the others exactly one owns the data."""
REPLICAS: Final = 8
"""Processes of one service at most: one machine has nothing to gain from more."""

SHUTDOWN_SECONDS: Final = 5.0
"""Bound of a service's orderly stop. Local agents are few, and a person waits."""


def instances(replicas: Mapping[str, int]) -> dict[str, str]:
    """The processes of a platform and the service of each, in the order in which they start.

    The first process of a service has its name, further ones are `orchestrator-2` and so on.

    Args:
        replicas: How many processes of a service; one where it is not named.

    Raises:
        InvalidArgument: a service is unknown, or may not have so many processes.
    """
    for service, count in replicas.items():
        allowed = REPLICAS if service in REPLICATED else 1
        if service not in SERVICES or not 1 <= count <= allowed:
            names = ", ".join(sorted(REPLICATED))
            raise InvalidArgument(
                ErrorReason.SETTING_INVALID,
                f"{service}={count} is not possible: {names} may have 1 to {REPLICAS} processes, the others one",
                metadata={"service": service},
            )
    return {
        service if number == 1 else f"{service}-{number}": service
        for service in SERVICES
        for number in range(1, replicas.get(service, 1) + 1)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is.

    Attributes:
        directory: The data directory.
        policy_file: Policies and tool servers.
        ports: gRPC port of each process.
        metrics_ports: Metrics port of each process.
        nats_url: The broker.
        replicas: How many processes of a service, where there is more than one.
    """

    directory: DataDirectory
    policy_file: Path
    ports: Mapping[str, int]
    metrics_ports: Mapping[str, int]
    nats_url: str
    replicas: Mapping[str, int] = field(default_factory=dict)

    def address(self, process: str) -> str:
        """Where a process listens."""
        return f"{HOST}:{self.ports[process]}"

    def addresses(self, service: str) -> list[str]:
        """Where all processes of a service listen."""
        return [self.address(name) for name, kind in instances(self.replicas).items() if kind == service]

    def environment(self, process: str) -> dict[str, str]:
        """The settings of a process, as environment variables."""
        service = instances(self.replicas)[process]
        settings = {
            "listen_address": self.address(process),
            "metrics_address": f"{HOST}:{self.metrics_ports[process]}",
            "nats_url": self.nats_url,
            "nats_password_file": str(self.directory.password_file(service)),
            "token_file": str(self.directory.tokens_file),
            "internal_token_file": str(self.directory.internal_token_file),
            "shutdown_seconds": str(SHUTDOWN_SECONDS),
        }
        if service == ORCHESTRATOR:
            settings |= {
                "policy_file": str(self.policy_file),
                "secrets_directory": str(self.directory.tool_secrets),
                "sandbox_targets": json.dumps(self.addresses("sandbox")),
                # One channel over all of them, as grpc writes it.
                "verifier_target": "ipv4:" + ",".join(self.addresses("verifier")),
            }
        elif service == "sandbox":
            settings |= {
                "policy_file": str(self.policy_file),
                "data_dir": str(self.directory.data(process)),
                "secrets_directory": str(self.directory.tool_secrets),
            }
        elif service == "snapshots":
            settings["data_dir"] = str(self.directory.data(service))
        return {f"FORERUN_{service.upper()}_{name.upper()}": value for name, value in settings.items()}
