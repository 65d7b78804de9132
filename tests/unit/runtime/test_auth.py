import json
from pathlib import Path

import pytest

from forerun.runtime.auth import (
    Authenticator,
    Caller,
    CallToken,
    Role,
    credential_scope,
    current_caller,
    on_behalf_of,
    require_service,
    token_digest,
    use_caller,
)
from forerun.runtime.errors import ErrorReason, FailedPrecondition, PermissionDenied, Unauthenticated


class SetClock:
    seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def entry(token: str, **changes: object) -> dict[str, object]:
    return {"sha256": token_digest(token), "tenant": "acme", "principal": "ann", "scope": "read write"} | changes


def written(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps({"tokens": entries}))
    return path


def bearer(token: str) -> tuple[tuple[str, str | bytes], ...]:
    return CallToken(token).metadata()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "tokens.json", entry("one"), entry("two", tenant="umbrella", principal="bob"))


def test_tokens_give_tenant_principal_and_rights(file: Path) -> None:
    authenticator = Authenticator(SetClock(), token_file=file)
    assert authenticator.caller(bearer("one")) == Caller("acme", "ann", credential_scope("write read"), Role.USER)
    assert authenticator.caller((("authorization", "bearer two"),)).tenant == "umbrella"


def test_an_operator_is_one_by_the_role_of_the_token(tmp_path: Path) -> None:
    file = written(tmp_path / "tokens.json", entry("one", role="operator"), entry("two", role="user"))
    authenticator = Authenticator(SetClock(), token_file=file)
    assert [authenticator.caller(bearer(token)).role for token in ("one", "two")] == [Role.OPERATOR, Role.USER]
    written(file, entry("one", role="service"))
    with pytest.raises(FailedPrecondition, match="neither user nor operator"):
        Authenticator(SetClock(), token_file=file)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), ErrorReason.CREDENTIAL_MISSING),
        ((("authorization", "Basic b25l"),), ErrorReason.CREDENTIAL_MISSING),
        (bearer("three"), ErrorReason.CREDENTIAL_REFUSED),
        (bearer(""), ErrorReason.CREDENTIAL_REFUSED),
        (bearer("ONE"), ErrorReason.CREDENTIAL_REFUSED),
        (bearer(token_digest("one")), ErrorReason.CREDENTIAL_REFUSED),
    ],
)
def test_others_are_told_how_to_get_a_token(
    file: Path, metadata: tuple[tuple[str, str | bytes], ...], reason: ErrorReason
) -> None:
    with pytest.raises(Unauthenticated, match=r"run\.json") as raised:
        Authenticator(SetClock(), token_file=file).caller(metadata)
    assert raised.value.reason is reason


def test_a_revoked_token_is_refused_within_a_second(file: Path) -> None:
    clock = SetClock()
    authenticator = Authenticator(clock, token_file=file)
    version = authenticator.version()
    written(file, entry("two"))
    clock.seconds += 1.0
    with pytest.raises(Unauthenticated):
        authenticator.caller(bearer("one"))
    assert authenticator.caller(bearer("two")).tenant == "acme"
    assert authenticator.version() == version + 1


@pytest.mark.parametrize("content", [None, "{", '{"tokens": [{}]}'])
def test_a_file_that_breaks_later_admits_nobody_until_it_is_whole_again(file: Path, content: str | None) -> None:
    clock = SetClock()
    authenticator = Authenticator(clock, token_file=file)
    file.unlink() if content is None else file.write_text(content)
    clock.seconds += 1.0
    with pytest.raises(Unauthenticated):
        authenticator.caller(bearer("one"))
    written(file, entry("one"))
    clock.seconds += 1.0
    assert authenticator.caller(bearer("one")).principal == "ann"


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ([], "no list"),
        ({"tokens": [entry("a", sha256="zz")]}, "64 hexadecimal"),
        ({"tokens": [entry("a", tenant="")]}, "must not be empty"),
        ({"tokens": [entry("a", scope=3)]}, "exactly the strings"),
        ({"tokens": [entry("a", extra="x")]}, "exactly the strings"),
        ({"tokens": [entry("a"), entry("a")]}, "twice"),
    ],
)
def test_a_wrong_file_is_refused_at_start(tmp_path: Path, document: object, what: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FailedPrecondition, match=what):
        Authenticator(SetClock(), token_file=path)


def test_a_missing_file_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="No such file"):
        Authenticator(SetClock(), token_file=tmp_path / "absent.json")


def test_services_act_for_callers_and_users_do_not(file: Path) -> None:
    authenticator = Authenticator(SetClock(), token_file=file, internal_token="internal")
    ann = Caller("acme", "Zoë \u4f60", "abc", Role.USER)
    assert authenticator.caller((*bearer("internal"), *on_behalf_of(ann))) == Caller(
        "acme", "Zoë \u4f60", "abc", Role.SERVICE
    )
    assert authenticator.caller(bearer("internal")).tenant == ""
    with pytest.raises(PermissionDenied):
        authenticator.caller((*bearer("one"), *on_behalf_of(ann)))
    with pytest.raises(PermissionDenied, match="malformed"):
        authenticator.caller((*bearer("internal"), ("forerun-caller-bin", b"not json")))


async def test_handlers_see_their_caller() -> None:
    with pytest.raises(PermissionDenied):
        current_caller()
    use_caller(Caller("", "", "", Role.SERVICE))
    require_service()
    with pytest.raises(PermissionDenied):
        current_caller()
    use_caller(Caller("acme", "ann", "abc"))
    assert current_caller().tenant == "acme"
    with pytest.raises(PermissionDenied):
        require_service()
