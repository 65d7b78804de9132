"""A real small model on a real Triton: what is drafted never changes what it says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forerun.serving.server import Installation
from tests.integration.serving.conftest import Served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

QUESTIONS = [
    "What is the capital of France?",
    "Write a Python function that reverses a list.",
    "Repeat this three times: the quick brown fox jumps over the lazy dog.",
    "List the numbers from 1 to 12, one a line.",
    "Explain in two sentences why the sky is blue.",
    'Give a JSON object with the fields "name" and "age".',
    "Translate to French: good morning, my friend.",
    "Write a short story about a robot that learns to paint.",
    "What is 17 times 23? Show each step.",
    "Name five animals that live in the sea.",
    "Write a SQL query that counts orders by customer.",
    "Summarise: Forerun runs ahead of agents. It guesses the next step. It checks the guess.",
    "Write a polite letter that asks for a refund.",
    "What are the three laws of motion?",
    "Complete: roses are red, violets are",
    "Write a shell command that finds the largest file in a folder.",
    "Say hello in ten languages.",
    "Describe how bread is baked.",
    "Copy this exactly: a1 b2 c3 d4 e5 f6 g7 h8 a1 b2 c3 d4 e5 f6 g7 h8",
    "Write a haiku about winter.",
]

CHECK_RULES = """
import random
import numpy as np
from forerun.core.tokens import noise, sampling
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts
from forerun.serving.backend import array_rules

chance = random.Random(1)
for trial in range(300):
    size = chance.choice([5, 64, 500])
    logits = [chance.choice([chance.gauss(0, 3), float(chance.randrange(4))]) for _ in range(size)]
    counts = TokenCounts(chance.sample(range(size), 3))
    for _ in range(6):
        counts.push(chance.randrange(size))
    options = SamplingOptions(
        temperature=chance.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=chance.choice([0, 1, 4]), top_p=chance.choice([1.0, 0.9, 0.3]), min_p=chance.choice([0.0, 0.1]),
        repetition_penalty=chance.choice([1.0, 1.3]), presence_penalty=chance.choice([0.0, 0.5]),
        frequency_penalty=chance.choice([0.0, 0.2]), logit_bias=chance.choice([{}, {1: 2.0, 2: -100.0}]),
    )
    ours = array_rules.process(np.array(logits), counts, options)
    right = sampling.process(logits, counts, options)
    for token in range(size):
        one, two = ours.probability(token), right.probability(token)
        assert abs(one - two) < 1e-9 and (one == 0) == (two == 0), (trial, token, one, two, options)
    key = noise.key(7, trial)
    assert ours.race(key) == right.race(key)
    assert ours.likeliest() == right.likeliest()
    quantile = chance.random()
    assert ours.at(quantile) == right.at(quantile)
    token = right.likeliest()
    if not options.is_greedy and right.probability(token) < 1:
        rest, left = ours.without(token), right.without(token)
        assert max(abs(rest.probability(one) - left.probability(one)) for one in range(size)) < 1e-9
    assert abs(array_rules.log_probability(np.array(logits), 1) - sampling.log_probabilities(logits)[1]) < 1e-9
print("agree")
"""

ENCODE = """
import json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = json.load(sys.stdin)
chats = [f"<|im_start|>user\\n{text}<|im_end|>\\n<|im_start|>assistant\\n" for text in texts]
json.dump([tokenizer.encode(chat).ids for chat in chats], sys.stdout)
"""


def inside(installation: Installation, code: str, *arguments: str, stdin: str = "") -> str:
    """What a program prints in the environment of the server's models."""
    command = [str(installation.python / "python"), "-c", code, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prompts(installation: Installation, weights: Path) -> list[list[int]]:
    tokenizer = str(weights.with_suffix(".tokenizer.json"))
    found: list[list[int]] = json.loads(inside(installation, ENCODE, tokenizer, stdin=json.dumps(QUESTIONS)))
    return found


async def test_the_rules_on_arrays_are_the_rules(installation: Installation) -> None:
    assert inside(installation, CHECK_RULES).strip() == "agree"


async def test_twenty_prompts_have_no_different_token(real: Served, prompts: list[list[int]]) -> None:
    different, drafted, accepted = 0, 0, 0
    for number, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_tokens": 40, "tenant": "t", "agent": "a", "logprobs": number % 2 == 0}
        alone = await real.generate(prompt, **options, speculate=False)
        drafts = await real.generate(prompt, **options, depth=(7, 3, 5, 1)[number % 4])
        different += sum(one != two for one, two in zip(alone.tokens, drafts.tokens, strict=True))
        assert (drafts.text, drafts.finish, drafts.logprobs) == (alone.text, alone.finish, alone.logprobs)
        drafted += drafts.usage["proposed"]
        accepted += drafts.usage["accepted"]
    assert different == 0
    assert drafted > 200
    assert accepted > 20, "drafts that are never accepted test nothing"


async def test_sampled_text_has_no_different_token_either(real: Served, prompts: list[list[int]]) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.3, "seed": 4}
    for prompt in prompts[1:4]:
        alone = await real.generate(prompt, **options, speculate=False)
        assert (await real.generate(prompt, **options, depth=6)).tokens == alone.tokens


async def test_it_answers_and_not_with_noise(real: Served, prompts: list[list[int]]) -> None:
    assert "Paris" in (await real.generate(prompts[0], max_tokens=24)).text


async def test_texts_that_do_not_fit_are_refused_and_those_that_just_do_end_by_length(
    real: Served, prompts: list[list[int]]
) -> None:
    long = (prompts[7] * 40)[: real.profile.context_tokens - 8 - 10]
    answer = await real.generate(long, max_tokens=100, ignore_end=True)
    assert (answer.finish, answer.usage["generated"]) == ("length", 10)
