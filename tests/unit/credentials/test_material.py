"""Credentials are made once; what exists stays."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from forerun.cli.credentials.certificates import RENEW_DAYS
from forerun.cli.credentials.material import (
    AUTHORITY,
    BROKER,
    CLIENT,
    INTERNAL,
    RUNNER_CLIENT,
    RUNNERS,
    SECRETS,
    TLS,
    TOKENS,
    Content,
    Holder,
    Serving,
    missing,
)
from forerun.cli.main import main
from forerun.runtime.auth import token_digest
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.topology import TOPOLOGY

HOLDER = Holder("default", "agents")
IDS = SystemIds(SystemClock())
NOW = datetime(2030, 1, 1, tzinfo=UTC)
PLAIN = Serving((), NOW)
ENCRYPTED = Serving(("forerun-services", "forerun.platform.svc", "10.0.0.1"), NOW)


def add(existing: dict[str, dict[str, bytes]], made: dict[str, dict[str, bytes]]) -> dict[str, Content]:
    return {name: {**existing.get(name, {}), **made.get(name, {})} for name in SECRETS}


def entries(content: Content) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(content["tokens.json"])["tokens"]
    return found


def test_a_new_installation_gets_everything_once() -> None:
    made = missing({}, HOLDER, IDS, PLAIN)
    assert set(made) == {BROKER, INTERNAL, CLIENT, TOKENS, RUNNERS, RUNNER_CLIENT}
    assert set(made[BROKER]) == {user.name for user in TOPOLOGY.users}
    assert len({*made[BROKER].values(), made[INTERNAL]["token"], made[CLIENT]["token"]}) == len(TOPOLOGY.users) + 2
    (entry,) = entries(made[TOKENS])
    assert entry["sha256"] == token_digest(made[CLIENT]["token"].decode())
    assert made[CLIENT]["token"] not in made[TOKENS]["tokens.json"]
    assert missing(made, HOLDER, IDS, PLAIN) == {}


def test_a_new_release_adds_its_users_and_changes_nobody_else() -> None:
    before = missing({}, HOLDER, IDS, PLAIN)
    del before[BROKER]["operator"]
    added = missing(before, HOLDER, IDS, PLAIN)
    assert {name: set(content) for name, content in added.items()} == {BROKER: {"operator"}}


def test_a_lost_client_token_is_replaced_and_other_tokens_stay() -> None:
    before = missing({}, HOLDER, IDS, PLAIN)
    theirs = {"sha256": "0" * 64, "tenant": "theirs", "principal": "p", "scope": "s", "role": "user"}
    before[TOKENS] = {"tokens.json": json.dumps({"tokens": [theirs]}).encode()}
    added = missing({name: content for name, content in before.items() if name != CLIENT}, HOLDER, IDS, PLAIN)
    assert set(added) == {CLIENT, TOKENS}
    after = add(before, added)
    assert entries(after[TOKENS])[0] == theirs
    assert entries(after[TOKENS])[1]["sha256"] == token_digest(added[CLIENT]["token"].decode())


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"tokens": [{}]}', b"tokens: yaml"])
def test_a_list_of_tokens_that_is_none_is_not_overwritten(broken: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        missing({TOKENS: {"tokens.json": broken}}, HOLDER, IDS, PLAIN)


def test_services_get_one_certificate_of_an_authority_that_agents_know() -> None:
    made = missing({}, HOLDER, IDS, ENCRYPTED)
    assert made[CLIENT]["ca.crt"] == made[AUTHORITY]["ca.crt"] == made[TLS]["ca.crt"]
    assert "ca.key" not in made[TLS], "who serves cannot sign"
    found = x509.load_pem_x509_certificate(made[TLS]["tls.crt"])
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["forerun-services", "forerun.platform.svc"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert missing(made, HOLDER, IDS, ENCRYPTED) == {}


def test_a_certificate_is_made_anew_in_time_and_by_the_same_authority() -> None:
    before = missing({}, HOLDER, IDS, ENCRYPTED)
    early = replace(ENCRYPTED, now=NOW + timedelta(days=365 - RENEW_DAYS - 2))
    assert missing(before, HOLDER, IDS, early) == {}
    late = replace(ENCRYPTED, now=NOW + timedelta(days=365 - RENEW_DAYS))
    renewed = missing(before, HOLDER, IDS, late)
    assert set(renewed) == {TLS, RUNNER_CLIENT}
    authority = x509.load_pem_x509_certificate(before[AUTHORITY]["ca.crt"])
    x509.load_pem_x509_certificate(renewed[TLS]["tls.crt"]).verify_directly_issued_by(authority)


def test_another_name_needs_another_certificate() -> None:
    before = missing({}, HOLDER, IDS, ENCRYPTED)
    more = replace(ENCRYPTED, names=(*ENCRYPTED.names, "forerun.example.com"))
    assert set(missing(before, HOLDER, IDS, more)) == {TLS}


def test_encryption_can_be_added_later() -> None:
    before = missing({}, HOLDER, IDS, PLAIN)
    added = missing(before, HOLDER, IDS, ENCRYPTED)
    assert set(added) == {CLIENT, AUTHORITY, TLS}
    assert set(added[CLIENT]) == {"ca.crt"}, "the token stays"


def test_workers_and_runners_know_each_other_by_an_authority_that_nothing_else_trusts() -> None:
    made = missing({}, HOLDER, IDS, ENCRYPTED)
    assert set(made[RUNNERS]) == {"ca.crt", "ca.key"}
    assert made[RUNNERS]["ca.crt"] == made[RUNNER_CLIENT]["ca.crt"] != made[AUTHORITY]["ca.crt"]
    assert "ca.key" not in made[RUNNER_CLIENT]
    worker = x509.load_pem_x509_certificate(made[RUNNER_CLIENT]["tls.crt"])
    worker.verify_directly_issued_by(x509.load_pem_x509_certificate(made[RUNNERS]["ca.crt"]))
    usage = worker.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH], "a worker is no runner"
    late = replace(ENCRYPTED, now=NOW + timedelta(days=365 - RENEW_DAYS))
    assert set(missing(made, HOLDER, IDS, late)) == {TLS, RUNNER_CLIENT}


def test_a_runner_s_key_is_good_for_its_address_and_for_serving_alone(tmp_path: Path) -> None:
    made = missing({}, HOLDER, IDS, ENCRYPTED)
    authority, key, left = (tmp_path / name for name in ("authority", "key", "left"))
    for folder in (authority, key, left / "deep"):
        folder.mkdir(parents=True)
    for name, content in made[RUNNERS].items():
        (authority / name).write_bytes(content)
    for old in (key / "tls.key", left / "deep" / "file"):
        old.touch()
    command = ["runner-key", f"--authority={authority}", f"--directory={key}", "--address=10.1.2.3", f"--empty={left}"]
    assert main(command) == 0
    assert list(left.iterdir()) == []
    assert {path.name: path.stat().st_mode & 0o777 for path in key.iterdir()} == dict.fromkeys(
        ("tls.crt", "tls.key", "ca.crt"), 0o600
    )
    runner = x509.load_pem_x509_certificate((key / "tls.crt").read_bytes())
    names = runner.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3"]
    usage = runner.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    (authority / "ca.key").unlink()
    assert main(command) == 3
