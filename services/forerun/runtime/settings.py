"""Settings of a service: typed, from the environment, secrets from files, refused when unknown.

A service subclasses `ServiceSettings` and writes each field with unit, default and, below it, its reason; the reference
page is rendered from those. `main_for` makes the entry point that all services share.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from forerun.runtime.app import App, run_process
from forerun.runtime.errors import ErrorReason, FailedPrecondition, ForerunError, Unavailable
from forerun.runtime.logs import configure_logs
from forerun.runtime.tls import Tls

EXIT_FAILED: Final = 1
EXIT_WRONG_USE: Final = 2
EXIT_MISSING: Final = 3

# Kubernetes adds such variables for every Service of the namespace; a Service named "forerun-sandbox" would look like
# settings of ours. The value is looked at as well: PORT=7400 is somebody's mistake, PORT=tcp://10.0.0.1:7400 is not.
_SERVICE_LINK: Final = re.compile(
    r"SERVICE_HOST=.+|SERVICE_PORT(_[A-Z0-9_]+)?=\d+|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO=[a-z]+|PORT=\d+|ADDR=.+)"
)
_ADDRESS: Final = re.compile(r"(.+:\d{1,5}|unix:.+)")
_MAX_SECRET_BYTES: Final = 64 * 1024
_MASK: Final = "**********"

_Settings = TypeVar("_Settings", bound="ServiceSettings")


def service_config(service: str) -> SettingsConfigDict:
    """The `model_config` of a service's settings: where their variables' names begin, and that unknown ones fail."""
    return SettingsConfigDict(
        env_prefix=f"FORERUN_{service.upper()}_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )


class SettingsGroup(BaseModel):
    """Base of nested groups of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class ServiceSettings(BaseSettings):
    """What every service can be told. Subclasses set `model_config = service_config("name")`."""

    model_config = service_config("service")

    listen_address: str = "127.0.0.1:0"
    """`host:port` of the gRPC server. Port 0 takes a free one, which is logged."""
    metrics_address: str = "127.0.0.1:0"
    """`host:port` of the HTTP server for Prometheus. Loopback unless a scraper has to reach it."""
    nats_url: str = "nats://127.0.0.1:4222"
    """Address of the broker, or several with commas between them; `tls://` never connects without encryption. Holds no
    credentials; they come from the file."""
    nats_ca_file: Path | None = None
    """Authority in PEM that the certificate of the broker comes from. None takes those that the system trusts."""
    nats_user: str | None = None
    """User at the broker; each service has its own with the subjects it needs. None connects without."""
    nats_password_file: Path | None = None
    """File with the password of that user."""
    nats_connect_seconds: float = Field(default=20.0, gt=0, le=3600)
    """How long a start waits for the broker before the process ends with an error. In a cluster more, below what its
    supervisor gives a start: a process that is begun again finds no other broker, and loses the time of its start."""
    token_file: Path | None = None
    """JSON file with the digests of user tokens. It is read again when it changes, which is how tokens are revoked."""
    internal_token_file: Path | None = None
    """File with the token that the services of one installation share, 32 random bytes or more."""
    tls_certificate_file: Path | None = None
    """Certificate of this process in PEM, for what it serves and calls. It is read again when it changes. None encrypts
    nothing, which is for loopback."""
    tls_key_file: Path | None = None
    """Key of that certificate in PEM."""
    tls_ca_file: Path | None = None
    """Authority in PEM that certificates of the other services come from."""
    tls_ask_clients: bool = True
    """Refuse callers without a certificate of that authority. False where agents call, who have tokens alone."""
    tls_server_name: str = ""
    """Name that certificates of the other services hold, whatever their addresses. Empty takes the address."""
    health_address: str | None = None
    """`host:port` of a second server for health alone, never encrypted: probes of Kubernetes know no certificates."""
    shutdown_seconds: float = Field(default=20.0, gt=0, le=600)
    """Bound of an orderly stop. Below Kubernetes' default of 30 s before it kills, forced steps included."""
    drain_seconds: float = Field(default=0.0, ge=0, le=60)
    """Between "not ready" and the refusal of calls, for load balancers to notice. 5 s in a cluster, 0 on a laptop."""
    max_connection_age_seconds: float | None = Field(default=None, gt=0)
    """Age at which clients are asked to connect again, so that new replicas get traffic. None is never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of our own logs; other libraries log from warning on."""
    log_library_text: bool = False
    """Show texts of other libraries in the log. They may quote content of sessions, so this is for debugging only."""
    otlp_endpoint: str | None = None
    """Where spans go: `host:port` or URL of an OTLP gRPC collector. None exports nothing."""
    trace_sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of traces that are recorded, decided where a trace begins."""

    @model_validator(mode="after")
    def _has_whole_tls(self) -> Self:
        given = [self.tls_certificate_file, self.tls_key_file, self.tls_ca_file]
        if any(given) and not all(given):
            raise ValueError("tls_certificate_file, tls_key_file and tls_ca_file are given together or not at all")
        return self

    @field_validator("listen_address", "metrics_address", "health_address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not _ADDRESS.fullmatch(value):
            raise ValueError("must be host:port")
        return value

    @field_validator("nats_url")
    @classmethod
    def _holds_no_credentials(cls, value: str) -> str:
        for url in value.split(","):
            parts = urlsplit(url.strip())
            if parts.username is not None or parts.password is not None:
                raise ValueError("must not hold credentials; use nats_user and nats_password_file")
            if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
                raise ValueError("must look like nats://host:port")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments and the environment; nothing is read from files in the working directory."""
        return init_settings, env_settings

    @classmethod
    def service(cls) -> str:
        """The service's name."""
        return cls._prefix().removeprefix("FORERUN_").removesuffix("_").lower()

    @classmethod
    def variable(cls, *path: str) -> str:
        """The environment variable of a field, or of a nested one."""
        return cls._prefix() + "__".join(path).upper()

    @classmethod
    def _prefix(cls) -> str:
        return str(cls.model_config["env_prefix"])

    def tls(self) -> Tls | None:
        """The process's certificates, if it has any."""
        if self.tls_certificate_file is None or self.tls_key_file is None or self.tls_ca_file is None:
            return None
        return Tls(
            certificate_file=self.tls_certificate_file,
            key_file=self.tls_key_file,
            ca_file=self.tls_ca_file,
            ask_clients=self.tls_ask_clients,
            server_name=self.tls_server_name,
        )

    def files(self) -> Iterator[tuple[str, Path]]:
        """The files that settings name, by variable."""
        for path, value in _leaves(self):
            if path[-1].endswith("_file") and isinstance(value, Path):
                yield self.variable(*path), value


def load_settings(kind: type[_Settings]) -> _Settings:
    """Reads and checks the settings of a service.

    Raises:
        FailedPrecondition: a variable is unknown, a value is wrong (`SETTING_INVALID`), or a file that is named does
            not exist (`DEPENDENCY_MISSING`).
    """
    unknown = sorted(_unknown_variables(kind))
    if unknown:
        raise _invalid(f"unknown setting {unknown[0]}; `--print-settings` lists what there is", unknown[0])
    try:
        settings = kind()
    except ValidationError as error:
        faults = [f"{kind.variable(*map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise _invalid("; ".join(faults), faults[0].partition(":")[0]) from None
    for variable, path in settings.files():
        if not os.access(path, os.R_OK):
            raise FailedPrecondition(
                ErrorReason.DEPENDENCY_MISSING,
                f"{variable} names {path}, which cannot be read; create it or correct the setting",
                metadata={"setting": variable},
            )
    return settings


def read_secret(path: Path) -> str:
    """The secret in a file, without the line end that editors add.

    Raises:
        FailedPrecondition: the file cannot be read, or is empty or too large to be a secret.
    """
    try:
        if path.stat().st_size > _MAX_SECRET_BYTES:
            raise _invalid(f"{path} is too large to hold a secret", str(path))
        secret = path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FailedPrecondition(
            ErrorReason.DEPENDENCY_MISSING, f"the secret in {path} cannot be read", metadata={"file": str(path)}
        ) from error
    if not secret:
        raise _invalid(f"{path} is empty, it should hold a secret", str(path))
    return secret


def printable(settings: ServiceSettings) -> dict[str, Any]:
    """All settings by variable, secrets masked, as JSON can hold them."""
    return {settings.variable(*path): _plain(value) for path, value in _leaves(settings)}


def settings_reference(kinds: Sequence[type[ServiceSettings]]) -> str:
    """The reference page of the settings of some services, in Markdown."""
    lines = [
        "# Settings",
        "",
        "Generated from the settings classes; do not edit. Each service is configured by environment variables;",
        "`forerun SERVICE --print-settings` shows what is in force, `--check-config` checks it. Unknown variables with",
        "a service's prefix are refused.",
    ]
    for kind in kinds:
        lines += [
            "",
            f"## {kind.service()}",
            "",
            "| variable | type | default | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for path, field in _fields(kind):
            default = "required" if field.is_required() else f"`{_plain(field.get_default(call_default_factory=True))}`"
            meaning = " ".join((field.description or "").split())
            lines.append(f"| `{kind.variable(*path)}` | {_type_name(field)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def main_for(kind: type[_Settings], build: Callable[[_Settings], App]) -> Callable[[Sequence[str]], int]:
    """Makes the entry point of a service: reads the settings, builds, runs; returns the exit code.

    Args:
        kind: The service's settings.
        build: Wires the process; called inside its event loop.
    """

    def main(arguments: Sequence[str]) -> int:
        parser = argparse.ArgumentParser(prog=f"forerun {kind.service()}", description=(kind.__doc__ or "").strip())
        parser.add_argument("--check-config", action="store_true", help="check the settings and exit")
        parser.add_argument("--print-settings", action="store_true", help="print the settings as JSON and exit")
        options = parser.parse_args(arguments)
        try:
            settings = load_settings(kind)
            if options.print_settings:
                sys.stdout.write(json.dumps(printable(settings), indent=2) + "\n")
                return 0
            if options.check_config:
                sys.stderr.write(f"the settings of {kind.service()} are valid\n")
                return 0
            configure_logs(kind.service(), settings.log_level, library_text=settings.log_library_text)
            return run_process(lambda: build(settings), settings.shutdown_seconds)
        except ForerunError as error:
            sys.stderr.write(f"forerun {kind.service()}: {error.message}\n")
            return exit_code(error)

    return main


def exit_code(error: ForerunError) -> int:
    """What a command returns for an error: 2 for wrong use, 3 for something that is missing, else 1."""
    if error.reason is ErrorReason.DEPENDENCY_MISSING or isinstance(error, Unavailable):
        return EXIT_MISSING
    return EXIT_WRONG_USE if error.reason is ErrorReason.SETTING_INVALID else EXIT_FAILED


def _unknown_variables(kind: type[ServiceSettings]) -> Iterator[str]:
    prefix = kind.variable()
    known = {kind.variable(name) for name in kind.model_fields}
    groups = tuple(kind.variable(name) + "__" for name, field in kind.model_fields.items() if _group(field))
    for variable, value in os.environ.items():
        if not variable.upper().startswith(prefix) or variable.upper() in known or variable.upper().startswith(groups):
            continue
        if not _SERVICE_LINK.fullmatch(f"{variable[len(prefix) :]}={value}"):
            yield variable


def _fields(kind: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, field in kind.model_fields.items():
        group = _group(field)
        if group is None:
            yield (*above, name), field
        else:
            yield from _fields(group, (*above, name))


def _leaves(model: BaseModel, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, SettingsGroup):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _group(field: FieldInfo) -> type[SettingsGroup] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, SettingsGroup) else None


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return _MASK
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)


def _type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    name = name.replace("typing.", "").replace("pathlib._local.", "").replace("pathlib.", "").replace("|", "or")
    return name.replace("NoneType", "None")


def _invalid(message: str, setting: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorReason.SETTING_INVALID, message, metadata={"setting": setting})
