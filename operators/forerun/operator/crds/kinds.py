"""The three kinds of custom resources, and their definitions as the API server takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor import Descriptor

from forerun.operator.crds.schema import Comments, Schema, schema_of
from forerun.v1 import capacity_pb2, policy_pb2

GROUP: Final = "forerun.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of custom resource.

    Attributes:
        name: In manifests.
        plural: In addresses.
        singular: On the command line.
        short: A short name there.
        message: What its `spec` is.
        columns: Of `kubectl get`, between name and age.
        status: Schemas of what its `status` holds beside conditions.
        scaled: It has the scale subresource.
    """

    name: str
    plural: str
    singular: str
    short: str
    message: Descriptor
    columns: tuple[Column, ...]
    status: dict[str, Schema]
    scaled: bool = False


def _condition_column(name: str, *, wide: bool = False) -> Column:
    return Column(name, f'.status.conditions[?(@.type=="{name}")].status', wide=wide)


_READY: Final = (
    _condition_column("Ready"),
    Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
)
_COUNT: Final[Schema] = {"type": "integer", "format": "int64", "minimum": 0, "maximum": 1_000_000_000}
_PUBLISHED_VERSION: Final[Schema] = {
    "type": "string",
    "maxLength": 128,
    "description": "Version that the services use: the generation that was published, and a digest of its content.",
}

POLICY: Final = Kind(
    name="SpeculationPolicy",
    plural="speculationpolicies",
    singular="speculationpolicy",
    short="specpol",
    message=policy_pb2.SpeculationPolicy.DESCRIPTOR,
    columns=(
        Column("Mode", ".spec.mode"),
        Column("Priority", ".spec.priority", "integer", wide=True),
        *_READY,
        Column("Version", ".status.publishedVersion"),
    ),
    status={
        "publishedVersion": _PUBLISHED_VERSION,
        "publishedGeneration": {
            **_COUNT,
            "description": "Generation that the services use; below the object's own while that is invalid.",
        },
    },
)
TOOL_SERVER: Final = Kind(
    name="ToolServer",
    plural="toolservers",
    singular="toolserver",
    short="toolsrv",
    message=policy_pb2.ToolServer.DESCRIPTOR,
    columns=(*_READY, Column("Version", ".status.publishedVersion")),
    status=POLICY.status,
)
POOL: Final = Kind(
    name="SpeculationPool",
    plural="speculationpools",
    singular="speculationpool",
    short="specpool",
    message=capacity_pb2.SpeculationPool.DESCRIPTOR,
    columns=(
        Column("Target", ".spec.target.name", wide=True),
        Column("Min", ".spec.minReplicas", "integer"),
        Column("Max", ".spec.maxReplicas", "integer"),
        Column("Desired", ".status.desiredReplicas", "integer"),
        Column("Replicas", ".status.replicas", "integer"),
        Column("Speculative", ".status.speculativeSlots", "integer"),
        _condition_column("SignalKnown", wide=True),
        *_READY,
    ),
    status={
        "replicas": {**_COUNT, "description": "Replicas that the target has."},
        "readyReplicas": {**_COUNT, "description": "Those of them that are ready."},
        "desiredReplicas": {**_COUNT, "description": "Replicas that the operator asked the target to have."},
        "selector": {
            "type": "string",
            "maxLength": 4_096,
            "description": "Label selector of the target's pods, as a HorizontalPodAutoscaler needs it.",
        },
        "demand": {**_COUNT, "description": "Authoritative executions that run or wait, by the last reports."},
        "speculativeSlots": {**_COUNT, "description": "Slots that speculation has now, of all workers together."},
        "tokenDepth": {**_COUNT, "description": "Tokens that may be drafted at once now."},
    },
    scaled=True,
)
KINDS: Final = (POLICY, TOOL_SERVER, POOL)

_CONDITIONS: Final[Schema] = {
    "type": "array",
    "description": "What holds for this generation; docs/reference/conditions.md has all types and reasons.",
    "maxItems": 16,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "minLength": 1, "maxLength": 64},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z][A-Za-z0-9]*$"},
            "message": {"type": "string", "maxLength": 4_096},
        },
    },
}


def definition(kind: Kind, comments: Comments) -> Schema:
    """The CustomResourceDefinition of a kind."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _object_schema(kind, comments)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [*map(_printed, kind.columns), _printed(Column("Age", _CREATED, "date"))],
    }
    if kind.scaled:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short],
                "categories": ["forerun"],
            },
            "versions": [version],
        },
    }


_CREATED: Final = ".metadata.creationTimestamp"


def _object_schema(kind: Kind, comments: Comments) -> Schema:
    return {
        "type": "object",
        "description": comments.get(kind.message.name, ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(kind.message, comments),
            "status": {
                "type": "object",
                "description": "What the operator saw and did.",
                "properties": {
                    "observedGeneration": {
                        "type": "integer",
                        "format": "int64",
                        "minimum": 0,
                        "description": "Generation that the operator has looked at.",
                    },
                    **kind.status,
                    "conditions": _CONDITIONS,
                },
            },
        },
    }


def _printed(column: Column) -> Schema:
    printed: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.wide:
        printed["priority"] = 1
    return printed


def field_paths(schema: Schema, above: str = "") -> Iterator[str]:
    """Every field of a schema as a path, such as `spec.budget.concurrent`; entries of lists and maps as `[]`."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{above}.{name}" if above else name
        yield path
        yield from field_paths(inner, path)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from field_paths(schema[part], f"{above}[]")
