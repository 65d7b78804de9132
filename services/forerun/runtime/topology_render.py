"""What is rendered from the topology: the broker's configuration and the reference page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.runtime import subjects
from forerun.runtime.bus import MAX_MESSAGE_BYTES
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.topology import Topology, User

# Room for the broker's own files (consumer state, raft logs) above what the table grants.
_STORE_HEADROOM: Final = 1.25

_API: Final = "$JS.API"
# Handshakes of a whole installation that starts at once on a small node.
_HANDSHAKE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files in PEM with which a broker encrypts what it says to clients and to other brokers.

    Attributes:
        certificate_file: Its certificate, which holds every name that clients and other brokers reach it by.
        key_file: The key of that certificate.
        ca_file: The authority that other brokers' certificates come from; they prove who they are, too.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path


@dataclass(frozen=True, slots=True)
class Cluster:
    """Several brokers that hold copies for each other.

    Attributes:
        port: Where this one listens for the others.
        routes: `host:port` of all of them; itself may be among them.
    """

    port: int
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What differs between brokers.

    Attributes:
        store_dir: Where streams live.
        passwords: A password for each user of the topology.
        name: Name of this server, unique in its cluster.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one, which the broker writes into `ports_file_dir`.
        ports_file_dir: Where the broker writes the ports it really uses; None: nowhere.
        pid_file: Where the broker writes its process id; None: nowhere.
        sync_always: Acknowledge only what is on the disk itself, not just in the operating system's cache. Needed
            where a machine can lose power; costs a disk flush per append.
        monitor_port: HTTP port of its health and figures; None has none.
        cluster: The others, where it is one of several.
        tls: With what connections are encrypted; None encrypts nothing, which is for loopback.
    """

    store_dir: Path
    passwords: Mapping[str, str]
    name: str = "forerun"
    host: str = "127.0.0.1"
    port: int = 0
    ports_file_dir: Path | None = None
    pid_file: Path | None = None
    sync_always: bool = False
    monitor_port: int | None = None
    cluster: Cluster | None = None
    tls: ServerTls | None = None


def render_config(topology: Topology, options: ServerOptions) -> str:
    """The configuration of a nats-server: one account with JetStream, one user per service.

    Raises:
        InvalidArgument: a user of the topology has no password, or an empty one.
    """
    missing = sorted(user.name for user in topology.users if not options.passwords.get(user.name))
    if missing:
        raise InvalidArgument(
            ErrorReason.SETTING_INVALID, f"no password for {', '.join(missing)}", metadata={"users": ",".join(missing)}
        )
    # The broker's configuration language is a superset of JSON; -1 is its word for a free port.
    config: dict[str, object] = {
        "server_name": options.name,
        "host": options.host,
        "port": options.port or -1,
        "max_payload": MAX_MESSAGE_BYTES,
        "write_deadline": "10s",
        "jetstream": {
            "store_dir": str(options.store_dir),
            "max_file_store": int(topology.max_bytes * _STORE_HEADROOM),
            "max_memory_store": 64 * 1024 * 1024,
            "sync_interval": "always" if options.sync_always else "2m",
        },
        "accounts": {
            "FORERUN": {
                "jetstream": "enabled",
                "users": [_user(topology, user, options.passwords[user.name]) for user in topology.users],
            }
        },
    }
    if options.ports_file_dir is not None:
        config["ports_file_dir"] = str(options.ports_file_dir)
    if options.monitor_port is not None:
        config["http"] = f"{options.host}:{options.monitor_port}"
    encrypted = {} if options.tls is None else {"tls": _tls(options.tls)}
    config |= encrypted
    if options.cluster is not None:
        config["cluster"] = {
            "name": "forerun",
            "listen": f"{options.host}:{options.cluster.port}",
            "routes": [f"nats://{route}" for route in options.cluster.routes],
            **encrypted,
        }
    if options.pid_file is not None:
        config["pid_file"] = str(options.pid_file)
    return json.dumps(config, indent=2) + "\n"


def _tls(tls: ServerTls) -> dict[str, object]:
    return {
        "cert_file": str(tls.certificate_file),
        "key_file": str(tls.key_file),
        "ca_file": str(tls.ca_file),
        "timeout": _HANDSHAKE_SECONDS,
    }


def _user(topology: Topology, user: User, password: str) -> dict[str, object]:
    return {
        "user": user.name,
        "password": password,
        "permissions": {
            "publish": {"allow": list(publish_allowed(topology, user))},
            "subscribe": {"allow": list(subscribe_allowed(user))},
        },
    }


def publish_allowed(topology: Topology, user: User) -> tuple[str, ...]:
    """The subjects a user may publish to."""
    if user.admin:
        return (">",)
    # A process writes to its own inbox to learn that the server has processed what it sent before.
    allowed: list[str] = [f"{user.inbox_prefix}.>"]
    for name in user.appends:
        allowed += topology.stream(name).subjects
    for name in user.consumes:
        allowed += _reads(name)
        allowed.append(subjects.dead_letter(name, "x").rsplit(".", 1)[0] + ".*")
    for name in (*user.keys_read, *user.keys_write):
        allowed += _reads(f"KV_{name}")
    for name in user.keys_write:
        allowed.append(f"$KV.{name}.>")
    for name in (*user.objects_read, *user.objects_write):
        allowed += _reads(f"OBJ_{name}")
    for name in user.objects_write:
        allowed += [f"$O.{name}.>", f"{_API}.STREAM.PURGE.OBJ_{name}"]
    allowed += user.notifies
    return tuple(dict.fromkeys(allowed))


def subscribe_allowed(user: User) -> tuple[str, ...]:
    """The subjects a user may listen to."""
    if user.admin:
        return (">",)
    return (f"{user.inbox_prefix}.>", *user.hears)


def _reads(stream: str) -> list[str]:
    return [
        f"{_API}.STREAM.INFO.{stream}",
        f"{_API}.STREAM.MSG.GET.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.INFO.{stream}.*",
        f"{_API}.CONSUMER.MSG.NEXT.{stream}.*",
        # The subject of an acknowledgement has two forms, with and without domain and account.
        f"$JS.ACK.{stream}.>",
        f"$JS.ACK.*.*.{stream}.>",
    ]


def render_markdown(topology: Topology) -> str:
    """The reference page."""
    parts = [
        "# Streams, buckets, object stores and users\n",
        "Generated by `python -m forerun.runtime.topology`; do not edit. In a cluster, replicated rows have three "
        "copies. Everything is on disk. Sizes are upper limits; ages count from the last write.\n",
        "## Streams\n",
        _table(
            ("stream", "use", "subjects", "retention", "age", "size", "full", "dedupe", "message", "content"),
            (
                (
                    row.name,
                    row.use,
                    "<br>".join(f"`{subject}`" for subject in row.subjects),
                    row.retention.value,
                    _duration(row.max_age_seconds),
                    _size(row.max_bytes),
                    "drops the oldest" if row.discard.value == "old" else "refuses appends",
                    _duration(row.dedupe_window_seconds),
                    _size(row.max_message_bytes),
                    "yes" if row.content else "no",
                )
                for row in topology.streams
            ),
        ),
        "## Key-value buckets\n",
        _table(
            ("bucket", "use", "keys expire", "size", "value"),
            (
                (row.name, row.use, _duration(row.ttl_seconds), _size(row.max_bytes), _size(row.max_value_bytes))
                for row in topology.buckets
            ),
        ),
        "Reads go to the leader of a bucket (direct get is off), so that a compare-and-set starts from the truth.\n",
        "## Object stores\n",
        _table(
            ("store", "use", "objects expire", "size"),
            ((row.name, row.use, _duration(row.ttl_seconds), _size(row.max_bytes)) for row in topology.object_stores),
        ),
        "## Users\n",
        "One account with JetStream. Each service has its own user and its own inbox prefix.\n",
        _table(
            ("user", "use", "appends", "consumes", "keys", "objects", "notifies", "hears"),
            (_user_row(user) for user in topology.users),
        ),
        "Keys and objects: `r` read and watch, `rw` also write.\n",
    ]
    return "\n".join(parts)


def _user_row(user: User) -> tuple[str, ...]:
    if user.admin:
        return (user.name, user.use, *(["everything"] * 6))
    return (
        user.name,
        user.use,
        ", ".join(user.appends),
        ", ".join(user.consumes),
        ", ".join([*(f"{name} r" for name in user.keys_read), *(f"{name} rw" for name in user.keys_write)]),
        ", ".join([*(f"{name} r" for name in user.objects_read), *(f"{name} rw" for name in user.objects_write)]),
        "<br>".join(f"`{subject}`" for subject in user.notifies),
        "<br>".join(f"`{subject}`" for subject in user.hears),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell or "-" for cell in line) + " |\n" for line in lines)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _size(size_bytes: int) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:g} {unit}"
    return f"{size_bytes} B"
