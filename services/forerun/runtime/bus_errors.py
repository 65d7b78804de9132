"""What goes wrong at the bus, beyond the errors that every part has."""

from __future__ import annotations

from forerun.runtime.errors import Aborted, Bug, ErrorReason, InvalidArgument, Unavailable


class SequenceMismatch(Aborted):
    """An append was refused because its subject moved on: somebody else wrote to it. Nothing was stored.

    Attributes:
        expected: The sequence that the caller expected to be the subject's last one.
        actual: The real one, where the broker tells it.
    """

    def __init__(self, expected: int, actual: int | None = None) -> None:
        metadata = {"expected": str(expected)} | ({} if actual is None else {"actual": str(actual)})
        super().__init__(
            ErrorReason.SEQUENCE_MISMATCH, "the stream moved on: another writer appended to it", metadata=metadata
        )
        self.expected = expected
        self.actual = actual


class KeyConflict(Aborted):
    """A create or update was refused because the key changed since it was read, or exists. Nothing was stored."""

    def __init__(self, bucket: str) -> None:
        super().__init__(
            ErrorReason.REVISION_CONFLICT, f"a key of {bucket!r} changed since it was read", metadata={"bucket": bucket}
        )


class MessageTooLarge(InvalidArgument):
    """A message, headers included, is above the limit. Nothing was sent; the connection is unharmed."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            ErrorReason.MESSAGE_TOO_LARGE,
            f"a message of {size_bytes} bytes, headers included, is above BUS_MESSAGE_BYTES ({limit_bytes}); "
            "put the body into objects() and send its digest",
            metadata={"limit": "BUS_MESSAGE_BYTES", "size_bytes": str(size_bytes), "limit_bytes": str(limit_bytes)},
        )


class AppendUncertain(Unavailable):
    """No acknowledgement came: the broker may or may not have stored the message.

    Repeat the append with the same `message_id` (and the same expected sequence): within the stream's dedupe window
    it is stored once and the answer is the sequence of the stored one.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorReason.BROKER_UNAVAILABLE, message, metadata={"stored": "unknown"})


class DigestMismatch(Bug):
    """Stored bytes are not those of their digest: they are never handed out."""

    def __init__(self, bucket: str, digest: str) -> None:
        super().__init__(
            ErrorReason.SNAPSHOT_CORRUPT,
            f"an object in {bucket!r} does not match its digest",
            metadata={"bucket": bucket, "digest": digest},
        )


class Poison(Exception):
    """Raised by a handler: this message can never be processed. It goes to the dead letters at once.

    Args:
        reason: A short constant such as `unknown_event_version`. It is stored with the dead letter, so it must hold
            nothing of the message's content.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
