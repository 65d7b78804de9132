"""Which credentials an installation has, and which of them are still to be made. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forerun.cli.credentials.certificates import Pair, Purpose, is_good, issue, new_authority
from forerun.runtime.auth import Role, token_digest
from forerun.runtime.ids import Ids
from forerun.runtime.tls import CA_CERTIFICATE, CERTIFICATE, KEY
from forerun.runtime.topology import TOPOLOGY

_TOKEN_BYTES: Final = 32
_PASSWORD_BYTES: Final = 24
_WORKER_NAMES: Final = ("forerun-worker",)

TOKEN: Final = "token"
CA_KEY: Final = "ca.key"
TOKENS_FILE: Final = "tokens.json"

BROKER: Final = "nats"
INTERNAL: Final = "internal"
CLIENT: Final = "client"
TOKENS: Final = "tokens"
AUTHORITY: Final = "ca"
TLS: Final = "tls"
RUNNERS: Final = "runners"
RUNNER_CLIENT: Final = "runner-client"
SECRETS: Final = (BROKER, INTERNAL, CLIENT, TOKENS, AUTHORITY, TLS, RUNNERS, RUNNER_CLIENT)
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
    _add_runners(there, added, serving.now)
    return {name: content for name, content in added.items() if content}


def _add_runners(there: Mapping[str, Content], added: dict[str, dict[str, bytes]], now: datetime) -> None:
    """What runners and workers know each other by: an authority of their own, which nothing else trusts."""
    authority, added[RUNNERS] = _authority(there[RUNNERS], now, "forerun-runners-ca")
    mine = there[RUNNER_CLIENT].get(CERTIFICATE, b"")
    if KEY in there[RUNNER_CLIENT] and is_good(mine, authority.certificate, _WORKER_NAMES, now):
        added[RUNNER_CLIENT] = {}
        return
    pair = issue(authority, _WORKER_NAMES, now, purposes=(Purpose.CLIENT,))
    added[RUNNER_CLIENT] = {CA_CERTIFICATE: authority.certificate, CERTIFICATE: pair.certificate, KEY: pair.key}


def _authority(kept: Content, now: datetime, name: str) -> tuple[Pair, dict[str, bytes]]:
    """An authority, and what has to be added to its Secret."""
    if CA_CERTIFICATE in kept and CA_KEY in kept:
        return Pair(kept[CA_CERTIFICATE], kept[CA_KEY]), {}
    made = new_authority(now, name)
    return made, {CA_CERTIFICATE: made.certificate, CA_KEY: made.key}


def _add_certificates(there: Mapping[str, Content], added: dict[str, dict[str, bytes]], serving: Serving) -> None:
    authority, added[AUTHORITY] = _authority(there[AUTHORITY], serving.now, "forerun-ca")
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
