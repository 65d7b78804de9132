"""When two calls are the same call (cases A9, A12, K1), and what a schema adds."""

from __future__ import annotations

import dataclasses
import json

import pytest

from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.identity import Identity, canonical_arguments, identity_of
from forerun.core.schema import SchemaError, ToolSchema, digest_of, parse_schema

SCHEMA = parse_schema(
    json.dumps(
        {
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}, "n": {"type": "integer"}}}},
            "type": "object",
            "properties": {
                "q": {"type": "string"},
                "limit": {"type": "integer", "default": 10},
                "score": {"type": ["number", "null"]},
                "at": {"$ref": "#/$defs/point", "default": {"x": 1}},
                "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "loop": {"$ref": "#/properties/loop"},
            },
            "required": ["q"],
        }
    ).encode()
)


def parsed(text: str) -> JsonValue:
    return parse_strict(text.encode())


def same(one: str, other: str, schema: ToolSchema | None = None) -> bool:
    return canonical_arguments(parsed(one), schema=schema) == canonical_arguments(parsed(other), schema=schema)


def call(
    text: str = '{"q":"x"}',
    *,
    tenant: str = "acme",
    tool: str = "search",
    version: str = "v1",
    principal: str = "ada",
    credential_scope: str = "all",
    workspace: str = "w1",
) -> Identity:
    return identity_of(
        tenant=tenant,
        tool=tool,
        version=version,
        arguments=parsed(text),
        principal=principal,
        credential_scope=credential_scope,
        workspace=workspace,
    )


def test_key_order_does_not_matter_and_list_order_does() -> None:
    assert call('{"q":"x","f":{"b":1,"a":[{"z":1,"y":2}]}}') == call('{"f":{"a":[{"y":2,"z":1}],"b":1},"q":"x"}')
    assert call('{"a":[1,2]}') != call('{"a":[2,1]}')


@pytest.mark.parametrize("field", ["tenant", "tool", "version", "principal", "credential_scope", "workspace"])
def test_every_field_separates(field: str) -> None:
    mine, other = call(), call(**{field: "other"})
    assert mine != other
    assert mine.digest() != other.digest()


def test_digests_do_not_run_fields_together() -> None:
    assert call(tenant="ab", tool="c").digest() != call(tenant="a", tool="bc").digest()
    assert call().digest() == call('{ "q" : "x" }').digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":null}', "{}"),
        ('{"a":false}', '{"a":0}'),
        ('{"a":""}', '{"a":null}'),
        ('{"a":[]}', '{"a":{}}'),
        ('{"a":0}', '{"a":-0}'),
        ('{"e":"x²"}', '{"e":"x2"}'),
        ('{"p":"cr\u00e8me.md"}', '{"p":"cre\u0300me.md"}'),
    ],
)
def test_nothing_is_folded_without_a_schema(one: str, other: str) -> None:
    assert not same(one, other)


def test_numbers_are_equal_where_the_schema_says_number_and_only_there() -> None:
    assert same('{"q":"x","score":1}', '{"q":"x","score":1.0}', SCHEMA)
    assert same('{"q":"x","points":[{"x":2.50}]}', '{"q":"x","points":[{"x":25e-1}]}', SCHEMA)
    assert same('{"q":"x","points":[{"x":2}]}', '{"q":"x","points":[{"x":2.0}]}', SCHEMA)
    assert not same('{"q":"x","points":[{"n":2}]}', '{"q":"x","points":[{"n":2.0}]}', SCHEMA)
    assert not same('{"q":"x","either":1}', '{"q":"x","either":1.0}', SCHEMA)
    assert not same('{"q":"x","score":9007199254740993}', '{"q":"x","score":9007199254740992.0}', SCHEMA)


def test_declared_defaults_are_filled_in() -> None:
    assert same('{"q":"x"}', '{"q":"x","limit":10,"maybe":null,"at":{"x":1.0}}', SCHEMA)
    assert not same('{"q":"x"}', '{"q":"x","limit":11}', SCHEMA)
    assert not same('{"q":"x"}', '{"q":"x","score":null}', SCHEMA)  # nothing says that absent means null


def test_the_value_itself_is_left_alone() -> None:
    value = parsed('{"q":"cre\u0300me","points":[{"x":1}]}')
    canonical_arguments(value, schema=SCHEMA, nfc_fields=frozenset({"q"}), insensitive_fields=frozenset({"points"}))
    assert value == {"q": "cre\u0300me", "points": [{"x": 1}]}


def test_field_rules_apply_to_the_named_fields_only() -> None:
    def form(text: str) -> bytes:
        return canonical_arguments(
            parsed(text),
            nfc_fields=frozenset({"title", "tags.name"}),
            insensitive_fields=frozenset({"trace", "o.id"}),
        )

    assert form('{"title":"cr\u00e8me"}') == form('{"title":"cre\u0300me","trace":7}')
    assert form('{"tags":[{"name":"\u00e8"}]}') == form('{"tags":[{"name":"e\u0300"}]}')
    assert form('{"path":"cr\u00e8me"}') != form('{"path":"cre\u0300me"}')
    assert form('{"title":"x²"}') != form('{"title":"x2"}')
    assert form('{"o":{"id":1,"k":2}}') == form('{"o":{"k":2,"id":3}}')
    assert form('{"o.id":1}') != form('{"o.id":2}')  # a key with a dot is another field
    assert form('{"x":{"trace":1}}') != form('{"x":{"trace":2}}')


def test_references_that_lead_nowhere_say_nothing() -> None:
    assert not same('{"q":"x","loop":1}', '{"q":"x","loop":1.0}', SCHEMA)
    odd = parse_schema(b'{"properties":{"a":{"$ref":"https://x/y"},"b":{"$ref":"#/$defs/none"},"c":true}}')
    assert not same('{"a":1,"b":1,"c":1}', '{"a":1.0,"b":1,"c":1}', odd)


def test_required_and_declared_names() -> None:
    assert SCHEMA.required == ("q",)
    assert SCHEMA.missing({}) == ("q",)
    assert SCHEMA.missing({"q": None}) == ()
    assert SCHEMA.declares(("points", "x"))
    assert not SCHEMA.declares(("points", "secret"))


def test_a_schema_must_be_an_object() -> None:
    with pytest.raises(SchemaError) as caught:
        parse_schema(b"[1]")
    assert caught.value.reason == "not_a_schema"
    with pytest.raises(CanonicalError):
        parse_schema(b"{")
    assert parse_schema(b"true").required == ()


def test_the_version_of_a_tool_follows_schema_and_endpoint() -> None:
    version = digest_of(b'{"type":"object","required":["a"]}', "1")
    assert version.startswith("sha256:")
    assert version == digest_of(b'{ "required": ["a"], "type": "object" }', "1")
    assert version != digest_of(b'{"type":"object","required":["a"]}', "2")
    assert version != digest_of(b'{"type":"object"}', "1")


def test_identity_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        call().tenant = "other"  # type: ignore[misc]  # that is the point
