"""`forerun policy check`: what a policy file means, with every default written out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import json_format
from rich.console import Console
from rich.table import Column, Table

from forerun.core.contracts import Contract, ResourceTemplate, Scope, repeatable
from forerun.runtime.errors import ErrorReason, ForerunError
from forerun.runtime.policy import Policy, contract_message, policies_of, read_policy_file
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING
from forerun.v1 import policy_pb2

_PIPE_WIDTH = 200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `policy` to the command line."""
    parser = subparsers.add_parser("policy", help="look at policy files", description="Looks at policy files.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="check a file and show what it means",
        description="Checks a policy file and shows each tool's effective contract. Exit code 1: it cannot be used, "
        "3: it cannot be read.",
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        message = read_policy_file(args.file)
        policies = policies_of(message).items
    except ForerunError as error:
        Console(stderr=True, highlight=False).print(error.message, style="red", markup=False)
        return EXIT_MISSING if error.reason is ErrorReason.DEPENDENCY_MISSING else EXIT_FAILED
    unused = _without_contract(message, policies)
    if args.json:
        sys.stdout.write(json.dumps(_as_json(policies, unused)) + "\n")
    else:
        # A file or a pipe has no width of its own, and nobody wants broken lines in it.
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        _show(policies, unused, Console(highlight=False, width=width))
    return 0


def _contracts(policy: Policy) -> list[Contract]:
    return [*policy.contracts.values(), *(contract for _, contract in policy.prefixes)]


def _without_contract(message: policy_pb2.PolicyFile, policies: Iterable[Policy]) -> dict[str, list[str]]:
    """Tools of the file's servers that a policy does not know: they count as writes to everything."""
    tools = [(tool.name, server.name) for server in message.servers for tool in server.tools]
    return {
        policy.name: sorted(name for name, server in tools if not policy.contract(name, server).known)
        for policy in policies
    }


def _as_json(policies: Iterable[Policy], unused: dict[str, list[str]]) -> dict[str, object]:
    return {
        "policies": [
            {
                "name": policy.name,
                "version": policy.version,
                "mode": policy.mode.value,
                "tools": [
                    json_format.MessageToDict(contract_message(one), preserving_proto_field_name=True)
                    for one in _contracts(policy)
                ],
                "without_contract": unused[policy.name],
            }
            for policy in policies
        ]
    }


def _show(policies: Iterable[Policy], unused: dict[str, list[str]], console: Console) -> None:
    for policy in policies:
        console.print(f"policy {policy.label}: mode {policy.mode.value}, hold-out {policy.hold_out:g}", markup=False)
        table = Table(
            *(Column(name, no_wrap=True) for name in ("tool", "effect", "ahead", "repeatable")),
            *("reads", "writes", "oldest", "limit", "also"),
            box=None,
            pad_edge=False,
        )
        for contract in _contracts(policy):
            table.add_row(
                contract.tool,
                contract.effect.value if contract.known else "write (unknown)",
                "yes" if contract.speculate else "no",
                "yes" if repeatable(contract) else "no",
                _resources(contract.reads),
                _resources(contract.writes),
                _staleness(contract),
                f"{contract.timeout_seconds:g} s",
                ", ".join(_attributes(contract)),
            )
        console.print(table)
        if unused[policy.name]:
            names = ", ".join(unused[policy.name])
            console.print(f"without a contract, so writes to everything that never run ahead: {names}", markup=False)
    if not policies:
        console.print("no policies: everything is executed as asked, nothing ahead")


def _resources(templates: Iterable[ResourceTemplate]) -> str:
    return ", ".join(one.text + (" (session)" if one.scope is Scope.SESSION else "") for one in templates)


def _staleness(contract: Contract) -> str:
    if contract.max_staleness_seconds is not None:
        return f"{contract.max_staleness_seconds:g} s"
    return "10 s" if contract.open_world else "any"


def _attributes(contract: Contract) -> list[str]:
    words = ("consuming", "metered", "idempotent", "staged", "transactional", "open_world", "untrusted_output")
    found = [word.replace("_", "-") for word in words if getattr(contract, word)]
    if contract.compensated_by:
        found.append(f"compensated by {contract.compensated_by}")
    if contract.read_when or contract.shell_argument:
        found.append("sometimes a read")
    if contract.output_cap_bytes is not None:
        found.append(f"output cut at {contract.output_cap_bytes} bytes")
    if contract.race is not None:
        found.append(f"second attempts, at most {contract.race.most_extra:.0%} of the calls")
    return found
