"""Which policies and tool servers the services get: every valid one, and of a broken one what was valid before.

`Publisher.plan` looks at all objects and at all that is published and says what has to change. It may be called at any
time and as often as one likes: what it needs is in its arguments, so an operator that was away, or another leader,
comes to the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from forerun.operator.crds.kinds import POLICY, TOOL_SERVER, Kind
from forerun.operator.engine.conditions import Condition, Reason, Status, Type
from forerun.runtime.errors import ForerunError
from forerun.runtime.policy import policy_of
from forerun.runtime.tool_servers import check_server, tool_names
from forerun.runtime.topology import POLICIES, TOPOLOGY
from forerun.v1 import policy_pb2

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural of the kind, namespace, name: joined by `/` the key in the store."""

_MOST_BYTES: Final = TOPOLOGY.bucket(POLICIES).max_value_bytes
_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class Published:
    """What the services have of one object.

    Attributes:
        version: The generation, and a digest of the content.
        generation: The generation alone; None where the version does not say.
    """

    version: str
    generation: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one object.

    Attributes:
        conditions: What holds.
        published: What the services have once the plan has been carried out; None for nothing.
    """

    conditions: tuple[Condition, ...]
    published: Published | None


@dataclass(slots=True)
class Plan:
    """What has to change in the store, in this order: first deletions, then writes."""

    deletions: list[str] = field(default_factory=list)
    writes: list[tuple[str, bytes]] = field(default_factory=list)
    verdicts: dict[Key, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An object, read.

    Attributes:
        content: What would be published; None where it cannot be used.
        names: Names of tools that it takes.
        fault: Why it cannot be used.
    """

    version: str
    content: bytes | None
    names: frozenset[str] = frozenset()
    fault: tuple[Reason, str] | None = None


def store_key(key: Key) -> str:
    """The key in the store."""
    return "/".join(key)


def object_key(stored: str) -> Key | None:
    """The object that a key of the store belongs to; None for keys that others have written."""
    parts = stored.split("/")
    if len(parts) == 3 and parts[0] in (POLICY.plural, TOOL_SERVER.plural):
        return parts[0], parts[1], parts[2]
    return None


class Publisher:
    """Makes plans. Remembers what it has read, by generation, so that a look at unchanged objects costs nothing."""

    def __init__(self) -> None:
        self._read: dict[Key, tuple[str, int, bool, _Candidate]] = {}

    def plan(
        self,
        objects: Mapping[Kind, Sequence[Object]],
        stored: Mapping[str, bytes],
        *,
        outdated: Mapping[Kind, Sequence[str]],
        owns: Iterable[str] | None,
    ) -> Plan:
        """What has to change.

        Args:
            objects: All objects of each kind that is known completely; a kind that is not there stays as it is.
            stored: All that is published, by key.
            outdated: Fields that the cluster's definition of a kind lacks.
            owns: Namespaces that are looked after; None for all.
        """
        plan = Plan()
        namespaces = None if owns is None else frozenset(owns)
        for kind, found in objects.items():
            ordered = sorted(found, key=_age)
            keys = {_key(kind, one) for one in ordered}
            mine = {
                text: key
                for text in stored
                if (key := object_key(text)) is not None
                and key[0] == kind.plural
                and (namespaces is None or key[1] in namespaces)
            }
            plan.deletions += sorted(text for text, key in mine.items() if key not in keys)
            for gone in [key for key in self._read if key[0] == kind.plural and key not in keys]:
                del self._read[gone]
            self._kind(plan, kind, ordered, stored, tuple(outdated.get(kind, ())))
        return plan

    def _kind(
        self, plan: Plan, kind: Kind, ordered: list[Object], stored: Mapping[str, bytes], outdated: tuple[str, ...]
    ) -> None:
        claims = _Claims(kind, [_key(kind, one) for one in ordered], stored)
        for one in ordered:
            key = _key(kind, one)
            candidate = self._candidate(kind, key, one, outdated=bool(outdated))
            text = store_key(key)
            present = stored.get(text)
            fault = candidate.fault or claims.refuse(key, candidate.names)
            if outdated and candidate.content is not None:
                missing = f"the cluster's definition lacks {', '.join(outdated[:5])}"
                fault = (Reason.DEFINITION_TOO_OLD, missing)
            usable = candidate.content is not None and (fault is None or fault[0] is Reason.DEFINITION_TOO_OLD)
            if outdated and kind is TOOL_SERVER:
                usable = False
            if usable and candidate.content is not None:
                claims.take(key, candidate.names)
                if present != candidate.content:
                    plan.writes.append((text, candidate.content))
                published: Published | None = Published(candidate.version, int(one["metadata"]["generation"]))
            else:
                published = _earlier(present, one)
            plan.verdicts[key] = Verdict(_conditions(fault, published, one), published)

    def _candidate(self, kind: Kind, key: Key, one: Object, *, outdated: bool) -> _Candidate:
        metadata = one["metadata"]
        identity = (str(metadata["uid"]), int(metadata["generation"]), outdated)
        known = self._read.get(key)
        if known is not None and known[:3] == identity:
            return known[3]
        candidate = _read(kind, key[2], one, outdated=outdated)
        self._read[key] = (*identity, candidate)
        return candidate


class _Claims:
    """Who has which name: what is published already comes first, then the older object.

    Args:
        kind: Of the objects.
        alive: The objects that exist; what others have published is about to be deleted.
        stored: What is published.
    """

    def __init__(self, kind: Kind, alive: list[Key], stored: Mapping[str, bytes]) -> None:
        self._kind = kind
        self._objects: dict[str, Key] = {}
        self._tools: dict[str, Key] = {}
        for key in alive:
            present = stored.get(store_key(key))
            if present is not None:
                self.take(key, _names_of(present))

    def refuse(self, key: Key, names: frozenset[str]) -> tuple[Reason, str] | None:
        """Why an object may not have its names; None where it may."""
        other = self._objects.get(key[2], key)
        if other != key:
            return Reason.NAME_TAKEN, f"{self._kind.name} {other[1]}/{other[2]} has this name already"
        for name in sorted(names):
            other = self._tools.get(name, key)
            if other != key:
                return Reason.TOOL_TAKEN, f"{self._kind.name} {other[1]}/{other[2]} serves a tool {name!r} already"
        return None

    def take(self, key: Key, names: frozenset[str]) -> None:
        """Gives an object its names, and takes back those that it had before."""
        self._objects.setdefault(key[2], key)
        self._tools = {name: owner for name, owner in self._tools.items() if owner != key}
        for name in names:
            self._tools.setdefault(name, key)


def _read(kind: Kind, name: str, one: Object, *, outdated: bool) -> _Candidate:
    message: policy_pb2.SpeculationPolicy | policy_pb2.ToolServer
    file = policy_pb2.PolicyFile()
    message = file.policies.add() if kind is POLICY else file.servers.add()
    try:
        json_format.ParseDict(one["spec"], message, max_recursion_depth=_DEPTH)
        message.name = name
        if isinstance(message, policy_pb2.SpeculationPolicy):
            message.off = message.off or outdated
            message.version = version = _version(one, message)
            policy_of(message)
        else:
            version = _version(one, message)
            check_server(message)
    except json_format.ParseError as error:
        return _Candidate("", None, fault=(Reason.INVALID, str(error)))
    except ForerunError as error:
        return _Candidate("", None, fault=(Reason.INVALID, error.message))
    names = frozenset() if isinstance(message, policy_pb2.SpeculationPolicy) else frozenset(tool_names(message))
    content = file.SerializeToString(deterministic=True)
    if len(content) > _MOST_BYTES:
        return _Candidate(
            "", None, fault=(Reason.TOO_LARGE, f"{len(content)} bytes, at most {_MOST_BYTES} can be published")
        )
    return _Candidate(version, content, names)


def _version(one: Object, message: Message) -> str:
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
    return f"{one['metadata']['generation']}-{digest[:12]}"


def _names_of(content: bytes) -> frozenset[str]:
    try:
        servers = policy_pb2.PolicyFile.FromString(content).servers
    except DecodeError:
        return frozenset()
    return frozenset(name for server in servers for name in tool_names(server))


def _earlier(present: bytes | None, one: Object) -> Published | None:
    """What stays in force of an object that cannot be used: what its own status says of it, if it says anything."""
    if present is None:
        return None
    status = one.get("status", {})
    generation = status.get("publishedGeneration")
    return Published(str(status.get("publishedVersion", "")), int(generation) if isinstance(generation, int) else None)


def _conditions(fault: tuple[Reason, str] | None, published: Published | None, one: Object) -> tuple[Condition, ...]:
    generation = int(one["metadata"]["generation"])
    if fault is None:
        return (
            Condition(Type.READY, Status.TRUE, Reason.IN_FORCE, f"the services use generation {generation}"),
            Condition(Type.VALID, Status.TRUE, Reason.ACCEPTED, "it can be used"),
            Condition(Type.PUBLISHED, Status.TRUE, Reason.IN_FORCE, f"the services use generation {generation}"),
        )
    reason, message = fault
    if published is None:
        found = Condition(Type.PUBLISHED, Status.FALSE, Reason.NOT_PUBLISHED, "the services have no version of it")
    elif published.generation == generation:
        found = Condition(Type.PUBLISHED, Status.TRUE, Reason.IN_FORCE, "the services use it, switched off")
    else:
        which = "an earlier generation" if published.generation is None else f"generation {published.generation}"
        found = Condition(Type.PUBLISHED, Status.TRUE, Reason.EARLIER_VERSION, f"the services go on with {which}")
    return (
        Condition(Type.READY, Status.FALSE, reason, message),
        Condition(Type.VALID, Status.FALSE, reason, message),
        found,
    )


def unpublished(verdict: Verdict, reason: Reason, message: str) -> Verdict:
    """The verdict where the plan could not be carried out."""
    doubtful = Condition(Type.PUBLISHED, Status.UNKNOWN, reason, message)
    ready = Condition(Type.READY, Status.FALSE, reason, message)
    kept = [one for one in verdict.conditions if one.type is Type.VALID]
    return replace(verdict, conditions=(ready, *kept, doubtful))


def _key(kind: Kind, one: Object) -> Key:
    return kind.plural, one["metadata"]["namespace"], one["metadata"]["name"]


def _age(one: Object) -> tuple[str, str, str]:
    metadata = one["metadata"]
    return str(metadata.get("creationTimestamp", "")), metadata["namespace"], metadata["name"]
