"""Model servers that fail to end, fall silent or never stop: the client ends each within its bound, and says why.

On a real Triton, with a model that misbehaves as it is told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from forerun.core.race_replicas import Fault
from forerun.runtime.errors import DeadlineExceeded, ErrorReason, ForerunError, NotFound
from forerun.runtime.kserve import MESSAGE_BYTES, Inference, KServeClient, Response, StreamBounds, Tensor
from forerun.runtime.models.errors import ModelError
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.port import Deadlines, Message, ModelRequest
from forerun.serving.render.repository import place
from forerun.serving.server import Installation, Options, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
name: "%s"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "PROMPT" data_type: TYPE_INT32 dims: -1 }
input { name: "OPTIONS" data_type: TYPE_STRING dims: 1 }
output { name: "EVENT" data_type: TYPE_STRING dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""

# What it does is the first token of the prompt. `told` is how many of its requests it was told to stop.
MODEL = """
import asyncio, json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.told = 0

    async def execute(self, requests):
        await asyncio.gather(*(self.serve(one) for one in requests))

    async def serve(self, request):
        sender = request.get_response_sender()
        what = int(pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)[0])
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if what == 1:  # ends without a word
            sender.send(flags=final)
            return
        if what == 5:
            sender.send(self.event(told=self.told))
            sender.send(flags=final)
            return
        for _ in range(3):
            sender.send(self.event())
        while not sender.is_cancelled():
            if what == 3:  # never ends
                sender.send(self.event())
            await asyncio.sleep(0.01)  # otherwise: silent
        self.told += 1
        sender.send(flags=final)

    def event(self, **more):
        text = json.dumps({"tokens": [1], "text": "x", **more})
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("EVENT", np.array([text], dtype=np.object_))])
"""
CHAT = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for one in requests:
            asked = json.loads(pb_utils.get_input_tensor_by_name(one, "REQUEST").as_numpy()[0])
            token = np.array([int(asked["messages"][0]["content"])], np.int32)
            found.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TOKENS", token)]))
        return found
"""
CHAT_CONFIG = """
name: "chat"
backend: "python"
max_batch_size: 0
input { name: "REQUEST" data_type: TYPE_STRING dims: 1 }
output { name: "TOKENS" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 1 kind: KIND_CPU }
"""
ENDS_SILENTLY, GOES_SILENT, NEVER_ENDS, TELLS = 1, 2, 3, 5
BOUNDS = StreamBounds(first_seconds=20, idle_seconds=0.5, total_seconds=2.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bad(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KServeClient]:
    folder = tmp_path_factory.mktemp("bad")
    repository = folder / "repository"
    repository.mkdir()
    files = {
        "speculative/config.pbtxt": CONFIG % "speculative",
        "speculative/1/model.py": MODEL,
        "chat/config.pbtxt": CHAT_CONFIG,
        "chat/1/model.py": CHAT,
    }
    place(files, repository).keep()
    async with running(installation, repository, folder / "log", Options(stop_seconds=2.0)) as server:
        for model in ("chat", "speculative"):
            await server.client.load(model)
        yield server.client


def asked(what: int, model: str = "speculative") -> Inference:
    return Inference(model=model, inputs=[Tensor("PROMPT", "INT32", [what]), Tensor("OPTIONS", "BYTES", [b"{}"])])


async def read(client: KServeClient, what: int, bounds: StreamBounds = BOUNDS) -> list[Response]:
    async with aclosing(client.stream(asked(what), bounds)) as responses:
        return [one async for one in responses]


async def told(client: KServeClient) -> int:
    """How many streams the model was told to stop."""
    (response,) = await read(client, TELLS)
    (content,) = response.tensors["EVENT"].values
    assert isinstance(content, bytes)
    return int(json.loads(content)["told"])


async def stopped(client: KServeClient, before: int) -> None:
    """Until the model has heard of one more cancellation."""
    async with asyncio.timeout(10):
        while await told(client) <= before:
            pass


async def test_an_end_without_a_word_is_an_end(bad: KServeClient) -> None:
    assert await read(bad, ENDS_SILENTLY) == []


@pytest.mark.parametrize(
    ("what", "bounds", "bound"),
    [
        (GOES_SILENT, BOUNDS, "idle_seconds"),
        (NEVER_ENDS, BOUNDS, "total_seconds"),
        (NEVER_ENDS, StreamBounds(idle_seconds=5, responses=20), "responses"),
    ],
)
async def test_a_stream_without_an_end_is_ended_at_its_bound_and_the_model_hears_it(
    bad: KServeClient, what: int, bounds: StreamBounds, bound: str
) -> None:
    before = await told(bad)
    with pytest.raises(DeadlineExceeded) as caught:
        await read(bad, what, bounds)
    assert caught.value.metadata["bound"] == bound
    await stopped(bad, before)


async def test_leaving_a_stream_early_tells_the_model(bad: KServeClient) -> None:
    before = await told(bad)
    async with aclosing(bad.stream(asked(NEVER_ENDS), BOUNDS)) as responses:
        await anext(responses)
    await stopped(bad, before)


async def test_an_unknown_model_is_said_to_be_unknown(bad: KServeClient) -> None:
    with pytest.raises(NotFound):
        async with aclosing(bad.stream(asked(1, "nobody"), BOUNDS)) as responses:
            await anext(responses)


async def test_a_server_that_is_not_there_is_unavailable_at_once() -> None:
    client = KServeClient("127.0.0.1:1")
    try:
        with pytest.raises(ForerunError) as caught:
            await client.infer(asked(1), seconds=5.0)
        assert caught.value.reason is ErrorReason.PEER_UNAVAILABLE
        assert not await client.live()
    finally:
        await client.close()


@pytest.mark.parametrize(("what", "limit"), [(GOES_SILENT, "between_tokens"), (NEVER_ENDS, "total")])
async def test_behind_the_model_port_each_deadline_is_named(bad: KServeClient, what: int, limit: str) -> None:
    model = ServedModel("served", bad)
    request = ModelRequest(messages=(Message("user", str(what)),))
    deadlines = Deadlines(first_token=20.0, between_tokens=0.5, total=2.0)
    before = await told(bad)
    with pytest.raises(ModelError) as caught:
        async for _ in model.generate(request, deadlines):
            pass
    assert caught.value.error.reason is ErrorReason.MODEL_TIMEOUT
    assert caught.value.error.metadata["limit"] == limit
    assert caught.value.failed.fault is Fault.SLOW
    await stopped(bad, before)


async def test_a_conversation_that_fits_into_no_message_is_refused_and_its_server_is_well(bad: KServeClient) -> None:
    model = ServedModel("served", bad)
    request = ModelRequest(messages=(Message("user", "w1 " * (MESSAGE_BYTES // 3 + 1)),))
    with pytest.raises(ModelError) as caught:
        async for _ in model.generate(request, Deadlines()):
            pass
    assert caught.value.error.reason is ErrorReason.MODEL_REFUSED
    assert str(MESSAGE_BYTES) in caught.value.error.message
    assert caught.value.failed.fault is Fault.REFUSED


async def test_an_end_without_finish_is_no_answer(bad: KServeClient) -> None:
    model = ServedModel("served", bad)
    request = ModelRequest(messages=(Message("user", str(ENDS_SILENTLY)),))
    with pytest.raises(ModelError) as caught:
        async for _ in model.generate(request, Deadlines()):
            pass
    assert caught.value.error.reason is ErrorReason.MODEL_UNAVAILABLE
