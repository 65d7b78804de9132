"""The channel to the platform.

Its values are those of the platform's own channels (forerun.runtime.network): the two sides have to agree, the client
may be installed without the platform, and a contract test compares them.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from forerun.client._errors import NotConfigured

CA_VARIABLE: Final = "FORERUN_CA_FILE"
"""Names a file with the certificate authority of the platform, in PEM."""
MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Largest message in either direction; larger results travel in chunks."""
KEEPALIVE_SECONDS: Final = 30.0
"""Silence after which either side pings."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 10.0
"""How long a ping may stay unanswered before the connection counts as broken."""
RECONNECT_INITIAL_SECONDS: Final = 0.1
"""First pause before a broken connection is tried again."""
RECONNECT_MAX_SECONDS: Final = 1.0
"""Longest pause between two tries."""


def channel_options() -> list[tuple[str, int | str]]:
    """The arguments of a channel."""
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(KEEPALIVE_SECONDS)),
        ("grpc.keepalive_timeout_ms", _milliseconds(KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", _milliseconds(RECONNECT_INITIAL_SECONDS)),
        ("grpc.min_reconnect_backoff_ms", _milliseconds(RECONNECT_INITIAL_SECONDS)),
        ("grpc.max_reconnect_backoff_ms", _milliseconds(RECONNECT_MAX_SECONDS)),
        ("grpc.dns_min_time_between_resolutions_ms", _milliseconds(RECONNECT_MAX_SECONDS)),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel, made inside the running loop.

    Args:
        address: One address, or several with commas between them; each is tried, and those that answer are used in
            turn.
        credentials: Encrypts the connection. Default: with the authority in the file that `FORERUN_CA_FILE` names, else
            it is not encrypted, which is for loopback and trusted networks.

    Raises:
        NotConfigured: one of several addresses is no IP address with a port, or the file cannot be read.
    """
    target = target_of(address)
    if credentials is None:
        credentials = _credentials_of_environment()
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=channel_options())
    return grpc.aio.secure_channel(target, credentials, options=channel_options())


def _credentials_of_environment() -> grpc.ChannelCredentials | None:
    file = os.environ.get(CA_VARIABLE)
    if not file:
        return None
    try:
        return grpc.ssl_channel_credentials(Path(file).read_bytes())
    except OSError as error:
        raise NotConfigured(
            "AUTHORITY_UNREADABLE",
            f"{CA_VARIABLE} names {file}, which cannot be read: {error.strerror}",
            metadata={"file": file},
        ) from error


def target_of(address: str) -> str:
    """What grpc is told for an address; several are a list of its own kind, of one family of IP addresses.

    Raises:
        NotConfigured: one of several is no IP address with a port, or they are of two families.
    """
    parts = [part.strip() for part in address.split(",")]
    if len(parts) == 1:
        return address
    families = {_family(part) for part in parts}
    if len(families) != 1 or None in families:
        raise NotConfigured(
            "ADDRESS_INVALID",
            f"{address!r} is no list of addresses: give IP addresses with ports, all IPv4 or all IPv6, with commas "
            "between them, or one DNS name that stands for all replicas",
            metadata={"address": address},
        )
    return f"ipv{families.pop()}:" + ",".join(parts)


def _family(part: str) -> int | None:
    host, _, port = part.rpartition(":")
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return found.version if port.isdigit() else None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
