"""`forerun broker`: the broker of an installation on Kubernetes, whose parts `forerun up` takes care of by itself.

`config` prints the broker's configuration, `setup` makes streams and buckets; services wait until they find them.
Passwords are files of one folder, one for each user, as a mounted Secret has them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import Clock, SystemClock
from forerun.runtime.errors import ErrorReason, ForerunError, Unavailable
from forerun.runtime.ids import SystemIds
from forerun.runtime.secrets import write_secret
from forerun.runtime.settings import exit_code, read_secret
from forerun.runtime.tls import CA_CERTIFICATE, CERTIFICATE, KEY, trusting
from forerun.runtime.topology import CLUSTER_REPLICAS, TOPOLOGY, ensure
from forerun.runtime.topology_render import Cluster, ServerOptions, ServerTls, render_config

_ADMIN: Final = "admin"
_CONNECT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.5

_Parsers = argparse._SubParsersAction


def add_parser(subparsers: _Parsers[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `broker` to the command line."""
    parser = subparsers.add_parser("broker", help="the broker of an installation", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    config = actions.add_parser("config", help="print the configuration of a nats-server")
    _add_passwords(config)
    config.add_argument("--store", type=Path, required=True, metavar="DIR", help="where it keeps streams")
    config.add_argument("--output", type=Path, metavar="FILE", help="write it there, for its owner only, not to stdout")
    config.add_argument("--sync-always", action="store_true", help="acknowledge only what is on the disk itself")
    config.add_argument("--name", default="forerun", help="name of this server, unique in a cluster")
    config.add_argument(
        "--tls", type=Path, metavar="DIR", help="encrypt, with tls.crt, tls.key and ca.crt of this folder"
    )
    config.add_argument(
        "--route", action="append", default=[], metavar="HOST:PORT", help="another server of the cluster; repeated"
    )
    setup = actions.add_parser("setup", help="make the broker hold what the services need; may be repeated")
    _add_passwords(setup)
    add_server(setup)
    setup.add_argument("--replicas", type=int, choices=(1, CLUSTER_REPLICAS), default=1, help="copies of each stream")
    return parser


def _add_passwords(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--passwords", type=Path, required=True, metavar="DIR", help="one file for each user")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Adds where the broker is and how long to try."""
    parser.add_argument(
        "--server", required=True, metavar="URL", help="nats:// or tls://host:port, several with commas"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="authority of its certificate, unless the system's"
    )
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="give up after this (default 120)")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        if args.action == "config":
            _write_config(args)
        else:
            password = read_secret(args.passwords / _ADMIN)
            login = Login(args.server, _ADMIN, password, args.ca_file)
            asyncio.run(until_done(login, args.seconds, lambda bus: ensure(bus, replicas=args.replicas)))
    except ForerunError as error:
        sys.stderr.write(f"forerun broker: {error.message}\n")
        return exit_code(error)
    return 0


def _write_config(args: argparse.Namespace) -> None:
    passwords: Mapping[str, str] = {user.name: read_secret(args.passwords / user.name) for user in TOPOLOGY.users}
    options = ServerOptions(
        store_dir=args.store,
        passwords=passwords,
        name=args.name,
        host="0.0.0.0",
        port=4222,
        monitor_port=8222,
        sync_always=args.sync_always,
        cluster=Cluster(port=6222, routes=tuple(args.route)) if args.route else None,
        tls=None if args.tls is None else ServerTls(args.tls / CERTIFICATE, args.tls / KEY, args.tls / CA_CERTIFICATE),
    )
    text = render_config(TOPOLOGY, options)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_secret(args.output, text)


@dataclass(frozen=True, slots=True)
class Login:
    """Where the broker is, and as whom to connect.

    Attributes:
        server: Its address, or several with commas between them.
        user: A user of the topology.
        password: Its password.
        ca_file: Authority of the broker's certificate; None takes those that the system trusts.
    """

    server: str
    user: str
    password: str
    ca_file: Path | None = None


async def until_done(login: Login, seconds: float, work: Callable[[NatsBus], Awaitable[object]]) -> None:
    """Connects and does it, again and again until it works.

    Raises:
        Unavailable: it did not within `seconds`; says what the last try met.
    """
    clock: Clock = SystemClock()
    servers = tuple(url.strip() for url in login.server.split(","))
    deadline = clock.monotonic() + seconds
    while True:
        try:
            options = NatsOptions(
                servers=servers, user=login.user, password=login.password,
                tls=None if login.ca_file is None else trusting(login.ca_file),
            )  # fmt: skip
            bus = await NatsBus.connect(options, clock=clock, ids=SystemIds(clock), timeout_seconds=_CONNECT_SECONDS)
            try:
                await work(bus)
                return
            finally:
                await bus.close(1.0)
        except ForerunError as error:
            if clock.monotonic() > deadline:
                raise Unavailable(
                    ErrorReason.BROKER_UNAVAILABLE,
                    f"the broker at {login.server} is not ready after {seconds:g} s: {error.message}",
                ) from error
        await asyncio.sleep(_RETRY_SECONDS)
