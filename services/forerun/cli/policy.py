"""`forerun policy`: what a policy file means, with every default written out (`check`), and giving it to services."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format
from rich.console import Console
from rich.table import Column, Table

from forerun.cli import policy_publish
from forerun.cli.policy_models import answers_as_json, candidates_in_words, models_as_json, show_models
from forerun.cli.policy_places import Place, Placed, placed, places_of
from forerun.core.contracts import Contract, ResourceTemplate, Scope, may_speculate, repeatable
from forerun.runtime.errors import ErrorReason, ForerunError
from forerun.runtime.policy import Policy, contract_message, policies_of, read_policy_file
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

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
    publish = actions.add_parser(
        "publish",
        help="give a file to the services of an installation",
        description="Checks a policy file and publishes it through the broker, as a pod does with the chart's values.",
    )
    policy_publish.add_arguments(publish)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        if args.action == "publish":
            policy_publish.run(args)
            return 0
        message = read_policy_file(args.file)
        meant = policies_of(message)
    except ForerunError as error:
        Console(stderr=True, highlight=False).print(error.message, style="red", markup=False)
        return EXIT_MISSING if error.reason is ErrorReason.DEPENDENCY_MISSING else EXIT_FAILED
    places = places_of(message.servers)
    looks = [_look(policy, places) for policy in meant.items]
    if args.json:
        sys.stdout.write(json.dumps(_as_json(looks) | {"models": models_as_json(meant.models)}) + "\n")
    else:
        # A file or a pipe has no width of its own, and nobody wants broken lines in it.
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        console = Console(highlight=False, width=width)
        _show(looks, console)
        show_models(meant.models, console)
    return 0


@dataclass(frozen=True, slots=True)
class _Look:
    """A policy, as it holds for the tools of its file.

    Attributes:
        policy: The policy.
        contracts: Its contracts.
        without: Tools of the file's servers that it does not know: they count as writes to everything.
    """

    policy: Policy
    contracts: tuple[Placed, ...]
    without: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:
        """What does not hold, one sentence each."""
        return [warning for one in self.contracts for warning in one.warnings]


def _look(policy: Policy, places: Sequence[Place]) -> _Look:
    contracts = [*policy.contracts.values(), *(contract for _, contract in policy.prefixes)]
    known = [one.tool for one in contracts if one.known]
    without = {place.name for place in places if not any(place.takes(tool) for tool in known)}
    return _Look(policy, tuple(placed(one, places) for one in contracts), tuple(sorted(without)))


def _as_json(looks: Iterable[_Look]) -> dict[str, object]:
    return {
        "policies": [
            {
                "name": look.policy.name,
                "version": look.policy.version,
                "mode": look.policy.mode.value,
                "answers": answers_as_json(look.policy.answers),
                "tools": [
                    json_format.MessageToDict(contract_message(one.contract), preserving_proto_field_name=True)
                    | {"ahead": _ahead(one), "repeatable": repeatable(one.contract)}
                    for one in look.contracts
                ],
                "without_contract": list(look.without),
                "warnings": look.warnings,
            }
            for look in looks
        ]
    }


def _show(looks: Sequence[_Look], console: Console) -> None:
    for look in looks:
        policy = look.policy
        console.print(f"policy {policy.label}: mode {policy.mode.value}, hold-out {policy.hold_out:g}", markup=False)
        console.print(f"candidates of answers: {candidates_in_words(policy.answers)}", markup=False)
        table = Table(
            *(Column(name, no_wrap=True) for name in ("tool", "effect", "ahead", "repeatable")),
            *("reads", "writes", "oldest", "limit", "also"),
            box=None,
            pad_edge=False,
        )
        for one in look.contracts:
            contract = one.contract
            table.add_row(
                contract.tool,
                contract.effect.value if contract.known else "write (unknown)",
                _ahead(one),
                "yes" if repeatable(contract) else "no",
                _resources(contract.reads),
                _resources(contract.writes),
                _staleness(contract),
                f"{contract.timeout_seconds:g} s",
                ", ".join(_attributes(contract)),
            )
        console.print(table)
        if look.without:
            names = ", ".join(look.without)
            console.print(f"without a contract, so writes to everything that never run ahead: {names}", markup=False)
        for warning in look.warnings:
            console.print(f"warning: {warning}", style="yellow", markup=False)
    if not looks:
        console.print("no policies: everything is executed as asked, nothing ahead")


def _ahead(one: Placed) -> str:
    """Whether calls are run ahead: `yes`, `no`, or `reads` where the arguments decide and only reads are."""
    contract = one.contract
    if one.stateful:
        return "no"
    if may_speculate(contract).allowed:
        return "yes"
    return "reads" if contract.speculate and (contract.read_when or contract.shell_argument) else "no"


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
