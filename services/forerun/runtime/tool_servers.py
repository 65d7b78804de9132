"""Whether a tool server of a policy can be used: the rules that the worker and the operator share."""

from __future__ import annotations

import json
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError as InvalidSchema
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from forerun.core import limits
from forerun.core.canonical import CanonicalError
from forerun.core.schema import digest_of
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.v1 import policy_pb2

UNRESOLVABLE: Final = (Unresolvable, RecursionError)
"""What judging by a schema raises where that refers to what is not in it, or to itself for ever."""


def check_server(message: policy_pb2.ToolServer) -> None:
    """Looks at one server by itself; names that two servers share are a matter of all of them.

    Raises:
        InvalidArgument: The server or one of its tools is wrong; the message names it.
    """
    if not message.name:
        raise _wrong("a tool server has no name")
    mcp = message.mcp if message.HasField("mcp") else None
    if mcp is not None and bool(mcp.command) == bool(mcp.url):
        raise _wrong(f"the MCP server {message.name} needs either a command or a url")
    for spec in message.tools:
        _check_tool(message, spec)


def tool_names(message: policy_pb2.ToolServer) -> set[str]:
    """The names that a server takes for its tools; those that an MCP server lists itself begin with its own name."""
    return {spec.name for spec in message.tools}


def checked_schema(name: str, input_schema: str) -> Any:
    """The schema of a tool's arguments, parsed.

    Raises:
        InvalidArgument: It is no JSON Schema of a size that is taken.
    """
    try:
        digest_of(input_schema.encode(), "")
        schema: Any = json.loads(input_schema)
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except (CanonicalError, InvalidSchema) as error:
        raise InvalidArgument(
            ErrorReason.POLICY_INVALID,
            f"the input schema of {name} is no JSON Schema of at most {limits.SCHEMA_BYTES} bytes (SCHEMA_BYTES)",
            metadata={"tool": name},
        ) from error
    return schema


def validator_of(schema: Any) -> Validator:
    """Judges arguments by a schema. Fetches nothing that it refers to, for schemas come from outside.

    Its `validate` raises `UNRESOLVABLE` where the schema refers to what is not in it.
    """
    return validator_for(schema, default=Draft202012Validator)(schema, registry=EMPTY_REGISTRY)


def _check_tool(server: policy_pb2.ToolServer, spec: policy_pb2.ToolSpec) -> None:
    endpoint = spec.WhichOneof("endpoint")
    if server.HasField("mcp"):
        if endpoint is not None:
            raise _wrong(f"{spec.name} belongs to an MCP server and has an endpoint of its own")
        return
    if endpoint is None:
        raise _wrong(f"{spec.name} of {server.name} has no endpoint")
    if endpoint == "command" and not spec.command.argv:
        raise _wrong(f"the command of {spec.name} is empty")
    if spec.input_schema:
        checked_schema(spec.name, spec.input_schema)


def _wrong(what: str) -> InvalidArgument:
    return InvalidArgument(ErrorReason.POLICY_INVALID, what)
