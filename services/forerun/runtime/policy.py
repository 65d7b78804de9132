"""Policies: from the contract's message to the values that decisions use, and from YAML to the message.

One schema (PolicyFile of the contract) serves the file of local mode, the custom resources and the key-value store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from google.protobuf import json_format

from forerun.core import limits
from forerun.core.answers import AnswerPolicy
from forerun.core.contracts import EVERYTHING, Contract, Effect, ResourceTemplate, Scope, problems
from forerun.core.governor import Limits, Prices
from forerun.core.outcomes import Mode
from forerun.core.resources import template_problems
from forerun.core.session.model import SessionPolicy
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.models.catalogue import Model, models_of, race_of
from forerun.v1 import common_pb2, policy_pb2

# The same language, read by libyaml ten times as fast; every wheel of PyYAML has it, a build from source may not.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_EFFECTS = {
    policy_pb2.EFFECT_UNSPECIFIED: Effect.WRITE,
    policy_pb2.EFFECT_PURE: Effect.PURE,
    policy_pb2.EFFECT_READ: Effect.READ,
    policy_pb2.EFFECT_WRITE: Effect.WRITE,
}
_MODES = {
    # A policy that says nothing is new: it decides and scores, and executes nothing until somebody trusts it.
    common_pb2.MODE_UNSPECIFIED: Mode.SHADOW,
    common_pb2.MODE_OFF: Mode.OFF,
    common_pb2.MODE_SHADOW: Mode.SHADOW,
    common_pb2.MODE_EXACT: Mode.EXACT,
}
_MAX_FILE_BYTES = 4 * 1024 * 1024


class PolicyError(FailedPrecondition):
    """A policy cannot be used. The message names the file, the place and the fix."""

    def __init__(self, message: str, reason: ErrorReason = ErrorReason.POLICY_INVALID) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, ready for decisions.

    Attributes:
        name: Its name.
        version: Its version, or a digest of its content.
        mode: Mode of sessions under it.
        hold_out: Share of sessions that run without speculation.
        session: What the session machine needs.
        concurrent: Speculations at once on one replica.
        contracts: Tool to contract, exact names.
        prefixes: (prefix, contract) for `prefix*`, longest first.
        unknown_writes: What a tool without a contract may change.
        tenants: Whom it is for; empty: all.
        agents: Whom it is for; empty: all.
        answers: Candidates of answers.
    """

    name: str
    version: str
    mode: Mode
    hold_out: float
    session: SessionPolicy
    concurrent: int
    contracts: dict[str, Contract]
    prefixes: tuple[tuple[str, Contract], ...]
    unknown_writes: tuple[ResourceTemplate, ...]
    tenants: frozenset[str]
    agents: frozenset[str]
    answers: AnswerPolicy = field(default_factory=AnswerPolicy)

    @property
    def label(self) -> str:
        """Name and version, for ledger and journal."""
        return f"{self.name}@{self.version}"

    def fits(self, tenant: str, agent: str) -> bool:
        """It is meant for this agent of this tenant."""
        return (not self.tenants or tenant in self.tenants) and (not self.agents or agent in self.agents)

    def contract(self, tool: str, server: str) -> Contract:
        """The contract of a tool; for one that is not named, a write to everything it may reach."""
        found = self.contracts.get(tool)
        if found is not None:
            return found
        for prefix, contract in self.prefixes:
            if tool.startswith(prefix):
                return contract
        return Contract(tool, server, Effect.WRITE, known=False, open_world=True, writes=self.unknown_writes)


NO_POLICY = policy_pb2.SpeculationPolicy(name="none", mode=common_pb2.MODE_OFF)
"""Holds where no policy fits: everything is executed as asked, nothing ahead."""


def mode_of(message: common_pb2.Mode.ValueType) -> Mode:
    """The mode of a policy's message."""
    return _MODES.get(message, Mode.SHADOW)


def contract_of(message: policy_pb2.EffectContract, server: str = "") -> Contract:
    """The contract that a message means. Whatever is absent is taken in the cautious way."""
    return Contract(
        tool=message.tool,
        server=server,
        effect=_EFFECTS.get(message.effect, Effect.WRITE),
        known=message.effect != policy_pb2.EFFECT_UNSPECIFIED,
        consuming=message.consuming,
        metered=message.metered,
        idempotent=message.idempotent,
        staged=message.staged,
        transactional=message.transactional,
        open_world=message.open_world,
        compensated_by=message.compensated_by or None,
        reads=_templates(message.reads),
        writes=_templates(message.writes),
        max_staleness_seconds=message.max_staleness_seconds if message.HasField("max_staleness_seconds") else None,
        timeout_seconds=_or(message, "timeout_seconds", limits.DEADLINE_DEFAULT_SECONDS),
        concurrency=int(_or(message, "concurrency", limits.CALLS_IN_FLIGHT_PER_MESSAGE)),
        output_cap_bytes=message.output_cap_bytes if message.HasField("output_cap_bytes") else None,
        insensitive_fields=frozenset(message.insensitive_fields),
        nfc_fields=frozenset(message.nfc_fields),
        speculate=message.speculate,
        untrusted_output=message.untrusted_output,
        read_when={name: tuple(values.values) for name, values in message.read_when.items()},
        shell_argument=message.shell_argument or None,
        cost_money=message.cost_money,
        race=race_of(message.race) if message.HasField("race") else None,
    )


def _or(message: policy_pb2.EffectContract, field: str, default: float) -> float:
    return float(getattr(message, field)) if message.HasField(field) else default  # type: ignore[arg-type]


def _templates(messages: Iterable[policy_pb2.Resource]) -> tuple[ResourceTemplate, ...]:
    session = policy_pb2.RESOURCE_SCOPE_SESSION
    return tuple(
        ResourceTemplate(one.template, Scope.SESSION if one.scope == session else Scope.SHARED) for one in messages
    )


def policy_of(message: policy_pb2.SpeculationPolicy) -> Policy:
    """The policy that a message means.

    Raises:
        PolicyError: it contradicts itself; all problems are named at once.
    """
    found: list[str] = []
    exact: dict[str, Contract] = {}
    prefixes: list[tuple[str, Contract]] = []
    for item in message.tools:
        contract = contract_of(item)
        where = f"policy {message.name!r}, tool {item.tool!r}"
        found.extend(f"{where}: {problem}" for problem in problems(contract))
        for template in (*contract.reads, *contract.writes):
            found.extend(f"{where}: {problem}" for problem in template_problems(template))
        if item.tool.endswith("*"):
            prefixes.append((item.tool[:-1], contract))
        elif item.tool in exact:
            found.append(f"{where}: named twice")
        else:
            exact[item.tool] = contract
    for name in ("hold_out", "withhold", "alpha"):
        if not 0.0 <= getattr(message, name) <= 1.0:
            found.append(f"policy {message.name!r}: {name} must be between 0 and 1")
    answers = _answers(message.answers)
    found.extend(f"policy {message.name!r}: {problem}" for problem in answers.problems())
    if not message.name:
        found.append("a policy has no name")
    if found:
        raise PolicyError("the policy cannot be used:\n  " + "\n  ".join(found))
    version = message.version or _digest(message)
    return Policy(
        name=message.name,
        version=version,
        mode=Mode.OFF if message.off else mode_of(message.mode),
        hold_out=message.hold_out,
        # Compared at commit: the name and the content count, whatever version somebody wrote.
        session=_session_policy(message, f"{message.name}@{version}#{_digest(message)}"),
        concurrent=message.budget.concurrent if message.budget.HasField("concurrent") else 64,
        contracts=exact,
        prefixes=tuple(sorted(prefixes, key=lambda pair: -len(pair[0]))),
        unknown_writes=_templates(message.unknown_writes) or EVERYTHING,
        tenants=frozenset(message.tenants),
        agents=frozenset(message.agents),
        answers=answers,
    )


def _answers(message: policy_pb2.AnswerPolicy) -> AnswerPolicy:
    usual = AnswerPolicy()
    return AnswerPolicy(
        on=message.on,
        max_candidates=message.max_candidates if message.HasField("max_candidates") else usual.max_candidates,
        max_cost=message.max_cost if message.HasField("max_cost") else usual.max_cost,
        worth=message.worth,
        expected_gain=message.expected_gain if message.HasField("expected_gain") else usual.expected_gain,
        drafted_by=message.drafted_by,
    )


def _digest(message: policy_pb2.SpeculationPolicy) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:12]


def _session_policy(message: policy_pb2.SpeculationPolicy, version: str) -> SessionPolicy:
    defaults, prices, budget = Limits(), Prices(), message.budget
    return SessionPolicy(
        name=message.name,
        version=version,
        prices=Prices(
            alpha=message.alpha,
            lambda_per_second=(
                message.lambda_per_second if message.HasField("lambda_per_second") else prices.lambda_per_second
            ),
            slot_second_cost=(
                message.slot_second_cost if message.HasField("slot_second_cost") else prices.slot_second_cost
            ),
            minimum_evidence=(
                message.minimum_evidence if message.HasField("minimum_evidence") else prices.minimum_evidence
            ),
        ),
        limits=Limits(
            concurrent=(
                budget.concurrent_per_session if budget.HasField("concurrent_per_session") else defaults.concurrent
            ),
            credits_per_call=(
                budget.credits_per_call if budget.HasField("credits_per_call") else defaults.credits_per_call
            ),
            initial_credits=(
                budget.initial_credits if budget.HasField("initial_credits") else defaults.initial_credits
            ),
            money=budget.money_per_session if budget.HasField("money_per_session") else defaults.money,
        ),
        withhold=message.withhold,
        audit_share=message.audit_share if message.HasField("audit_share") else 0.02,
        expiry_seconds=message.expiry_seconds if message.HasField("expiry_seconds") else 120.0,
        trusted_values=tuple(message.trusted_values),
    )


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of an installation, in order, and its models."""

    items: tuple[Policy, ...]
    models: tuple[Model, ...] = ()

    def choose(self, tenant: str, agent: str) -> Policy:
        """The first policy that is meant for this agent; where there is none, one that switches everything off."""
        for policy in self.items:
            if policy.fits(tenant, agent):
                return policy
        return policy_of(NO_POLICY)


def policies_of(message: policy_pb2.PolicyFile) -> Policies:
    """The policies of a file's message, those of higher priority first, and its models.

    Raises:
        PolicyError: one of them contradicts itself.
    """
    models, found = models_of(message.models)
    if found:
        raise PolicyError("the models cannot be used:\n  " + "\n  ".join(found))
    return Policies(tuple(policy_of(one) for one in sorted(message.policies, key=lambda one: -one.priority)), models)


def read_policy_file(path: Path) -> policy_pb2.PolicyFile:
    """Reads a YAML file of the contract's PolicyFile, in protobuf's JSON mapping (either spelling of field names).

    Raises:
        PolicyError: it cannot be read (`DEPENDENCY_MISSING`), or holds an unknown field or a wrong value.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PolicyError(
            f"the policy file {path} cannot be read: {error.strerror}", ErrorReason.DEPENDENCY_MISSING
        ) from error
    if len(raw) > _MAX_FILE_BYTES:
        raise PolicyError(f"the policy file {path} has {len(raw)} bytes; at most {_MAX_FILE_BYTES} are read")
    return parse_policy(raw.decode("utf-8", "replace"), str(path))


def parse_policy(text: str, where: str) -> policy_pb2.PolicyFile:
    """Parses the text of a policy file; `where` names it in errors.

    Raises:
        PolicyError: see `read_policy_file`.
    """
    try:
        document = yaml.load(text, Loader=_SafeLoader)
    except yaml.YAMLError as error:
        raise PolicyError(f"{where} is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise PolicyError(f"{where} must be a mapping with `policies` and `servers`")
    try:
        return json_format.ParseDict(document, policy_pb2.PolicyFile(), max_recursion_depth=32)
    except json_format.ParseError as error:
        raise PolicyError(f"{where}: {error}") from error


_EFFECT_MESSAGES = {
    Effect.PURE: policy_pb2.EFFECT_PURE,
    Effect.READ: policy_pb2.EFFECT_READ,
    Effect.WRITE: policy_pb2.EFFECT_WRITE,
}


def contract_message(contract: Contract) -> policy_pb2.EffectContract:
    """The message of a contract, with every default written out."""
    message = policy_pb2.EffectContract(
        tool=contract.tool,
        effect=_EFFECT_MESSAGES[contract.effect] if contract.known else policy_pb2.EFFECT_UNSPECIFIED,
        reads=_resource_messages(contract.reads),
        writes=_resource_messages(contract.writes),
        consuming=contract.consuming,
        metered=contract.metered,
        idempotent=contract.idempotent,
        staged=contract.staged,
        transactional=contract.transactional,
        compensated_by=contract.compensated_by or "",
        open_world=contract.open_world,
        untrusted_output=contract.untrusted_output,
        timeout_seconds=contract.timeout_seconds,
        concurrency=contract.concurrency,
        insensitive_fields=sorted(contract.insensitive_fields),
        nfc_fields=sorted(contract.nfc_fields),
        speculate=contract.speculate,
        read_when={name: policy_pb2.StringValues(values=values) for name, values in contract.read_when.items()},
        shell_argument=contract.shell_argument or "",
        cost_money=contract.cost_money,
    )
    if contract.max_staleness_seconds is not None:
        message.max_staleness_seconds = contract.max_staleness_seconds
    if contract.race is not None:
        message.race.after_quantile = contract.race.after_quantile
        message.race.most_extra = contract.race.most_extra
    if contract.output_cap_bytes is not None:
        message.output_cap_bytes = contract.output_cap_bytes
    return message


def _resource_messages(templates: Iterable[ResourceTemplate]) -> list[policy_pb2.Resource]:
    scopes = {Scope.SESSION: policy_pb2.RESOURCE_SCOPE_SESSION, Scope.SHARED: policy_pb2.RESOURCE_SCOPE_SHARED}
    return [policy_pb2.Resource(template=one.text, scope=scopes[one.scope]) for one in templates]
