"""The topology's rows as JetStream configurations, and making the broker hold them."""

from __future__ import annotations

import logging
from typing import Any, Final

from forerun.runtime.bus_nats_api import ApiError, call, is_missing
from forerun.runtime.bus_nats_kv import MARKER_SECONDS
from forerun.runtime.bus_nats_kv import stream_name as bucket_stream
from forerun.runtime.bus_nats_objects import stream_name as object_stream
from forerun.runtime.bus_nats_wire import Wire
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.topology import Bucket, ObjectStore, Stream

_log = logging.getLogger(__name__)

_NANOS: Final = 1_000_000_000
# Room for the broker's headers on a value.
_HEADER_ROOM_BYTES: Final = 512
# JetStream reports an invalid configuration as an error of the server.
_REFUSALS: Final = frozenset({400, 500})
_BUCKET_DEDUPE_SECONDS: Final = 120.0


def stream_config(row: Stream, replicas: int) -> dict[str, Any]:
    """A stream."""
    return {
        "name": row.name,
        "description": row.use,
        "subjects": [*row.subjects],
        "retention": row.retention.value,
        "discard": row.discard.value,
        "storage": "file",
        "max_age": int(row.max_age_seconds * _NANOS),
        "max_bytes": row.max_bytes,
        "max_msg_size": row.max_message_bytes,
        "duplicate_window": int(row.dedupe_window_seconds * _NANOS),
        "num_replicas": replicas,
        "allow_direct": False,
    }


def bucket_config(row: Bucket, replicas: int) -> dict[str, Any]:
    """A bucket: the layout of JetStream's key-value stores, one revision per key, direct get off."""
    ttl = row.ttl_seconds
    config = {
        "name": bucket_stream(row.name),
        "description": row.use,
        "subjects": [f"$KV.{row.name}.>"],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "max_age": int((ttl or 0) * _NANOS),
        "max_bytes": row.max_bytes,
        "max_msg_size": row.max_value_bytes + _HEADER_ROOM_BYTES,
        "max_msgs_per_subject": 1,
        "duplicate_window": int(min(_BUCKET_DEDUPE_SECONDS, ttl or _BUCKET_DEDUPE_SECONDS) * _NANOS),
        "num_replicas": replicas,
        "allow_direct": False,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        # Deletion markers go away by themselves, and expired keys leave one.
        "allow_msg_ttl": True,
    }
    if ttl is not None:
        config["subject_delete_marker_ttl"] = MARKER_SECONDS * _NANOS
    return config


def object_store_config(row: ObjectStore, replicas: int) -> dict[str, Any]:
    """An object store."""
    return {
        "name": object_stream(row.name),
        "description": row.use,
        "subjects": [f"$O.{row.name}.C.>", f"$O.{row.name}.M.>"],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "max_age": int((row.ttl_seconds or 0) * _NANOS),
        "max_bytes": row.max_bytes,
        "num_replicas": replicas,
        "allow_direct": False,
        "allow_rollup_hdrs": True,
    }


async def declare(wire: Wire, config: dict[str, Any]) -> None:
    """Creates a stream, or changes what differs.

    Raises:
        FailedPrecondition: it exists and cannot be changed so.
        Unavailable: the broker does not answer, or has too few servers.
    """
    name = config["name"]
    try:
        try:
            present = (await call(wire, f"STREAM.INFO.{name}"))["config"]
        except ApiError as error:
            if not is_missing(error):
                raise
            await call(wire, f"STREAM.CREATE.{name}", config)
            return
        # Zero values are left out of answers.
        changed = sorted(key for key, value in config.items() if present.get(key, _zero(value)) != value)
        if changed:
            _log.info("stream %s: changing %s", name, ", ".join(changed))
            await call(wire, f"STREAM.UPDATE.{name}", present | config)
    except ApiError as error:
        if error.code not in _REFUSALS:
            raise error.typed() from None
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID,
            f"the broker refuses the configuration of {name}: {error.description}",
            metadata={"stream": name, "broker_code": str(error.err_code)},
        ) from None


def _zero(value: object) -> object:
    return type(value)() if isinstance(value, bool | int | str) else None
