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
    parser.add_argument(
        "--owner", required=True, metavar="ACCOUNT", help="service account with which the Secrets are removed"
    )
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
            holder = Holder(args.tenant, args.principal)
            clock = SystemClock()
            serving = Serving(args.name, datetime.fromtimestamp(clock.now(), UTC))
            made = make(secrets, args.prefix, args.owner, holder, SystemIds(clock), serving)
    except ForerunError as error:
        sys.stderr.write(f"forerun credentials: {error.message}\n")
        return exit_code(error)
    sys.stdout.write("".join(f"{line}\n" for line in made) or "everything is there\n")
    return 0


def make(secrets: Secrets, prefix: str, owner: str, holder: Holder, ids: Ids, serving: Serving) -> list[str]:
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
    if not wanted:
        return []
    reference = secrets.owner(owner)
    for name, content in wanted.items():
        secrets.add(f"{prefix}-{name}", content, owner=reference, labels=_LABELS)
    return [f"{prefix}-{name}: {', '.join(sorted(content))}" for name, content in wanted.items()]
