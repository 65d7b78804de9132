"""Credentials are made once; what exists stays."""

from __future__ import annotations

import json

import pytest

from forerun.cli.credentials.material import BROKER, CLIENT, INTERNAL, SECRETS, TOKENS, Content, Holder, missing
from forerun.runtime.auth import token_digest
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.topology import TOPOLOGY

HOLDER = Holder("default", "agents")
IDS = SystemIds(SystemClock())


def add(existing: dict[str, dict[str, bytes]], made: dict[str, dict[str, bytes]]) -> dict[str, Content]:
    return {name: {**existing.get(name, {}), **made.get(name, {})} for name in SECRETS}


def entries(content: Content) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(content["tokens.json"])["tokens"]
    return found


def test_a_new_installation_gets_everything_once() -> None:
    made = missing({}, HOLDER, IDS)
    assert set(made) == set(SECRETS)
    assert set(made[BROKER]) == {user.name for user in TOPOLOGY.users}
    assert len({*made[BROKER].values(), made[INTERNAL]["token"], made[CLIENT]["token"]}) == len(TOPOLOGY.users) + 2
    (entry,) = entries(made[TOKENS])
    assert entry["sha256"] == token_digest(made[CLIENT]["token"].decode())
    assert made[CLIENT]["token"] not in made[TOKENS]["tokens.json"]
    assert missing(made, HOLDER, IDS) == {}


def test_a_new_release_adds_its_users_and_changes_nobody_else() -> None:
    before = missing({}, HOLDER, IDS)
    del before[BROKER]["operator"]
    added = missing(before, HOLDER, IDS)
    assert {name: set(content) for name, content in added.items()} == {BROKER: {"operator"}}


def test_a_lost_client_token_is_replaced_and_other_tokens_stay() -> None:
    before = missing({}, HOLDER, IDS)
    theirs = {"sha256": "0" * 64, "tenant": "theirs", "principal": "p", "scope": "s", "role": "user"}
    before[TOKENS] = {"tokens.json": json.dumps({"tokens": [theirs]}).encode()}
    added = missing({name: content for name, content in before.items() if name != CLIENT}, HOLDER, IDS)
    assert set(added) == {CLIENT, TOKENS}
    after = add(before, added)
    assert entries(after[TOKENS])[0] == theirs
    assert entries(after[TOKENS])[1]["sha256"] == token_digest(added[CLIENT]["token"].decode())


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"tokens": [{}]}', b"tokens: yaml"])
def test_a_list_of_tokens_that_is_none_is_not_overwritten(broken: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        missing({TOKENS: {"tokens.json": broken}}, HOLDER, IDS)
