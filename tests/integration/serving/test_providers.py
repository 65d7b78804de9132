"""A model that is served here as a provider of a policy: the same port, breaker and bounds as every other one."""

from __future__ import annotations

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ForerunError
from forerun.runtime.models.catalogue import Model, models_of
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import Gathered, Message, ModelRequest
from forerun.runtime.models.providers import make_port
from forerun.v1 import policy_pb2
from tests.integration.serving.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUEST = ModelRequest(messages=(Message("user", "w3 w4 w5"),), temperature=0.0, max_output_tokens=30)


def catalogue(*urls: str, most: int = 20) -> tuple[Model, list[str]]:
    message = policy_pb2.Model(name="m")
    for number, url in enumerate(urls):
        message.providers.add(
            name=f"p{number}", url=url, max_output_tokens=most, input_price=1e6, output_price=2e6,
            first_token_seconds=30, timeout_seconds=60,
        )  # fmt: skip
    (model,), problems = models_of([message])
    return model, problems


async def test_it_answers_with_its_price_within_its_bounds_and_others_take_over(toy: Served) -> None:
    address = toy.running.grpc_address
    model, problems = catalogue("kserve://127.0.0.1:1", f"kserve://{address}")
    assert problems == []
    models = Models.made_of(make_port(None, SystemClock()))
    try:
        call, found = models.call(model, REQUEST, CallTerms(races=False)), Gathered()
        async for event in call.events():
            found.add(event)
        assert found.finished is not None
        assert (found.finished.usage.input_tokens, found.finished.usage.output_tokens) == (4, 20)
        assert [bill.attempt.endpoint.provider.name for bill in call.bills()] == ["p0", "p1"]
        assert sum(bill.money for bill in call.bills()) == pytest.approx(4 + 2 * 20)
        assert len(found.text.split()) == 20, "the provider's bound is below what was asked for"
    finally:
        await models.endpoints.close()


async def test_one_that_is_away_is_an_error_like_any_other() -> None:
    model, _ = catalogue("kserve://127.0.0.1:1")
    models = Models.made_of(make_port(None, SystemClock()))
    try:
        with pytest.raises(ForerunError, match="no connection to the model provider p0"):
            async for _ in models.call(model, REQUEST, CallTerms(races=False)).events():
                raise AssertionError("nobody is there")
    finally:
        await models.endpoints.close()


@pytest.mark.parametrize("url", ["kserve://host", "kserve://:80", "kserve://h:1/v1", "kserve://a@h:1", "grpc://h:1"])
async def test_addresses_that_are_none_are_refused(url: str) -> None:
    _, problems = catalogue(url)
    assert any("url: " in one for one in problems)
