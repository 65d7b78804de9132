"""From a message of the contract to the OpenAPI schema of a custom resource, by protobuf's JSON mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from forerun.operator.crds.rules import ANY_LIST, ANY_NUMBER, ANY_STRING, FIELDS, MESSAGES, NAMED_ELSEWHERE, Rule

Schema = dict[str, Any]
"""A JSON schema as Kubernetes takes it."""

Comments = Mapping[str, str]
"""Comment of a message or field, by `Message` or `Message.field`."""

_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "int64",  # Kubernetes has no unsigned ones
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "int64",
}


def schema_of(message: Descriptor, comments: Comments) -> Schema:
    """The schema of a message.

    Args:
        message: Its descriptor.
        comments: Become descriptions.
    """
    rule = MESSAGES.get(message.name, Rule())
    properties = {
        field.json_name: _field(field, comments)
        for field in sorted(message.fields, key=lambda field: field.number)
        if f"{message.name}.{field.name}" not in NAMED_ELSEWHERE
    }
    schema: Schema = {"type": "object", "properties": properties}
    if message.name in comments:
        schema["description"] = comments[message.name]
    if rule.required:
        schema["required"] = [message.fields_by_name[name].json_name for name in rule.required]
    _add_cel(schema, rule)
    return schema


def _field(field: FieldDescriptor, comments: Comments) -> Schema:
    name = _name(field)
    rule = FIELDS.get(name, Rule())
    if (entry := _map_entry(field)) is not None:
        value = entry.fields_by_name["value"]
        schema: Schema = {
            "type": "object",
            "maxProperties": rule.most_items or ANY_LIST.most_items,
            "additionalProperties": _one(value, rule, comments),
        }
    elif field.is_repeated:
        schema = {
            "type": "array",
            "maxItems": rule.most_items or ANY_LIST.most_items,
            "items": _one(field, rule, comments),
        }
        if rule.keys:
            schema["x-kubernetes-list-type"] = "map"
            schema["x-kubernetes-list-map-keys"] = list(rule.keys)
        else:
            schema["x-kubernetes-list-type"] = "atomic"
    else:
        schema = _one(field, rule, comments)
    if name in comments:
        schema["description"] = comments[name]
    if rule.default is not None:
        schema["default"] = rule.default
    _add_cel(schema, rule)
    return dict(sorted(schema.items()))


def _one(field: FieldDescriptor, rule: Rule, comments: Comments) -> Schema:
    """The schema of one value of a field."""
    if field.message_type is not None:
        return schema_of(field.message_type, comments)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values if value.number != 0]}
    if field.type == FieldDescriptor.TYPE_STRING:
        return _string(rule)
    return _number(field, rule)


def _string(rule: Rule) -> Schema:
    schema: Schema = {"type": "string"}
    if rule.choices:
        schema["enum"] = list(rule.choices)
        return schema
    schema["maxLength"] = rule.most_length or ANY_STRING.most_length
    if rule.least_length is not None:
        schema["minLength"] = rule.least_length
    if rule.pattern is not None:
        schema["pattern"] = rule.pattern
    return schema


def _number(field: FieldDescriptor, rule: Rule) -> Schema:
    if field.type in _INTEGERS:
        schema: Schema = {"type": "integer", "format": _INTEGERS[field.type]}
    else:
        schema = {"type": "number", "format": "double"}
    for side, least in (("minimum", True), ("maximum", False)):
        own = rule.minimum if least else rule.maximum
        schema[side] = own if own is not None else getattr(ANY_NUMBER, side)
    if rule.above:
        schema["exclusiveMinimum"] = True
    if rule.below:
        schema["exclusiveMaximum"] = True
    if schema["type"] == "integer":
        schema["minimum"], schema["maximum"] = int(schema["minimum"]), int(schema["maximum"])
    return schema


def _add_cel(schema: Schema, rule: Rule) -> None:
    if rule.cel:
        schema["x-kubernetes-validations"] = [{"rule": one.rule, "message": one.message} for one in rule.cel]


def _name(field: FieldDescriptor) -> str:
    message = field.containing_type
    return f"{message.name if message is not None else ''}.{field.name}"


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """The message of a map's entries; None for what is no map."""
    message = field.message_type
    return message if message is not None and message.GetOptions().map_entry else None
