"""The table, what is rendered from it, and the reference page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.runtime import subjects
from forerun.runtime.errors import Bug, InvalidArgument
from forerun.runtime.topology import AUDITS, EVENTS, LEDGER, TOPOLOGY
from forerun.runtime.topology_render import (
    ServerOptions,
    publish_allowed,
    render_config,
    render_markdown,
    subscribe_allowed,
)

PASSWORDS = {user.name: f"secret-{user.name}" for user in TOPOLOGY.users}


def test_the_reference_page_is_what_the_table_gives() -> None:
    page = Path(__file__).resolve().parents[3] / "docs/reference/topology.md"
    assert page.read_text() == render_markdown(TOPOLOGY), (
        "run: python -m forerun.runtime.topology > docs/reference/topology.md"
    )


def test_every_subject_builder_has_its_stream_or_none() -> None:
    def stream(subject: str) -> str | None:
        row = TOPOLOGY.stream_of(subject)
        return row.name if row else None

    assert stream(subjects.event(1, "t", "a", "s")) == EVENTS
    assert stream(subjects.ledger("t", "s")) == LEDGER
    assert stream(subjects.audit("t")) == AUDITS
    assert stream(subjects.dead_letter(EVENTS, "c")) == "DEADLETTER"
    for core in (subjects.candidates("o"), subjects.load("w"), subjects.cancel("w"), subjects.control("switch")):
        assert stream(core) is None


def test_a_name_that_is_not_in_the_table_is_a_defect() -> None:
    with pytest.raises(Bug):
        TOPOLOGY.bucket("nowhere")


def test_only_admin_may_set_up_streams_and_nobody_else_sees_foreign_inboxes() -> None:
    for user in TOPOLOGY.users:
        allowed = publish_allowed(TOPOLOGY, user)
        changes = [f"$JS.API.STREAM.{verb}.{EVENTS}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE")]
        for subject in changes:
            assert any(subjects.matches(pattern, subject) for pattern in allowed) == user.admin
        for other in TOPOLOGY.users:
            hears = any(subjects.matches(pattern, f"{other.inbox_prefix}.x") for pattern in subscribe_allowed(user))
            assert hears == (user.admin or other is user)


def test_the_rendered_configuration_holds_every_user_and_the_size_of_the_table() -> None:
    config = json.loads(render_config(TOPOLOGY, ServerOptions(Path("/data"), PASSWORDS, sync_always=True)))
    (account,) = config["accounts"].values()
    assert {user["user"]: user["password"] for user in account["users"]} == PASSWORDS
    assert config["host"] == "127.0.0.1"
    assert config["port"] == -1
    assert config["max_payload"] == 1_048_576
    assert config["jetstream"]["max_file_store"] > TOPOLOGY.max_bytes
    assert config["jetstream"]["sync_interval"] == "always"


@pytest.mark.parametrize("password", [None, ""])
def test_a_user_without_password_is_refused(password: str | None) -> None:
    passwords = {name: value for name, value in PASSWORDS.items() if name != "sandbox"}
    if password is not None:
        passwords["sandbox"] = password
    with pytest.raises(InvalidArgument, match="sandbox"):
        render_config(TOPOLOGY, ServerOptions(Path("/data"), passwords))
