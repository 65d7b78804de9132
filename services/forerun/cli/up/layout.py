"""Which services a local platform has, and what each is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.cli.up.directory import DataDirectory

HOST: Final = "127.0.0.1"
ORCHESTRATOR: Final = "orchestrator"
BROKER: Final = "broker"
SERVICES: Final = ("snapshots", "sandbox", "verifier", "predictor", ORCHESTRATOR)
"""In the order in which they start; they stop the other way round."""

SHUTDOWN_SECONDS: Final = 5.0
"""Bound of a service's orderly stop. Local agents are few, and a person waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is.

    Attributes:
        directory: The data directory.
        policy_file: Policies and tool servers.
        ports: gRPC port of each service.
        metrics_ports: Metrics port of each service.
        nats_url: The broker.
    """

    directory: DataDirectory
    policy_file: Path
    ports: Mapping[str, int]
    metrics_ports: Mapping[str, int]
    nats_url: str

    def address(self, service: str) -> str:
        """Where a service listens."""
        return f"{HOST}:{self.ports[service]}"

    def environment(self, service: str) -> dict[str, str]:
        """The settings of a service, as environment variables."""
        settings = {
            "listen_address": self.address(service),
            "metrics_address": f"{HOST}:{self.metrics_ports[service]}",
            "nats_url": self.nats_url,
            "nats_password_file": str(self.directory.password_file(service)),
            "token_file": str(self.directory.tokens_file),
            "internal_token_file": str(self.directory.internal_token_file),
            "shutdown_seconds": str(SHUTDOWN_SECONDS),
        }
        if service == ORCHESTRATOR:
            settings |= {
                "policy_file": str(self.policy_file),
                "sandbox_targets": json.dumps([self.address("sandbox")]),
                "verifier_target": self.address("verifier"),
            }
        elif service == "sandbox":
            settings |= {
                "policy_file": str(self.policy_file),
                "data_dir": str(self.directory.data(service)),
                "secrets_directory": str(self.directory.tool_secrets),
            }
        elif service == "snapshots":
            settings["data_dir"] = str(self.directory.data(service))
        return {f"FORERUN_{service.upper()}_{name.upper()}": value for name, value in settings.items()}
