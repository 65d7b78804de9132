"""`forerun runner-key`: what a runner proves itself with, made before it starts and where its commands never are.

On Kubernetes it is the container before the runner's own: it alone sees the key of the authority. A pod runs it once,
so a runner that is started again in its pod has no key.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from forerun.cli.credentials.certificates import Pair, Purpose, issue
from forerun.cli.credentials.material import CA_KEY
from forerun.runtime.clock import SystemClock
from forerun.runtime.settings import EXIT_MISSING
from forerun.runtime.tls import CA_CERTIFICATE, CERTIFICATE, KEY

# Longer than a runner waits for a session and a session lasts.
_DAYS: Final = 30


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `runner-key` to the command line."""
    parser = subparsers.add_parser("runner-key", help="make the key of a runner, before it starts")
    parser.add_argument("--authority", type=Path, required=True, help=f"directory with {CA_CERTIFICATE} and {CA_KEY}")
    parser.add_argument("--directory", type=Path, required=True, help="where certificate and key go")
    parser.add_argument("--address", required=True, help="IP address by which workers reach the runner")
    parser.add_argument("--empty", type=Path, action="append", default=[], help="directory to empty first; repeated")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    now = datetime.fromtimestamp(SystemClock().now(), UTC)
    try:
        for directory in (*args.empty, args.directory):
            _empty(directory)
        authority = Pair((args.authority / CA_CERTIFICATE).read_bytes(), (args.authority / CA_KEY).read_bytes())
        make_runner_key(authority, args.directory, args.address, now)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"forerun runner-key: {error}\n")
        return EXIT_MISSING
    return 0


def make_runner_key(authority: Pair, directory: Path, address: str, now: datetime) -> None:
    """Writes certificate, key and authority of one runner.

    Raises:
        OSError: The directory cannot be written.
        ValueError: The authority is none.
    """
    pair = issue(authority, [address], now, purposes=(Purpose.SERVER,), days=_DAYS)
    contents = {CERTIFICATE: pair.certificate, CA_CERTIFICATE: authority.certificate, KEY: pair.key}
    for name, content in contents.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
