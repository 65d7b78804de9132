"""The tools that a worker serves: where they live, what arguments they take, and which version they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.schema import digest_of
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.tool_servers import UNRESOLVABLE, checked_schema, validator_of
from forerun.sandbox.fitting import Fits, certainly_fits
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.limits import CommandLimits

ANY_OBJECT: Final = '{"type": "object"}'
_MESSAGE_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An HTTP call. Placeholders and headers as in the contract's `HttpEndpoint`."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    json_body: bool = False
    idempotency_header: str = ""
    alternatives: tuple[str, ...] = ()

    def address(self, provider: int) -> str:
        """The address of one of the equivalent providers; numbers beyond the last begin again."""
        return (self.url, *self.alternatives)[provider % (1 + len(self.alternatives))]


@dataclass(frozen=True, slots=True)
class PythonEndpoint:
    """A function `package.module:name`, called with the arguments as keywords."""

    entry_point: str


@dataclass(frozen=True, slots=True)
class CommandEndpoint:
    """A command in a sandbox. `{name}` in `argv` stands for that argument, `{session}` for the session.

    Where `cpu_follows_timeout` is set, CPU time has no limit of its own beside the time limit of the call.
    """

    argv: Sequence[str]
    stdin_argument: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: CommandLimits = field(default_factory=CommandLimits)
    cpu_follows_timeout: bool = True


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """A tool of a Model Context Protocol server, by the name that the server knows."""

    remote_name: str


Endpoint = HttpEndpoint | PythonEndpoint | CommandEndpoint | McpEndpoint


@dataclass(frozen=True, slots=True)
class McpServer:
    """How to reach a Model Context Protocol server: by `command` (stdio) or by `url` (streamable HTTP).

    One that is not `stateless` may keep state with its connection: each session has one of its own.
    """

    command: Sequence[str] = ()
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    stateless: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """Where tools live.

    Attributes:
        name: Its name.
        egress: Hosts and networks that its tools may connect to; empty allows those of its endpoints.
        min_isolation: Weakest level that its commands may run at.
        workspace_seed: Directory that a workspace starts with; empty starts with nothing.
        mcp: Set for a Model Context Protocol server.
    """

    name: str
    egress: tuple[str, ...] = ()
    min_isolation: LevelName = LevelName.PROCESS
    workspace_seed: str = ""
    mcp: McpServer | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What a server says of its own tool; None where it says nothing. They can only lower trust."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        name: Unique on the worker.
        server: Where it lives.
        endpoint: How it is called.
        description: For models.
        input_schema: JSON Schema of the arguments, as JSON text.
        version: Digest of schema and endpoint version.
        hints: The server's own hints.
        validator: Judges arguments.
        fits: Says of most that they fit, in less time.
    """

    name: str
    server: Server
    endpoint: Endpoint
    description: str
    input_schema: str
    version: str
    hints: Hints
    validator: Validator = field(compare=False, repr=False)
    fits: Fits | None = field(compare=False, repr=False)

    @property
    def uses_workspace(self) -> bool:
        """True where it works in the session's workspace."""
        return isinstance(self.endpoint, CommandEndpoint)

    @property
    def stateful(self) -> bool:
        """True where its server keeps state with the session's connection."""
        return self.server.mcp is not None and not self.server.mcp.stateless

    def checked(self, arguments: bytes) -> dict[str, JsonValue]:
        """The arguments, parsed and valid.

        Raises:
            InvalidArgument: They are no strict JSON object, or do not fit the schema.
        """
        try:
            parsed = parse_strict(arguments, max_bytes=limits.ARGUMENTS_BYTES)
        except CanonicalError as error:
            raise InvalidArgument(
                ErrorReason.ARGUMENTS_NOT_JSON, f"the arguments are not strict JSON ({error.reason})",
                metadata={"tool": self.name, "path": error.path},
            ) from None  # fmt: skip
        if not isinstance(parsed, dict):
            raise InvalidArgument(
                ErrorReason.ARGUMENTS_REFUSED, "the arguments must be a JSON object", metadata={"tool": self.name}
            )
        if self.fits is not None and self.fits(parsed):
            return parsed
        instance: Any = parsed  # the stubs know no Decimal
        try:
            fault = next(iter(sorted(self.validator.iter_errors(instance), key=lambda error: error.json_path)), None)
        except UNRESOLVABLE:
            return parsed  # the tool's own server knows what its schema refers to; nothing is fetched for it
        if fault is not None:
            raise InvalidArgument(
                ErrorReason.ARGUMENTS_REFUSED, f"the arguments do not fit the schema of {self.name}: {_said(fault)}",
                metadata={"tool": self.name, "path": fault.json_path, "rule": str(fault.validator)},
            )  # fmt: skip
        return parsed


def tool(
    name: str, server: Server, endpoint: Endpoint, *, description: str = "", input_schema: str = ANY_OBJECT,
    endpoint_version: str = "", hints: Hints = Hints(),
) -> Tool:  # fmt: skip
    """Makes a tool.

    Raises:
        InvalidArgument: The schema is no JSON Schema.
    """
    schema = checked_schema(name, input_schema)
    version = digest_of(input_schema.encode(), endpoint_version)
    return Tool(
        name, server, endpoint, description, input_schema, version, hints, validator_of(schema), certainly_fits(schema)
    )  # fmt: skip


def _said(fault: ValidationError) -> str:
    """What is wrong, without the values: messages reach logs."""
    rule = str(fault.validator)
    if rule in ("required", "dependentRequired", "additionalProperties"):
        return fault.message[:_MESSAGE_CHARS]  # names properties only
    return f"{fault.json_path} breaks the rule {rule}"
