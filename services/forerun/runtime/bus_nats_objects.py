"""Objects on NATS: content by digest in chunks, in the streams of JetStream's object stores.

A store's stream holds `$O.<store>.C.<tenant>.<upload>` for the numbered chunks of one upload, and
`$O.<store>.M.<tenant>.<sha256>` for the description of an object. Each upload has its own subject, so that two who
store the same content at the same time do not mix their chunks; the first one's description wins and the other's
chunks are removed. The tenant is a token of its own, so that a tenant is erased with one request.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from forerun.runtime import bus_digest, bus_headers, subjects
from forerun.runtime.bus_digest import digest_of, hexadecimal
from forerun.runtime.bus_errors import DigestMismatch
from forerun.runtime.bus_nats_api import ApiError, append, append_error, call, is_conflict, stored_message
from forerun.runtime.bus_nats_read import Read, collect
from forerun.runtime.bus_nats_wire import Wire
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, ForerunError, NotFound
from forerun.runtime.topology import ObjectStore

_CHUNK_BYTES: Final = 128 * 1024
_CHUNKS_IN_FLIGHT: Final = 8
_CHUNK_NUMBER: Final = "Forerun-Chunk"
_MAX_OBJECTS: Final = 1_000_000


def stream_name(store: str) -> str:
    """The stream behind an object store."""
    return f"OBJ_{store}"


@dataclass(frozen=True, slots=True)
class _Description:
    upload: str
    size_bytes: int
    stored_at_seconds: float
    sequence: int


class NatsObjects:
    """See `Objects`."""

    def __init__(self, wire: Wire, row: ObjectStore, clock: Clock) -> None:
        self._wire = wire
        self._row = row
        self._clock = clock
        self._stream = stream_name(row.name)

    async def put(self, data: bytes, tenant: str) -> str:
        """See `Objects`."""
        digest = await digest_of(data)
        present = await self._describe(digest, tenant)
        if present is not None and not self._expires_soon(present):
            return digest
        upload = self._wire.unique_name()
        try:
            await self._send_chunks(data, self._chunks(tenant, upload))
            won = await self._publish_description(digest, tenant, upload, len(data), present)
        except BaseException:
            await self._remove_quietly(self._chunks(tenant, upload))
            raise
        # Either another upload was first, or ours replaces one that would have expired.
        if not won:
            await self._purge(self._chunks(tenant, upload))
        elif present is not None:
            await self._purge(self._chunks(tenant, present.upload))
        return digest

    async def get(self, digest: str, tenant: str) -> bytes:
        """See `Objects`."""
        description = await self._describe(digest, tenant)
        if description is None:
            raise self._missing(digest)
        data = await self._receive(self._chunks(tenant, description.upload), description.size_bytes)
        if len(data) < description.size_bytes:
            # Chunks gone, description still there: it expires or is deleted just now.
            raise self._missing(digest)
        if await digest_of(data) != digest:
            raise DigestMismatch(self._row.name, digest)
        return data

    async def delete(self, digest: str, tenant: str) -> None:
        """See `Objects`."""
        description = await self._describe(digest, tenant)
        if description is not None:
            await self._purge(self._meta(digest, tenant))
            await self._purge(self._chunks(tenant, description.upload))

    async def digests(self, tenant: str) -> list[str]:
        """See `Objects`."""
        config = {
            "filter_subject": f"$O.{self._row.name}.M.{subjects.token(tenant)}.*",
            "deliver_policy": "last_per_subject",
            "headers_only": True,
        }
        read = await self._collect(config, _MAX_OBJECTS)
        return sorted(bus_digest.PREFIX + item.subject.rsplit(".", 1)[1] for item in read)

    async def erase(self, tenant: str) -> None:
        """See `Objects`."""
        await self._purge(f"$O.{self._row.name}.*.{subjects.token(tenant)}.>")

    async def _send_chunks(self, data: bytes, subject: str) -> None:
        view = memoryview(data)
        for first in range(0, len(data), _CHUNK_BYTES * _CHUNKS_IN_FLIGHT):
            last = min(first + _CHUNK_BYTES * _CHUNKS_IN_FLIGHT, len(data))
            window = [
                self._append(
                    subject,
                    bytes(view[start : start + _CHUNK_BYTES]),
                    bus_headers.block(f"{_CHUNK_NUMBER}: {start // _CHUNK_BYTES}\r\n"),
                )
                for start in range(first, last, _CHUNK_BYTES)
            ]
            for result in await asyncio.gather(*window, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def _append(self, subject: str, data: bytes, block: bytes) -> int:
        bound = self._wire.options.request_timeout_seconds
        try:
            return await append(self._wire, subject, data, block, timeout_seconds=bound)
        except ApiError as error:
            if is_conflict(error):
                raise
            raise append_error(error, size_bytes=len(data), expected_last_sequence=None) from None

    async def _publish_description(
        self, digest: str, tenant: str, upload: str, size_bytes: int, replaced: _Description | None
    ) -> bool:
        description = {"upload": upload, "size": size_bytes, "stored_at": self._clock.now()}
        expected = replaced.sequence if replaced else 0
        block = bus_headers.block(f"{bus_headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: {expected}\r\nNats-Rollup: sub\r\n")
        try:
            await self._append(self._meta(digest, tenant), json.dumps(description).encode(), block)
        except ApiError:
            return False
        return True

    async def _receive(self, subject: str, size_bytes: int) -> bytes:
        if size_bytes == 0:
            return b""
        chunks = -(-size_bytes // _CHUNK_BYTES)
        read = await self._collect({"filter_subject": subject, "deliver_policy": "all"}, chunks)
        return b"".join(item.data for item in sorted(read, key=_chunk_number))

    async def _collect(self, config: dict[str, Any], limit: int) -> list[Read]:
        try:
            return await collect(self._wire, self._stream, config, limit=limit, complete=lambda item: item.pending == 0)
        except ApiError as error:
            raise error.typed() from None

    async def _describe(self, digest: str, tenant: str) -> _Description | None:
        stored = await stored_message(self._wire, self._stream, {"last_by_subj": self._meta(digest, tenant)})
        if stored is None:
            return None
        fields = json.loads(stored.data)
        return _Description(str(fields["upload"]), int(fields["size"]), float(fields["stored_at"]), stored.sequence)

    def _expires_soon(self, description: _Description) -> bool:
        ttl = self._row.ttl_seconds
        return ttl is not None and self._clock.now() - description.stored_at_seconds > ttl / 2

    async def _purge(self, subject: str) -> None:
        try:
            await call(self._wire, f"STREAM.PURGE.{self._stream}", {"filter": subject})
        except ApiError as error:
            raise error.typed() from None

    async def _remove_quietly(self, subject: str) -> None:
        try:
            await self._purge(subject)
        except ForerunError:
            return  # the store's age limit, or the tenant's erasure, takes what was left behind

    def _chunks(self, tenant: str, upload: str) -> str:
        return f"$O.{self._row.name}.C.{subjects.token(tenant)}.{upload}"

    def _meta(self, digest: str, tenant: str) -> str:
        return f"$O.{self._row.name}.M.{subjects.token(tenant)}.{hexadecimal(digest)}"

    def _missing(self, digest: str) -> NotFound:
        return NotFound(
            ErrorReason.NOT_FOUND, f"no object of this digest in {self._row.name!r}", metadata={"digest": digest}
        )


def _chunk_number(chunk: Read) -> int:
    return int(bus_headers.parse(chunk.header_block or b"").get(_CHUNK_NUMBER, "0"))
