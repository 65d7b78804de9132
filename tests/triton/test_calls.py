"""A real small model that is held to one valid call: on a real server, with every way of decoding."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from forerun.runtime.models.errors import ModelError
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.port import Deadlines, FinishReason, Gathered, Message, ModelRequest
from forerun.serving.server import Installation
from tests.integration.serving.conftest import Served
from tests.triton.test_real_model import inside

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

TOOLS: dict[str, dict[str, Any]] = {
    "get_order": {
        "type": "object",
        "properties": {"order_id": {"type": "string", "maxLength": 12}},
        "required": ["order_id"],
    },
    "book_flight": {
        "type": "object",
        "properties": {
            "cabin": {"enum": ["economy", "business"]},
            "passengers": {"type": "integer", "minimum": 1, "maximum": 4},
            "bags": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2}, "maxItems": 3},
            "insurance": {"type": ["boolean", "null"]},
        },
        "required": ["cabin", "passengers", "bags"],
    },
    "note": {"type": "object", "properties": {"text": {"type": "string", "minLength": 3, "maxLength": 30}}},
}
TEXTS = ["Look up order W4417 for me.", "Two seats in business, no bags.", "Wie spät ist es? Notiere: Tür öffnen."]


def listed(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": TOOLS[name]}} for name in names]


def request(text: str, **more: Any) -> ModelRequest:
    system = "Answer with one tool call. Tools: get_order(order_id), book_flight(cabin, passengers, bags), note(text)."
    given: dict[str, Any] = {
        "messages": (Message("system", system), Message("user", text)),
        "tools": json.dumps(listed(*TOOLS)),
        "must_call": True,
        "describe_tools": False,
        "temperature": 0.0,
        "max_output_tokens": 96,
    }
    return ModelRequest(**(given | more))


async def gathered(model: ServedModel, asked: ModelRequest) -> Gathered:
    found = Gathered()
    async for event in model.generate(asked, Deadlines(total=120.0, between_tokens=60.0, first_token=60.0)):
        found.add(event)
    return found


def checked(found: Gathered) -> tuple[str, Any]:
    (call,) = found.tool_calls
    assert not found.text.strip()
    assert found.finished is not None
    assert found.finished.reason is FinishReason.TOOL_CALLS
    arguments = json.loads(call.arguments)
    Draft202012Validator(TOOLS[call.name]).validate(arguments)
    return call.name, arguments


@pytest.mark.parametrize(("number", "temperature"), [(0, 0.0), (1, 0.0), (2, 0.0), (1, 1.0), (2, 1.8)])
async def test_only_valid_calls_whatever_is_said_and_however_it_is_sampled(
    real: Served, number: int, temperature: float
) -> None:
    asked = request(TEXTS[number], temperature=temperature, seed=number)
    drafted = await gathered(ServedModel("real", real.client, options={"depth": 7}), asked)
    alone = await gathered(ServedModel("real", real.client, options={"speculate": False}), asked)
    assert checked(drafted) == checked(alone), "drafts change nothing"


async def test_the_one_tool_that_is_wanted(real: Served) -> None:
    name, arguments = checked(await gathered(ServedModel("real", real.client), request(TEXTS[0], only_tool="note")))
    assert name == "note"
    assert set(arguments) <= {"text"}


async def test_an_expected_call_drafts_and_changes_nothing(real: Served) -> None:
    asked = request(TEXTS[0])
    options = {"history": False}
    plain = await gathered(ServedModel("real", real.client, options=options), asked)
    name, arguments = checked(plain)
    text = f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'

    async def accepted(**more: Any) -> tuple[float, tuple[str, Any]]:
        before = await real.metrics()
        found = await gathered(ServedModel("real", real.client, options=options), request(TEXTS[0], **more))
        after = await real.metrics()
        counter = 'forerun_draft_tokens_accepted_total{drafter="recall"}'
        return after[counter] - before[counter], checked(found)

    without, same = await accepted()
    right, again = await accepted(expected=(text,))
    wrong, third = await accepted(
        expected=('<tool_call>\n{"name": "zzz", "arguments": {"qqq": 123456}}\n</tool_call>',)
    )
    assert same == again == third == (name, arguments)
    assert right >= without + 8, (right, without)
    assert wrong <= right


async def test_a_call_that_is_cut_off_is_no_call(real: Served) -> None:
    found = await gathered(ServedModel("real", real.client), request(TEXTS[0], max_output_tokens=6))
    assert found.tool_calls == ()
    assert found.finished is not None
    assert found.finished.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": "[]"}, "no tool"),
        ({"tools": json.dumps([{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}])}, "not"),
        ({"only_tool": "other"}, "no tool 'other'"),
    ],
)
async def test_tools_that_no_grammar_can_keep_are_refused_by_name(
    real: Served, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        await gathered(ServedModel("real", real.client), request(TEXTS[0], **more))


async def test_a_cancelled_call_frees_its_slot(real: Served) -> None:
    async def live() -> float:
        return (await real.metrics())["forerun_decoding_slots_used"]

    asking = asyncio.create_task(gathered(ServedModel("real", real.client), request(TEXTS[1], temperature=1.0)))
    async with asyncio.timeout(30):
        while await live() == 0:  # noqa: ASYNC110  # the server is asked over HTTP each time
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(20):
        while await live() > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


CHECK_MASKS = """
import json, random, sys
from pathlib import Path
from forerun.core.grammar.automaton import DEAD
from forerun.serving.backend.constraint import Constraint, Grammars
from forerun.serving.backend.vocabulary import from_tokenizer, token_bytes

tools, path = json.load(sys.stdin), Path(sys.argv[1])
vocabulary = from_tokenizer("m", path)
texts = token_bytes(vocabulary)
ends = [vocabulary.special["<|im_end|>"]]
grammar = Grammars(lambda: texts).of(json.dumps(tools), "", ends)
inner, chance, looked = grammar._grammar, random.Random(3), 0
for walk in range(12):
    state, text = grammar.start, b""
    for step in range(200):
        mask = grammar.allowed(state)
        for token in [*chance.sample(range(len(texts)), 400), *ends]:
            behind = inner.walk(state, texts[token]) if texts[token] else DEAD
            right = behind != DEAD or (token in ends and inner.complete(state))
            assert bool(mask[token]) == right, (text, token, texts[token])
            looked += 1
        allowed = [int(one) for one in mask.nonzero()[0]]
        assert allowed, text
        quotes = [one for one in allowed if b'"' in texts[one] or one in ends]
        token = chance.choice(quotes if quotes and chance.random() < 0.5 else allowed)
        if token in ends:
            break
        state, text = grammar.after(state, token), text + texts[token]
    if token in ends:
        call = json.loads(text.removeprefix(b"<tool_call>").removesuffix(b"</tool_call>"))
        assert call["name"] in json.dumps(tools)
print("agree", looked)
"""


async def test_masks_of_real_tokens_are_what_walking_each_token_says(installation: Installation, weights: Path) -> None:
    tokenizer = str(weights.with_suffix(".tokenizer.json"))
    said = inside(installation, CHECK_MASKS, tokenizer, stdin=json.dumps(listed(*TOOLS)))
    assert said.startswith("agree")
    assert int(said.split()[1]) > 10_000
