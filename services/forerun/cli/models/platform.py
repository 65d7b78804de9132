"""Which platform a model server belongs to: whose caps, kill switch and erasures it follows."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.cli.up.directory import DataDirectory
from forerun.client._local import local_data_dir
from forerun.runtime.bus import Bus
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, InvalidArgument, Unavailable
from forerun.runtime.ids import SystemIds
from forerun.runtime.settings import read_secret
from forerun.runtime.tls import trusting

_USER: Final = "serving"
_CONNECT_SECONDS: Final = 5.0


def add_platform_options(parser: argparse.ArgumentParser) -> None:
    """Adds where the platform is whose caps, kill switch and erasures are followed."""
    group = parser.add_argument_group(
        "the platform",
        "Its cap on drafted tokens, kill switch and erasures of tenants are followed. Without --broker it is the "
        "one that `forerun up` has started on this machine, if there is one.",
    )
    group.add_argument("--broker", metavar="URL", help="nats:// or tls://host:port, several with commas")
    group.add_argument("--broker-password-file", type=Path, metavar="FILE", help=f"password of its user {_USER}")
    group.add_argument("--broker-ca-file", type=Path, metavar="FILE", help="authority of its certificate")
    group.add_argument(
        "--broker-seconds", type=float, default=20.0, metavar="S", help="wait so long for it at the start (default: 20)"
    )
    group.add_argument("--data", type=Path, metavar="DIR", help="data directory of the `forerun up` that is followed")
    group.add_argument("--pool", default="", metavar="NAME", help="SpeculationPool whose agents are served")
    group.add_argument("--name", default="", help="of this server (default: host and port)")


def name_of(args: argparse.Namespace) -> str:
    """The server's name in reports."""
    return str(args.name) or f"{socket.gethostname()}:{args.grpc_address.rpartition(':')[2]}"


def platform_of(args: argparse.Namespace, clock: Clock) -> Callable[[], Awaitable[Bus]] | None:
    """What connects to the platform; None where there is none to follow.

    Raises:
        InvalidArgument: The options do not fit together.
    """
    if args.broker is not None:
        if args.data is not None or args.broker_password_file is None:
            raise InvalidArgument(
                ErrorReason.ARGUMENT_INVALID, "--broker needs --broker-password-file, and excludes --data"
            )
        return _Broker(args.broker, args.broker_password_file, args.broker_ca_file, clock).connect
    directory = DataDirectory((args.data or local_data_dir()).absolute())
    if args.data is None and not directory.run_file.exists():
        return None
    return _Local(directory, clock).connect


@dataclass(frozen=True, slots=True)
class _Broker:
    """A broker by its address."""

    url: str
    password_file: Path
    ca_file: Path | None
    clock: Clock

    async def connect(self) -> Bus:
        """Connects."""
        options = NatsOptions(
            servers=tuple(url.strip() for url in self.url.split(",")),
            user=_USER,
            password=read_secret(self.password_file),
            tls=None if self.ca_file is None else trusting(self.ca_file),
        )
        return await NatsBus.connect(
            options, clock=self.clock, ids=SystemIds(self.clock), timeout_seconds=_CONNECT_SECONDS
        )


@dataclass(frozen=True, slots=True)
class _Local:
    """The broker of a local platform, wherever it is now: a new start of it may take another port and password."""

    directory: DataDirectory
    clock: Clock

    async def connect(self) -> Bus:
        """Connects."""
        file = self.directory.run_file
        try:
            url = str(json.loads(file.read_text(encoding="utf-8"))["nats_url"])
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, f"{file} names no platform that runs") from error
        return await _Broker(url, self.directory.password_file(_USER), None, self.clock).connect()
