"""A typed client of a model server that speaks KServe v2 over gRPC: NVIDIA Triton.

Every unary call has a deadline. A stream has three bounds, because a server may stop answering in three ways: it never
says anything (`first_seconds`), it falls silent (`idle_seconds`), or it never ends (`total_seconds`). Leaving a stream
in any way cancels it at the server. The final marker is always asked for: a decoupled model may end without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from forerun.runtime.errors import (
    DeadlineExceeded,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    from_rpc_error,
)
from kserve_v2 import inference_pb2 as pb
from kserve_v2.inference_pb2_grpc import GRPCInferenceServiceStub

Value = int | float | bool | bytes
_CODES: Final[Mapping[str, str]] = {"INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f", "FP64": "d"}
_FINAL: Final = "triton_final_response"
_ASK_FINAL: Final = "triton_enable_empty_final_response"
_QUEUE_FULL: Final = "maximum queue size"
_DEAD_BACKEND: Final = ("is not healthy", "Stub process", "failed to send IPC")
_TOO_LARGE: Final = "message larger than max"
_END_SECONDS: Final = 5.0
MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""One message to or from a model server: token ids and texts, never logits."""
CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
"""Arguments of a channel. No keepalive: a Triton server takes one ping in five minutes and none without a call, unless
it was started otherwise, and a connection that broke is noticed by the bounds of the calls."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    Attributes:
        name: The model's name of it.
        datatype: INT32, INT64, UINT64, FP32, FP64, BOOL or BYTES.
        values: In row-major order; BYTES are bytes.
        shape: None: one dimension.
    """

    name: str
    datatype: str
    values: Sequence[Value]
    shape: tuple[int, ...] | None = None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape."""
        return (len(self.values),) if self.shape is None else self.shape


@dataclass(frozen=True, slots=True)
class Response:
    """One response of a model.

    Attributes:
        tensors: Outputs by name.
        final: Nothing follows.
        version: Of the model that answered.
    """

    tensors: Mapping[str, Tensor]
    final: bool
    version: str = ""

    @property
    def empty(self) -> bool:
        """It carries nothing but the final marker."""
        return not self.tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """When a stream counts as lost.

    Attributes:
        first_seconds: Until the first response; covers queueing and the prompt.
        idle_seconds: Between two responses.
        total_seconds: From start to final marker.
        responses: At most so many; a model that never ends is stopped by count, too.
    """

    first_seconds: float = 60.0
    idle_seconds: float = 15.0
    total_seconds: float = 600.0
    responses: int = 100_000


@dataclass(frozen=True, slots=True)
class ModelState:
    """A version of a model in the server's repository.

    Attributes:
        name: Of the model.
        version: Empty where it was never loaded.
        state: READY, LOADING, UNLOADING, UNAVAILABLE; empty where it was never loaded.
        reason: Why it is not ready.
    """

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        """Loaded, as the server believes."""
        return self.state == "READY"


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which sequence a request belongs to.

    Attributes:
        id: Above 0.
        start: Its first request.
        end: Its last one.
    """

    id: int
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """One request.

    Attributes:
        model: Its name.
        inputs: In any order.
        version: Empty: the newest.
        id: Echoed by the server, for logs.
        sequence: For stateful models.
        parameters: Further parameters of the request.
    """

    model: str
    inputs: Sequence[Tensor]
    version: str = ""
    id: str = ""
    sequence: SequenceStep | None = None
    parameters: Mapping[str, bool | int | str] = field(default_factory=dict)


class KServeClient:
    """Asks one model server.

    Args:
        address: `host:port` of its gRPC endpoint.
        default_seconds: Deadline of a unary call without one of its own.
    """

    def __init__(self, address: str, *, default_seconds: float = 10.0) -> None:
        self.address = address
        self._default_seconds = default_seconds
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Cancels what runs and closes the connection."""
        await self._channel.close()

    async def live(self, *, seconds: float = 1.0) -> bool:
        """Whether a server answers at the address."""
        try:
            return (await self._stub.ServerLive(pb.ServerLiveRequest(), timeout=seconds)).live
        except grpc.aio.AioRpcError:
            return False

    async def says_ready(self, model: str, version: str = "", *, seconds: float = 1.0) -> bool:
        """Whether the server believes that a model is loaded. It does not notice a dead backend process."""
        try:
            asked = pb.ModelReadyRequest(name=model, version=version)
            return (await self._stub.ModelReady(asked, timeout=seconds)).ready
        except grpc.aio.AioRpcError:
            return False

    async def infer(self, asked: Inference, *, seconds: float | None = None) -> Response:
        """The response of a model that gives exactly one.

        Raises:
            ForerunError: Typed; `backend_died` tells whether the model's process is gone.
        """
        try:
            done = await self._stub.ModelInfer(_request(asked), timeout=seconds or self._default_seconds)
        except grpc.aio.AioRpcError as error:
            raise _typed(error, asked.model) from error
        return _response(done)

    async def stream(self, asked: Inference, bounds: StreamBounds | None = None) -> AsyncGenerator[Response, None]:
        """The responses of a decoupled model, until its final marker.

        Close the iterator (`contextlib.aclosing`) or cancel the task to stop early: the server hears of it.

        Raises:
            DeadlineExceeded: A bound was reached; the metadata names it.
            ForerunError: The model or the server failed.
        """
        limits = StreamBounds() if bounds is None else bounds
        asked = _asking_for_the_end(asked)

        async def once() -> AsyncIterator[pb.ModelInferRequest]:
            yield _request(asked)

        call = self._stub.ModelStreamInfer(once(), timeout=limits.total_seconds)
        try:
            async with aclosing(_read(call, asked.model, limits)) as responses:
                async for response in responses:
                    if not response.empty:
                        yield response
                    if response.final:
                        await _ended(call)
                        return
        finally:
            call.cancel()

    async def index(self, *, seconds: float = 5.0) -> list[ModelState]:
        """Every model of the repository and its state."""
        try:
            found = await self._stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise _typed(error, "") from error
        return [ModelState(one.name, one.version, one.state, one.reason) for one in found.models]

    async def load(self, model: str, *, seconds: float = 300.0) -> None:
        """Loads a model, or what changed of it. An error leaves the versions that served before.

        Raises:
            FailedPrecondition: It cannot be loaded; the message says why.
        """
        asked = pb.RepositoryModelLoadRequest(model_name=model)
        try:
            await self._stub.RepositoryModelLoad(asked, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise _typed(error, model) from error

    async def unload(self, model: str, *, seconds: float = 30.0) -> None:
        """Unloads a model; requests that run end first."""
        asked = pb.RepositoryModelUnloadRequest(model_name=model)
        try:
            await self._stub.RepositoryModelUnload(asked, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise _typed(error, model) from error


async def _ended(call: grpc.aio.StreamStreamCall[pb.ModelInferRequest, pb.ModelStreamInferResponse]) -> None:
    """Waits for the end of a stream whose answer, or error, is there.

    Cancelling a stream that has just ended can leave its request counted as running for ever, and its model can then
    never be unloaded.
    """
    with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
        async with asyncio.timeout(_END_SECONDS):  # whoever leaves the stream open is cancelled
            while await call.read() is not grpc.aio.EOF:
                pass  # after an error comes the final marker


def backend_died(error: ForerunError) -> bool:
    """Whether an inference failed because the model's process is gone, which the server does not heal by itself."""
    return any(words in error.message for words in _DEAD_BACKEND)


async def _read(
    call: grpc.aio.StreamStreamCall[pb.ModelInferRequest, pb.ModelStreamInferResponse], model: str, limits: StreamBounds
) -> AsyncGenerator[Response, None]:
    wait, bound, count = limits.first_seconds, "first_seconds", 0
    while True:
        try:
            async with asyncio.timeout(wait):
                message = await call.read()
        except TimeoutError:
            raise _overdue(model, bound, wait) from None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise _overdue(model, "total_seconds", limits.total_seconds) from error
            raise _typed(error, model) from error
        if isinstance(message, pb.ModelStreamInferResponse):
            if message.error_message:
                await _ended(call)
                raise _from_words(message.error_message, model)
            count += 1
            if count > limits.responses:
                raise _overdue(model, "responses", limits.responses)
            yield _response(message.infer_response)
            wait, bound = limits.idle_seconds, "idle_seconds"
            continue
        raise Unavailable(
            ErrorReason.CALL_INTERRUPTED,
            f"the stream of {model} ended without its final marker",
            metadata={"model": model},
        )


def _overdue(model: str, bound: str, limit: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        ErrorReason.DEADLINE_EXCEEDED,
        f"the stream of {model} was cancelled at its bound {bound} = {limit:g}",
        metadata={"model": model, "bound": bound, "limit": f"{limit:g}"},
    )


def _typed(error: grpc.aio.AioRpcError, model: str) -> ForerunError:
    words = error.details() or ""
    if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return from_rpc_error(error)
    if error.code() is grpc.StatusCode.UNAVAILABLE and _QUEUE_FULL not in words:
        return from_rpc_error(error)
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(ErrorReason.NOT_FOUND, words, metadata={"model": model})
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in words:
        return InvalidArgument(
            ErrorReason.MESSAGE_TOO_LARGE,
            f"{model}: a prompt or an answer of more than {MESSAGE_BYTES} bytes in one message",
            metadata={"model": model},
        )
    return _from_words(words, model)


def _from_words(words: str, model: str) -> ForerunError:
    """Triton tells most failures by words only, and in a stream it has no status at all."""
    metadata = {"model": model}
    if _QUEUE_FULL in words:
        return ResourceExhausted(ErrorReason.QUEUE_FULL, f"{model}: {words}", metadata=metadata)
    if "unknown model" in words or "is not found" in words:
        return NotFound(ErrorReason.NOT_FOUND, f"{model}: {words}", metadata=metadata)
    if any(text in words for text in _DEAD_BACKEND):
        return Unavailable(ErrorReason.PEER_UNAVAILABLE, f"{model}: {words}", metadata=metadata)
    if words.startswith("refused: "):
        return InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"{model}: {words}", metadata=metadata)
    return FailedPrecondition(ErrorReason.STATE_CONFLICT, f"{model}: {words}", metadata=metadata)


# ---------------------------------------------------------------- the wire


def _asking_for_the_end(asked: Inference) -> Inference:
    return Inference(
        model=asked.model,
        inputs=asked.inputs,
        version=asked.version,
        id=asked.id,
        sequence=asked.sequence,
        parameters={**asked.parameters, _ASK_FINAL: True},
    )


def _request(asked: Inference) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=asked.model, model_version=asked.version, id=asked.id)
    for tensor in asked.inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.dimensions)
        request.raw_input_contents.append(_packed(tensor))
    if asked.sequence is not None:
        request.parameters["sequence_id"].int64_param = asked.sequence.id
        request.parameters["sequence_start"].bool_param = asked.sequence.start
        request.parameters["sequence_end"].bool_param = asked.sequence.end
    for name, value in asked.parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].string_param = value
    return request


def _response(message: pb.ModelInferResponse) -> Response:
    tensors = {
        output.name: Tensor(output.name, output.datatype, _unpacked(output.datatype, raw), tuple(output.shape))
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    # Models that give exactly one response do not mark it.
    final = message.parameters[_FINAL].bool_param if _FINAL in message.parameters else False
    return Response(tensors, final, message.model_version)


def _packed(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(one)) + one for one in tensor.values if isinstance(one, bytes))
    if tensor.datatype == "BOOL":
        return bytes(bool(one) for one in tensor.values)
    return struct.pack(f"<{len(tensor.values)}{_CODES[tensor.datatype]}", *tensor.values)


def _unpacked(datatype: str, raw: bytes) -> Sequence[Value]:
    if datatype == "BOOL":
        return [byte != 0 for byte in raw]
    if datatype != "BYTES":
        return array(_CODES[datatype], raw)
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found
