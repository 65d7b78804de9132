"""When two calls are the same call.

A result may answer a call only when every field of the identity is equal: who asks, with which rights, for which tool
in which version, with which arguments, seen from which workspace. The provider's call id is no part of it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

from forerun.core.canonical import JsonValue, canonical
from forerun.core.schema import ToolSchema


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an action. Equality of this value is the only test of sameness.

    Attributes:
        tenant: Who pays and is isolated.
        tool: Name of the tool, with its server where names are not unique.
        version: Digest of the tool's schema and endpoint version.
        arguments: Canonical arguments, for comparison only. Never executed.
        principal: On whose behalf the agent acts.
        credential_scope: Digest of what the tool would see as the caller's rights.
        workspace: The workspace that the call sees; empty where it sees none.
    """

    tenant: str
    tool: str
    version: str
    arguments: bytes
    principal: str
    credential_scope: str
    workspace: str

    def digest(self) -> str:
        """A short name of this identity for logs and ledger lines. Content cannot be read back from it."""
        state = hashlib.sha256()
        texts = (self.tenant, self.tool, self.version, self.principal, self.credential_scope, self.workspace)
        for part in (*(text.encode("utf-8") for text in texts), self.arguments):
            state.update(len(part).to_bytes(8, "big"))
            state.update(part)
        return state.hexdigest()


def identity_of(
    *,
    tenant: str,
    tool: str,
    version: str,
    arguments: JsonValue,
    principal: str,
    credential_scope: str,
    workspace: str,
    schema: ToolSchema | None = None,
    insensitive_fields: frozenset[str] = frozenset(),
    nfc_fields: frozenset[str] = frozenset(),
) -> Identity:
    """Builds the identity of a call from its parsed arguments.

    Args:
        tenant: See `Identity`.
        tool: See `Identity`.
        version: See `Identity`.
        arguments: The arguments as sent, parsed.
        principal: See `Identity`.
        credential_scope: See `Identity`.
        workspace: See `Identity`.
        schema: The tool's input schema, for defaults and numbers.
        insensitive_fields: Fields that do not matter; dots lead into objects, lists are passed through.
        nfc_fields: Fields whose strings are compared in form NFC.

    Raises:
        CanonicalError: The arguments are no exact JSON value.
    """
    return Identity(
        tenant=tenant,
        tool=tool,
        version=version,
        arguments=canonical_arguments(
            arguments, schema=schema, insensitive_fields=insensitive_fields, nfc_fields=nfc_fields
        ),
        principal=principal,
        credential_scope=credential_scope,
        workspace=workspace,
    )


def canonical_arguments(
    arguments: JsonValue,
    *,
    schema: ToolSchema | None = None,
    insensitive_fields: frozenset[str] = frozenset(),
    nfc_fields: frozenset[str] = frozenset(),
) -> bytes:
    """The bytes by which two argument values are compared. The value itself is left as it is."""
    compared = arguments if schema is None else schema.normalised(arguments)
    if insensitive_fields or nfc_fields:
        compared = _adjusted(compared, "", insensitive_fields, nfc_fields)
    return canonical(compared)


def _adjusted(value: JsonValue, path: str | None, removed: frozenset[str], composed: frozenset[str]) -> JsonValue:
    """Applies the field rules. The path is None below a key that has a dot itself: no field name can mean it."""
    if isinstance(value, dict):
        result: dict[str, JsonValue] = {}
        for key, item in value.items():
            below = None if path is None or "." in key else f"{path}.{key}".removeprefix(".")
            if below not in removed:
                result[key] = _adjusted(item, below, removed, composed)
        return result
    if isinstance(value, list):
        return [_adjusted(item, path, removed, composed) for item in value]
    if isinstance(value, str) and path in composed:
        return unicodedata.normalize("NFC", value)
    return value
