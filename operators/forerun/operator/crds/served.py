"""Whether the cluster's custom resource definitions are as new as this operator.

An older definition drops fields that it does not know, without a word; where such a field is a limit, the limit is
gone. What the cluster serves can be read by everybody, also by accounts that may not read the definitions themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.operator.crds.kinds import GROUP, KINDS, VERSION, Kind, definition, field_paths


def missing_fields(openapi: Mapping[str, Any]) -> dict[Kind, tuple[str, ...]]:
    """Fields of each kind's `spec` that this operator knows and the cluster drops; empty where there are none.

    Args:
        openapi: The OpenAPI document of our group and version, as the API server gives it. A kind that is not in it
            is not there at all, and is left out.
    """
    served = {}
    for schema in openapi.get("components", {}).get("schemas", {}).values():
        for one in schema.get("x-kubernetes-group-version-kind", ()):
            if (one.get("group"), one.get("version")) == (GROUP, VERSION):
                served[one.get("kind")] = schema
    found = {}
    for kind in KINDS:
        if kind.name in served:
            known = set(field_paths(_spec(served[kind.name]), "spec"))
            lacking = [path for path in _expected(kind) if path not in known]
            found[kind] = tuple(lacking)
    return found


def _expected(kind: Kind) -> list[str]:
    version = definition(kind, {})["spec"]["versions"][0]
    return list(field_paths(_spec(version["schema"]["openAPIV3Schema"]), "spec"))


def _spec(schema: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = schema.get("properties", {}).get("spec", {})
    return spec
