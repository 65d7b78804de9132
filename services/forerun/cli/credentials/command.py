"""The command line of `forerun credentials`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Final

from forerun.cli.credentials.material import SECRETS, Holder, Serving, missing
from forerun.cli.credentials.secrets import Secrets
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, FailedPrecondition, ForerunError
from forerun.runtime.ids import Ids, SystemIds
from forerun.runtime.settings import exit_code

_LABELS: Final = {"app.kubernetes.io/part-of": "forerun"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `credentials` to the command line."""
    parser = subparsers.add_parser(
        "credentials",
        help="make the Secrets of an installation, in a pod",
        description=(
            f"Makes what is missing of the Secrets PREFIX-{{{','.join(SECRETS)}}} in the pod's namespace. What exists "
            "is not changed, but for a certificate that runs out, so it may run at any time, and with each upgrade."
        ),
    )
    parser.add_argument("--prefix", required=True, metavar="NAME", help="first part of the Secrets' names")
    parser.add_argument("--remove", action="store_true", help="remove them instead: nobody can connect any more")
    parser.add_argument("--tenant", default="default", help="tenant of the first client token")
    parser.add_argument("--principal", default="agents", help="principal of the first client token")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="DNS name or IP address in the services' certificate; repeated. Without any, none is made",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        with Secrets.of_this_pod() as secrets:
            made = remove(secrets, args.prefix) if args.remove else _made(secrets, args)
    except ForerunError as error:
        sys.stderr.write(f"forerun credentials: {error.message}\n")
        return exit_code(error)
    sys.stdout.write("".join(f"{line}\n" for line in made) or "nothing to do\n")
    return 0


def _made(secrets: Secrets, args: argparse.Namespace) -> list[str]:
    clock = SystemClock()
    serving = Serving(args.name, datetime.fromtimestamp(clock.now(), UTC))
    return make(secrets, args.prefix, Holder(args.tenant, args.principal), SystemIds(clock), serving)


def remove(secrets: Secrets, prefix: str) -> list[str]:
    """Removes all of them; says which there were.

    Raises:
        ForerunError: the API server refuses.
    """
    return [f"{prefix}-{name}: removed" for name in SECRETS if secrets.remove(f"{prefix}-{name}")]


def make(secrets: Secrets, prefix: str, holder: Holder, ids: Ids, serving: Serving) -> list[str]:
    """Makes what is missing; says what, without saying secrets.

    Raises:
        ForerunError: the API server refuses, or a Secret that exists holds something else than it should.
    """
    existing = {name: content for name in SECRETS if (content := secrets.read(f"{prefix}-{name}")) is not None}
    try:
        wanted = missing(existing, holder, ids, serving)
    except (ValueError, KeyError, TypeError) as error:
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID,
            f"the Secret {prefix}-tokens holds no list of tokens in tokens.json, or {prefix}-ca no authority",
        ) from error
    for name, content in wanted.items():
        secrets.add(f"{prefix}-{name}", content, labels=_LABELS)
    return [f"{prefix}-{name}: {', '.join(sorted(content))}" for name, content in wanted.items()]
