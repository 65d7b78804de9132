import json
from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from forerun.runtime.app import App
from forerun.runtime.errors import ErrorReason, FailedPrecondition, Unavailable
from forerun.runtime.settings import (
    ServiceSettings,
    SettingsGroup,
    exit_code,
    load_settings,
    main_for,
    printable,
    read_secret,
    service_config,
    settings_reference,
)


class Slots(SettingsGroup):
    """How much runs at a time."""

    authoritative: int = Field(default=8, ge=1)
    """Slots for calls that agents asked for."""


class WidgetSettings(ServiceSettings):
    """The widget service."""

    model_config = service_config("widget")

    slots: Slots = Slots()
    """Slots by class."""
    pin: SecretStr = SecretStr("0000")
    """A secret."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("FORERUN_WIDGET_"):
            monkeypatch.delenv(name)


def fault(monkeypatch: pytest.MonkeyPatch, **variables: str) -> FailedPrecondition:
    for name, value in variables.items():
        monkeypatch.setenv(f"FORERUN_WIDGET_{name}", value)
    with pytest.raises(FailedPrecondition) as raised:
        load_settings(WidgetSettings)
    return raised.value


def test_defaults_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(WidgetSettings).shutdown_seconds == 20.0
    monkeypatch.setenv("FORERUN_WIDGET_SHUTDOWN_SECONDS", "7.5")
    monkeypatch.setenv("FORERUN_WIDGET_SLOTS__AUTHORITATIVE", "3")
    settings = load_settings(WidgetSettings)
    assert (settings.shutdown_seconds, settings.slots.authoritative) == (7.5, 3)
    assert WidgetSettings.service() == "widget"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHUTDOWN_SECOND", "7", "unknown setting FORERUN_WIDGET_SHUTDOWN_SECOND"),
        ("PORT", "7400", "unknown setting FORERUN_WIDGET_PORT"),
        ("PORT", "abc", "unknown setting FORERUN_WIDGET_PORT"),
        ("SERVICE_PORT", "any", "unknown setting FORERUN_WIDGET_SERVICE_PORT"),
        ("SLOTS__AUTHORITATIV", "7", "FORERUN_WIDGET_SLOTS__AUTHORITATIV: Extra inputs"),
        ("SLOTS__AUTHORITATIVE", "0", "FORERUN_WIDGET_SLOTS__AUTHORITATIVE: Input should be greater"),
        ("SHUTDOWN_SECONDS", "soon", "FORERUN_WIDGET_SHUTDOWN_SECONDS: Input should be a valid number"),
        ("LISTEN_ADDRESS", "7400", "FORERUN_WIDGET_LISTEN_ADDRESS: Value error, must be host:port"),
        ("NATS_URL", "nats://ann:secret@broker:4222", "must not hold credentials"),
        ("NATS_URL", "http://broker:4222", "must look like nats://host:port"),
    ],
)
def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    error = fault(monkeypatch, **{name: value})
    assert message in error.message
    assert "secret" not in error.message
    assert error.reason is ErrorReason.SETTING_INVALID


def test_variables_that_kubernetes_adds_for_services_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "7400",
        "SERVICE_PORT_GRPC": "7400",
        "PORT": "tcp://10.0.0.1:7400",
        "PORT_7400_TCP": "tcp://10.0.0.1:7400",
        "PORT_7400_TCP_ADDR": "10.0.0.1",
        "PORT_7400_TCP_PORT": "7400",
        "PORT_7400_TCP_PROTO": "tcp",
    }.items():
        monkeypatch.setenv(f"FORERUN_WIDGET_{name}", value)
    load_settings(WidgetSettings)


def test_files_have_to_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = fault(monkeypatch, TOKEN_FILE=str(tmp_path / "absent"))
    assert "FORERUN_WIDGET_TOKEN_FILE names" in error.message
    assert (error.reason, exit_code(error)) == (ErrorReason.DEPENDENCY_MISSING, 3)


def test_secrets_come_from_files_without_their_line_end(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret \r\n")
    assert read_secret(path) == "s3cret "
    path.write_text("\n")
    with pytest.raises(FailedPrecondition, match="empty"):
        read_secret(path)
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        read_secret(tmp_path / "absent")


def test_printing_masks_secrets() -> None:
    shown = printable(WidgetSettings())
    assert shown["FORERUN_WIDGET_PIN"] == "**********"
    assert shown["FORERUN_WIDGET_SLOTS__AUTHORITATIVE"] == 8
    assert "0000" not in json.dumps(shown)


def test_the_reference_has_a_row_with_a_meaning_for_every_setting() -> None:
    page = settings_reference([WidgetSettings])
    rows = [line for line in page.splitlines() if line.startswith("| `FORERUN_WIDGET_")]
    assert len(rows) == len(printable(WidgetSettings()))
    assert all(not row.endswith("|  |") for row in rows)
    assert "| `FORERUN_WIDGET_SLOTS__AUTHORITATIVE` | int | `8` | Slots for calls that agents asked for. |" in rows


def build(settings: WidgetSettings) -> App:
    raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, f"cannot reach {settings.nats_url}")


def test_the_entry_point(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main = main_for(WidgetSettings, build)
    assert main(["--check-config"]) == 0
    assert capsys.readouterr() == ("", "the settings of widget are valid\n")
    assert main(["--print-settings"]) == 0
    assert json.loads(capsys.readouterr().out)["FORERUN_WIDGET_LOG_LEVEL"] == "info"
    monkeypatch.setenv("FORERUN_WIDGET_TYPO", "1")
    assert main(["--check-config"]) == 2
    assert "FORERUN_WIDGET_TYPO" in capsys.readouterr().err
    with pytest.raises(SystemExit) as raised:
        main(["--no-such-option"])
    assert raised.value.code == 2
