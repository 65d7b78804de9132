"""The custom resource definitions: everything is bounded, and what they allow is what the services take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format

from forerun.operator.crds.kinds import KINDS, POLICY, POOL, TOOL_SERVER, Kind, definition, field_paths
from forerun.operator.crds.rules import FIELDS, MESSAGES, NAMED_ELSEWHERE
from forerun.runtime.policy import policy_of
from forerun.v1 import capacity_pb2, policy_pb2

Schema = dict[str, Any]


def spec_of(kind: Kind) -> Schema:
    version = definition(kind, {})["spec"]["versions"][0]
    schema: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def nodes(schema: Schema, path: str = "spec") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from nodes(schema[part], f"{path}[]")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_everything_that_can_grow_has_a_bound(kind: Kind) -> None:
    for path, schema in nodes(spec_of(kind)):
        match schema["type"]:
            case "string":
                assert "maxLength" in schema or "enum" in schema, path
            case "integer" | "number":
                assert {"minimum", "maximum"} <= schema.keys(), path
            case "array":
                assert "maxItems" in schema, path
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, path


def defaults(schema: Schema) -> Any:
    """What the API server makes of an absent value."""
    if "default" not in schema and "properties" not in schema:
        return None
    value = schema.get("default", {})
    if not isinstance(value, dict):
        return value
    filled = {name: defaults(inner) for name, inner in schema["properties"].items() if "default" in inner}
    return {**filled, **value}


def test_defaults_are_what_an_absent_field_means_to_the_services() -> None:
    written = json_format.ParseDict(defaults(spec_of(POLICY)), policy_pb2.SpeculationPolicy(name="p", version="1"))
    budget = json_format.ParseDict(
        defaults({**spec_of(POLICY)["properties"]["budget"], "default": {}}), policy_pb2.Budget()
    )
    written.budget.CopyFrom(budget)
    silent = policy_of(policy_pb2.SpeculationPolicy(name="p", version="1"))
    loud = policy_of(written)
    assert (loud.mode, loud.concurrent, loud.hold_out) == (silent.mode, silent.concurrent, silent.hold_out)
    assert loud.session.limits == silent.session.limits
    assert loud.session.prices == silent.session.prices
    assert (loud.session.audit_share, loud.session.expiry_seconds) == (
        silent.session.audit_share,
        silent.session.expiry_seconds,
    )


def test_every_rule_is_of_a_field_that_exists() -> None:
    known: set[str] = set()
    messages: set[str] = set()
    for file in (policy_pb2.DESCRIPTOR, capacity_pb2.DESCRIPTOR):
        for name, message in file.message_types_by_name.items():
            messages.add(name)
            known |= {f"{name}.{field.name}" for field in message.fields}
    assert FIELDS.keys() <= known
    assert known >= NAMED_ELSEWHERE
    assert MESSAGES.keys() <= messages


def test_names_and_versions_are_not_written_twice() -> None:
    assert "name" not in spec_of(POLICY)["properties"]
    assert "version" not in spec_of(POLICY)["properties"]
    assert "name" not in spec_of(TOOL_SERVER)["properties"]


def test_entries_of_lists_are_told_apart_by_name() -> None:
    tools = spec_of(POLICY)["properties"]["tools"]
    assert tools["x-kubernetes-list-map-keys"] == ["tool"]
    assert "tool" in tools["items"]["required"]


def test_only_the_pool_has_a_size_and_nobody_defaults_it() -> None:
    scaled = [kind for kind in KINDS if "scale" in definition(kind, {})["spec"]["versions"][0]["subresources"]]
    assert scaled == [POOL]
    assert "default" not in spec_of(POOL)["properties"]["replicas"]


def test_paths_name_every_field() -> None:
    paths = set(field_paths(spec_of(POLICY), "spec"))
    assert {"spec.budget", "spec.budget.concurrent", "spec.tools[].reads[].template"} <= paths
