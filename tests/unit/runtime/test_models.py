"""Models of a policy file, and the bound on what one process sends to one provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.protobuf import json_format

from forerun.core import limits
from forerun.core.race import Race
from forerun.core.tokens import TokenPrices, Usage
from forerun.runtime.errors import ErrorReason, NotFound
from forerun.runtime.models.catalogue import Model, Provider, models_of
from forerun.runtime.models.endpoints import Endpoint, Endpoints
from forerun.runtime.models.errors import ModelError
from forerun.runtime.models.models import Models
from forerun.runtime.models.port import Deadlines, ModelEvent, ModelRequest
from forerun.runtime.policy import PolicyError, policies_of
from forerun.v1 import policy_pb2

PROVIDER: dict[str, Any] = {"name": "p", "url": "https://api.example/v1/"}


def file_of(*models: dict[str, Any]) -> policy_pb2.PolicyFile:
    return json_format.ParseDict({"models": list(models)}, policy_pb2.PolicyFile())


def test_a_provider_has_cautious_defaults_and_a_model_its_replicas_in_order() -> None:
    (model,) = policies_of(
        file_of({"name": "m", "race": {}, "providers": [PROVIDER, PROVIDER | {"name": "q", "model": "other"}]})
    ).models
    assert (model.name, model.race, [one.name for one in model.providers]) == ("m", Race(), ["p", "q"])
    first, second = model.providers
    assert first == Provider(name="p", url="https://api.example/v1", model="m", deadlines=Deadlines())
    assert (first.max_output_tokens, first.max_response_bytes, first.concurrency) == (4_096, 4 << 20, 64)
    assert second.model == "other"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"name": "m"}, "needs 1 to 16 providers"),
        ({"name": "m", "providers": [PROVIDER | {"name": str(n)} for n in range(17)]}, "needs 1 to 16 providers"),
        ({"name": "", "providers": [PROVIDER]}, "needs a name"),
        ({"name": "m", "providers": [PROVIDER, PROVIDER]}, "named twice"),
        ({"name": "m", "providers": [PROVIDER | {"url": "ftp://x"}]}, "url: must be http"),
        ({"name": "m", "providers": [PROVIDER | {"url": "http://u:pw@x/v1"}]}, "must not hold a password"),
        ({"name": "m", "providers": [PROVIDER | {"url": "http://[x"}]}, "url: is no address"),
        ({"name": "m", "providers": [PROVIDER | {"inputPrice": -1}]}, "input_price"),
        ({"name": "m", "providers": [PROVIDER | {"outputPrice": "NaN"}]}, "output_price"),
        ({"name": "m", "providers": [PROVIDER | {"timeoutSeconds": 0}]}, "timeout_seconds"),
        ({"name": "m", "providers": [PROVIDER | {"firstTokenSeconds": 4_000}]}, "first_token_seconds"),
        ({"name": "m", "providers": [PROVIDER | {"maxOutputTokens": 1_000_001}]}, "max_output_tokens: must be 1 to"),
        ({"name": "m", "providers": [PROVIDER | {"maxResponseBytes": 0}]}, "max_response_bytes"),
        ({"name": "m", "providers": [PROVIDER | {"concurrency": 4_097}]}, "concurrency: must be 1 to 4096"),
        ({"name": "m", "race": {"mostExtra": 2}, "providers": [PROVIDER]}, "race.most_extra"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_with_its_place(model: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError) as raised:
        policies_of(file_of(model))
    assert says in raised.value.message and "pw@" not in raised.value.message


def test_two_models_share_no_name_and_no_provider() -> None:
    _, found = models_of(file_of({"name": "m", "providers": [PROVIDER]}, {"name": "m", "providers": [PROVIDER]}).models)
    assert found == ["model 'm': named twice", "model 'm', provider 'p': named twice"]


def test_candidates_of_answers_are_off_unless_a_policy_says_otherwise() -> None:
    def answers(value: dict[str, Any]) -> Any:
        file = json_format.ParseDict({"policies": [{"name": "p", "answers": value}]}, policy_pb2.PolicyFile())
        return policies_of(file).items[0].answers

    assert not answers({}).on
    assert answers({"on": True, "maxCandidates": 3, "maxCost": 0.5}).max_cost == 0.5
    for wrong in ({"maxCandidates": limits.ANSWER_CANDIDATES + 1}, {"maxCost": -1}, {"expectedGain": 2}):
        with pytest.raises(PolicyError):
            answers(wrong)


def test_prices_are_for_a_million_tokens() -> None:
    assert TokenPrices(0.5, 1.5).of(Usage(2_000_000, 1_000_000)) == pytest.approx(2.5)


class Port:
    """A client that does nothing but count."""

    closed = 0

    def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        raise AssertionError

    async def close(self) -> None:
        self.closed += 1


def endpoint(concurrency: int = 2, first_token: float = 30.0) -> Endpoint:
    deadlines = Deadlines(first_token=first_token)
    provider = Provider(name="p", url="http://x/v1", model="m", concurrency=concurrency, deadlines=deadlines)
    return Endpoint(provider, Port())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Held:
    """Requests that hold their places until they are told to end."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.begun: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []

    def ask(self) -> asyncio.Task[None]:
        number, end = len(self.tasks), asyncio.Event()

        async def hold() -> None:
            async with self.endpoint.place(waits=True):
                self.begun.append(number)
                await end.wait()

        self.ends.append(end)
        self.tasks.append(asyncio.ensure_future(hold()))
        return self.tasks[-1]


async def test_requests_beyond_the_concurrency_wait_in_order_and_guesses_never_wait() -> None:
    held = Held(endpoint(2))
    for _ in range(4):
        held.ask()
    await settle()
    assert held.begun == [0, 1]
    with pytest.raises(ModelError) as raised:
        async with held.endpoint.place(waits=False):
            pass
    assert raised.value.error.reason is ErrorReason.QUEUE_FULL
    held.ends[1].set()
    await settle()
    assert held.begun == [0, 1, 2]
    for end in held.ends:
        end.set()
    await asyncio.gather(*held.tasks)
    assert (held.begun, held.endpoint.busy) == ([0, 1, 2, 3], 0)


async def test_who_gives_up_while_it_waits_takes_no_place_with_it() -> None:
    held = Held(endpoint(1))
    first, second, third = held.ask(), held.ask(), held.ask()
    await settle()
    second.cancel()
    held.ends[0].set()
    third_end = held.ends[2]
    await settle()
    assert held.begun == [0, 2]
    third_end.set()
    await asyncio.gather(first, second, third, return_exceptions=True)
    given_at_the_end = held.ask()
    await settle()
    last = held.ask()
    await settle()
    held.ends[3].set()
    await asyncio.sleep(0)
    last.cancel()  # perhaps at the moment at which it is given the place
    await asyncio.gather(given_at_the_end, last, return_exceptions=True)
    assert held.endpoint.busy == 0


async def test_the_queue_of_a_provider_is_bounded_and_waiting_counts_as_waiting_for_a_token() -> None:
    held = Held(endpoint(1))
    for _ in range(1 + limits.MODEL_QUEUE):
        held.ask()
    await settle()
    with pytest.raises(ModelError) as raised:
        async with held.endpoint.place(waits=True):
            pass
    assert raised.value.error.metadata["limit"] == "MODEL_QUEUE"
    for end in held.ends:
        end.set()
    await asyncio.gather(*held.tasks)
    slow = Held(endpoint(1, first_token=0.01))
    slow.ask()
    with pytest.raises(ModelError) as late:
        await slow.ask()
    assert late.value.error.reason is ErrorReason.MODEL_TIMEOUT
    slow.ends[0].set()
    await slow.tasks[0]
    assert slow.endpoint.busy == 0


async def test_a_provider_that_is_not_named_any_more_is_closed_once_it_is_idle() -> None:
    made: dict[str, Port] = {}

    def make(provider: Provider) -> Port:
        return made.setdefault(provider.name, Port())

    endpoints = Endpoints(make)
    providers = [Provider(name=name, url="http://x/v1", model="m") for name in "ab"]
    held = Held(endpoints.of(providers[0]))
    held.ask()
    endpoints.of(providers[1])
    await settle()
    await endpoints.keep([])
    assert (made["a"].closed, made["b"].closed) == (0, 1)
    held.ends[0].set()
    await held.tasks[0]
    assert made["a"].closed == 1
    await endpoints.close()
    assert (made["a"].closed, made["b"].closed) == (1, 1)


async def test_models_are_for_the_tenants_that_the_policy_names() -> None:
    models = Models.made_of(lambda _: Port())
    await models.adopt([Model("m", (Provider(name="p", url="http://x/v1", model="m"),), tenants=frozenset({"a"}))])
    assert models.find("a", "m").name == "m"
    for tenant, name in (("b", "m"), ("a", "n")):
        with pytest.raises(NotFound) as raised:
            models.find(tenant, name)
        assert raised.value.reason is ErrorReason.MODEL_NOT_FOUND
