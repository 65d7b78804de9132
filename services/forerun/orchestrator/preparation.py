"""From the bytes that an agent or a predictor sends to a prepared call, or the reason why it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.contracts import Contract, Scope, effective, in_place, lowered_by_hints
from forerun.core.identity import identity_of
from forerun.core.resources import footprint
from forerun.core.schema import SchemaError, ToolSchema, digest_of, parse_schema
from forerun.core.session import Failure, PreparedCall
from forerun.core.shell import DEFAULT_RULES
from forerun.runtime.policy import Policy
from forerun.v1 import sandbox_pb2, session_pb2

_WORKSPACE_ROOT = "/workspace"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the platform knows it.

    Attributes:
        name: Its name.
        server: Its server; empty for a tool of the client.
        version: Digest of schema and endpoint.
        schema: Its parsed schema, or None where it has none.
        schema_text: The schema as JSON text.
        description: For models.
        uses_workspace: It works in the session's workspace.
        in_client: The client executes it.
        stateful: Its server keeps state with the session's connection.
        hints: What its server says about it.
    """

    name: str
    server: str
    version: str
    schema: ToolSchema | None
    schema_text: str
    description: str = ""
    uses_workspace: bool = False
    in_client: bool = False
    stateful: bool = False
    hints: sandbox_pb2.ToolHints | None = None

    def contract(self, policy: Policy) -> Contract:
        """Its contract under a policy, with trust taken away by where it lives and what its server says."""
        contract = in_place(policy.contract(self.name, self.server), uses_workspace=self.uses_workspace)
        if self.hints is None:
            return contract
        return lowered_by_hints(
            contract,
            read_only_hint=self.hints.read_only if self.hints.HasField("read_only") else None,
            destructive_hint=self.hints.destructive if self.hints.HasField("destructive") else None,
            idempotent_hint=self.hints.idempotent if self.hints.HasField("idempotent") else None,
            open_world_hint=self.hints.open_world if self.hints.HasField("open_world") else None,
        )


def tool_of(message: sandbox_pb2.ToolDescription) -> Tool:
    """A tool of a worker."""
    return Tool(
        name=message.name,
        server=message.server,
        version=message.version,
        schema=_schema(message.input_schema),
        schema_text=message.input_schema,
        description=message.description,
        uses_workspace=message.uses_workspace,
        stateful=message.stateful,
        hints=message.hints if message.HasField("hints") else None,
    )


def client_tool_of(message: session_pb2.ClientTool) -> Tool:
    """A tool that lives in the client."""
    return Tool(
        name=message.name,
        server="",
        version=digest_of(message.input_schema.encode() or b"{}", "client"),
        schema=_schema(message.input_schema),
        schema_text=message.input_schema,
        in_client=True,
    )


def schemas_of(names: Iterable[str], tools: Mapping[str, Tool]) -> tuple[tuple[str, str], ...]:
    """Names and schemas of tools, in order, as many as fit below GUESS_SCHEMAS_BYTES."""
    found: list[tuple[str, str]] = []
    left = limits.GUESS_SCHEMAS_BYTES
    for name in names:
        tool = tools.get(name)
        if tool is None:
            continue
        text = tool.schema_text or "{}"
        size = len(name.encode()) + len(text.encode())
        if size <= left:
            left -= size
            found.append((name, text))
    return tuple(found)


def _schema(text: str) -> ToolSchema | None:
    if not text:
        return None
    try:
        return parse_schema(text.encode())
    except (SchemaError, CanonicalError):
        return None


@dataclass(frozen=True, slots=True)
class Preparation:
    """Prepares the calls of one session.

    Attributes:
        tenant: See `Identity`.
        principal: See `Identity`.
        credential_scope: See `Identity`.
        session: Also the name of the session's workspace.
    """

    tenant: str
    principal: str
    credential_scope: str
    session: str

    def prepare(self, tool: Tool | None, name: str, arguments: bytes, policy: Policy) -> PreparedCall | Failure:
        """A prepared call, or why it is refused. Nothing is repaired or guessed."""
        if tool is None:
            return Failure(
                "TOOL_NOT_FOUND",
                f"there is no tool {name[:100]!r}; `forerun policy check` lists the tools of a policy file",
                {"tool": name[: limits.NAME_CHARS]},
            )
        if len(arguments) > limits.ARGUMENTS_BYTES:
            return Failure(
                "MESSAGE_TOO_LARGE",
                f"arguments of {len(arguments)} bytes are above ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})",
                {"limit": "ARGUMENTS_BYTES", "limit_bytes": str(limits.ARGUMENTS_BYTES)},
            )
        try:
            value = parse_strict(arguments if arguments.strip() else b"{}")
        except CanonicalError as error:
            return Failure("ARGUMENTS_NOT_JSON", f"the arguments are no exact JSON: {error}", {"detail": error.reason})
        if not isinstance(value, dict):
            return Failure("ARGUMENTS_NOT_JSON", "the arguments must be a JSON object", {"detail": "not_an_object"})
        missing = tool.schema.missing(value) if tool.schema is not None else ()
        if missing:
            names = ", ".join(missing)
            return Failure("ARGUMENTS_REFUSED", f"required arguments are missing: {names}", {"fields": names})
        return self._prepared(tool, arguments, value, policy)

    def _prepared(self, tool: Tool, arguments: bytes, value: JsonValue, policy: Policy) -> PreparedCall:
        contract = effective(tool.contract(policy), value, DEFAULT_RULES)
        identity = identity_of(
            tenant=self.tenant,
            tool=tool.name,
            version=tool.version,
            arguments=value,
            principal=self.principal,
            credential_scope=self.credential_scope,
            workspace=self.session if tool.uses_workspace else "",
            schema=tool.schema,
            insensitive_fields=contract.insensitive_fields,
            nfc_fields=contract.nfc_fields,
        )
        return PreparedCall(
            tool=tool.name,
            version=tool.version,
            # What runs are the bytes that were sent; blank text means an empty object.
            arguments=arguments if arguments.strip() else b"{}",
            value=value,
            contract=contract,
            identity=identity,
            digest=identity.digest(),
            private=footprint(contract, value, scope=Scope.SESSION, workspace_root=_WORKSPACE_ROOT),
            shared=footprint(contract, value, scope=Scope.SHARED, workspace_root=_WORKSPACE_ROOT),
            schema=tool.schema,
            uses_workspace=tool.uses_workspace,
            in_client=tool.in_client,
            connection=tool.server if tool.stateful else "",
        )
