import pickle

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from forerun.runtime import errors
from forerun.runtime.errors import (
    Aborted,
    Bug,
    ErrorReason,
    ForerunError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    from_rpc_error,
    from_rpc_status,
    to_rpc_status,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ForerunError)]


def rpc_error(code: grpc.StatusCode, text: str, status: bytes | None = None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata() if status is None else grpc.aio.Metadata(("grpc-status-details-bin", status))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ForerunError])
def test_every_kind_survives_the_wire(kind: type[ForerunError]) -> None:
    sent = kind(ErrorReason.BUDGET_EXHAUSTED, "no credits", metadata={"limit": "3"}, retry_after_seconds=2.25)
    got = from_rpc_error(rpc_error(sent.code, sent.message, to_rpc_status(sent).SerializeToString()))
    assert type(got) is kind
    assert (got.reason, got.message, got.metadata, got.retry_after_seconds) == (
        ErrorReason.BUDGET_EXHAUSTED,
        "no credits",
        {"limit": "3"},
        2.25,
    )


def test_codes_are_distinct() -> None:
    kinds = [kind for kind in KINDS if kind is not ForerunError]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_every_reason_is_its_own_name() -> None:
    assert all(reason.value == reason.name for reason in ErrorReason)


def test_an_unknown_exception_tells_nothing_but_that_it_happened() -> None:
    status = to_rpc_status(ValueError("password=hunter2"))
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert b"hunter2" not in status.SerializeToString()


def test_retry_info_is_sent_only_where_it_is_known() -> None:
    assert len(to_rpc_status(Unavailable(ErrorReason.PEER_UNAVAILABLE, "down")).details) == 1
    status = to_rpc_status(ResourceExhausted(ErrorReason.RATE_LIMITED, "slow down", retry_after_seconds=120))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.seconds == 120


def test_long_metadata_values_are_cut() -> None:
    error = from_rpc_status(
        to_rpc_status(InvalidArgument(ErrorReason.ARGUMENT_INVALID, "x", metadata={"a": "y" * 999}))
    )
    assert error.metadata["a"] == "y" * 256


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable, ErrorReason.PEER_UNAVAILABLE),
        (grpc.StatusCode.CANCELLED, Unavailable, ErrorReason.CALL_INTERRUPTED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted, ErrorReason.UNKNOWN),
        (grpc.StatusCode.UNKNOWN, Bug, ErrorReason.UNKNOWN),
        (grpc.StatusCode.NOT_FOUND, NotFound, ErrorReason.UNKNOWN),
    ],
)
def test_transport_errors_get_a_reason(code: grpc.StatusCode, kind: type[ForerunError], reason: ErrorReason) -> None:
    error = from_rpc_error(rpc_error(code, "text of the transport"))
    assert type(error) is kind
    assert error.reason is reason
    assert error.message == "text of the transport"


def test_a_reason_of_a_newer_version_is_unknown_and_keeps_the_class() -> None:
    status = to_rpc_status(NotFound(ErrorReason.NOT_FOUND, "gone"))
    info = error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain="forerun")
    del status.details[:]
    status.details.add().Pack(info)
    error = from_rpc_status(status)
    assert type(error) is NotFound
    assert error.reason is ErrorReason.UNKNOWN


def test_foreign_and_broken_details_are_ignored() -> None:
    status = status_pb2.Status(code=grpc.StatusCode.ABORTED.value[0], message="m")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="elsewhere.example"))
    assert from_rpc_status(status).reason is ErrorReason.UNKNOWN
    assert from_rpc_error(rpc_error(grpc.StatusCode.ABORTED, "m", b"\xff\xff not a proto")).message == "m"


class Special(Aborted):
    def __init__(self, expected: int) -> None:
        super().__init__(ErrorReason.SEQUENCE_MISMATCH, "moved on")
        self.expected = expected


def test_errors_survive_pickling_also_of_subclasses() -> None:
    error = pickle.loads(pickle.dumps(Special(7)))
    assert (type(error), error.expected, error.reason, str(error)) == (
        Special,
        7,
        ErrorReason.SEQUENCE_MISMATCH,
        "moved on",
    )


def test_the_transports_size_error_names_size_and_limit() -> None:
    text = "CLIENT: Received message larger than max (5000000 vs. 4194304)"
    error = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert (type(error), error.reason) == (ResourceExhausted, ErrorReason.MESSAGE_TOO_LARGE)
    assert error.metadata == {"limit": "MESSAGE_BYTES", "size_bytes": "5000000", "limit_bytes": "4194304"}
    assert "chunks" in error.message
