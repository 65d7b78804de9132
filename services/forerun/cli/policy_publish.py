"""`forerun policy publish`: gives the services of an installation a policy file, through the broker."""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path
from typing import Final

from forerun.cli.broker import Login, add_server, until_done
from forerun.runtime.bus import Bus
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.policy import policies_of, read_policy_file
from forerun.runtime.settings import read_secret
from forerun.runtime.topology import POLICIES
from forerun.v1 import policy_pb2

# Who may publish policies; see the topology.
_USER: Final = "operator"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command needs to know."""
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--name", required=True, help="what is replaced: each name holds one file")
    parser.add_argument("--password-file", type=Path, required=True, metavar="FILE", help=f"password of user {_USER}")
    add_server(parser)


def run(args: argparse.Namespace) -> None:
    """Checks the file and publishes it. An empty one takes back what the name held.

    Raises:
        ForerunError: the file cannot be used, or the broker is not there in time.
    """
    if not _NAME.fullmatch(args.name):
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"--name {args.name!r}: lower case letters, digits and -")
    message = read_policy_file(args.file)
    policies_of(message)  # what contradicts itself never replaces what works
    login = Login(args.server, _USER, read_secret(args.password_file), args.ca_file)
    asyncio.run(until_done(login, args.seconds, lambda bus: publish(bus, args.name, message)))


async def publish(bus: Bus, name: str, message: policy_pb2.PolicyFile) -> None:
    """Replaces what a name holds.

    Raises:
        ForerunError: the broker refuses.
    """
    policies = bus.kv(POLICIES)
    if message.policies or message.servers or message.models:
        await policies.put(name, message.SerializeToString())
    elif await policies.get(name) is not None:
        await policies.delete(name)
