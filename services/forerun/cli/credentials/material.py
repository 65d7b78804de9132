"""Which credentials an installation has, and which of them are still to be made. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forerun.cli.credentials.certificates import Pair, is_good, issue, new_authority
from forerun.runtime.auth import Role, token_digest
from forerun.runtime.ids import Ids
from forerun.runtime.tls import CA_CERTIFICATE, CERTIFICATE, KEY
from forerun.runtime.topology import TOPOLOGY

_TOKEN_BYTES: Final = 32
_PASSWORD_BYTES: Final = 24

TOKEN: Final = "token"
CA_KEY: Final = "ca.key"
TOKENS_FILE: Final = "tokens.json"

BROKER: Final = "nats"
INTERNAL: Final = "internal"
CLIENT: Final = "client"
TOKENS: Final = "tokens"
AUTHORITY: Final = "ca"
TLS: Final = "tls"
SECRETS: Final = (BROKER, INTERNAL, CLIENT, TOKENS, AUTHORITY, TLS)
"""Last parts of the Secrets' names, in the order in which they are written."""

Content = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who the first client token belongs to.

    Attributes:
        tenant: Its tenant.
        principal: On whose behalf its agents act.
    """

    tenant: str
    principal: str


@dataclass(frozen=True, slots=True)
class Serving:
    """What the services' certificate is for.

    Attributes:
        names: DNS names and IP addresses that services and agents reach services by; empty makes no certificates.
        now: When it begins to be valid.
    """

    names: Sequence[str]
    now: datetime


def missing(existing: Mapping[str, Content], holder: Holder, ids: Ids, serving: Serving) -> dict[str, dict[str, bytes]]:
    """What has to be added to each Secret; empty when everything is there.

    What exists is not changed: services and agents use it. There are two exceptions. To the list of tokens the client's
    is added, and everybody else's entries in it stay as they are. The services' certificate is replaced when it runs
    out or its names are others; the authority stays, so that old and new ones trust each other.

    Args:
        existing: The content of the Secrets that there are, by the last part of their names.
        holder: Who a new client token is for.
        ids: Draws the secrets.
        serving: What the certificate is for.

    Raises:
        ValueError: the existing list of tokens is not one, or the existing authority is none.
    """
    there = {name: existing.get(name, {}) for name in SECRETS}
    added: dict[str, dict[str, bytes]] = {
        BROKER: {user.name: _draw(ids, _PASSWORD_BYTES) for user in TOPOLOGY.users if user.name not in there[BROKER]},
        INTERNAL: {} if TOKEN in there[INTERNAL] else {TOKEN: _draw(ids, _TOKEN_BYTES)},
        CLIENT: {} if TOKEN in there[CLIENT] else {TOKEN: _draw(ids, _TOKEN_BYTES)},
    }
    client = there[CLIENT].get(TOKEN) or added[CLIENT][TOKEN]
    tokens = _with_client(there[TOKENS].get(TOKENS_FILE), client.decode(), holder)
    added[TOKENS] = {TOKENS_FILE: tokens} if tokens is not None else {}
    if serving.names:
        _add_certificates(there, added, serving)
    return {name: content for name, content in added.items() if content}


def _add_certificates(there: Mapping[str, Content], added: dict[str, dict[str, bytes]], serving: Serving) -> None:
    kept = there[AUTHORITY]
    if CA_CERTIFICATE in kept and CA_KEY in kept:
        authority, added[AUTHORITY] = Pair(kept[CA_CERTIFICATE], kept[CA_KEY]), {}
    else:
        authority = new_authority(serving.now)
        added[AUTHORITY] = {CA_CERTIFICATE: authority.certificate, CA_KEY: authority.key}
    if there[CLIENT].get(CA_CERTIFICATE) != authority.certificate:
        added[CLIENT][CA_CERTIFICATE] = authority.certificate
    mine = there[TLS].get(CERTIFICATE, b"")
    if KEY not in there[TLS] or not is_good(mine, authority.certificate, serving.names, serving.now):
        pair = issue(authority, serving.names, serving.now)
        added[TLS] = {CA_CERTIFICATE: authority.certificate, CERTIFICATE: pair.certificate, KEY: pair.key}


def _draw(ids: Ids, size_bytes: int) -> bytes:
    return ids.token(size_bytes).encode()


def _with_client(document: bytes | None, token: str, holder: Holder) -> bytes | None:
    """The list of tokens with the client's in it; None when it is there already."""
    entries = [] if document is None else json.loads(document)["tokens"]
    digest = token_digest(token)
    if any(entry["sha256"].lower() == digest for entry in entries):
        return None
    mine = {
        "sha256": digest,
        "tenant": holder.tenant,
        "principal": holder.principal,
        "scope": "first",
        "role": Role.OPERATOR.value,
    }
    return json.dumps({"tokens": [*entries, mine]}, indent=2).encode()
