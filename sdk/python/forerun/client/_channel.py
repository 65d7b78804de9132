"""The channel to the platform.

Its values are those of the platform's own channels (forerun.runtime.network): the two sides have to agree, the client
may be installed without the platform, and a contract test compares them.
"""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Largest message in either direction; larger results travel in chunks."""
KEEPALIVE_SECONDS: Final = 30.0
"""Silence after which either side pings."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 10.0
"""How long a ping may stay unanswered before the connection counts as broken."""
RECONNECT_INITIAL_SECONDS: Final = 0.1
"""First pause before a broken connection is tried again."""
RECONNECT_MAX_SECONDS: Final = 5.0
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
    """A channel, made inside the running loop. Without credentials it is not encrypted: loopback, or a trusted net."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=channel_options())
    return grpc.aio.secure_channel(address, credentials, options=channel_options())


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
