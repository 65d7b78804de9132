"""A real small model on a real Triton, with drafts that cost no model against none: `make bench-tokens`.

    python -m tests.bench.tokens [--data DIR] [--prompts N] [--tokens N] [--seconds N]

A prompt is the last 384 tokens before a recorded message, one for each task. The history that drafts come from is the
target's own outputs on other tasks: tasks are halved, and what was put out for one half is the history of the other.
Both arms of a prompt run right after each other at batch 1. An output counts up to its first repeated 16-gram, because
a small model that loops would be drafted for nothing. Only decoding is timed: from the first token on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from forerun.runtime.kserve import KServeClient, StreamBounds
from forerun.serving.keeper import Keeper
from forerun.serving.profile import read_profile
from forerun.serving.render.repository import render
from forerun.serving.server import HOME, find_installation, running
from tests.bench.drafts_data import Message, Tokens, load
from tests.bench.results import REPOSITORY, Row, write
from tests.integration.serving.conftest import events

SETS: Final = ("tau2", "MCP", "SWE")
CONTEXT: Final = 384
GRAM: Final = 16
_FIRST_SHARE: Final = 0.25  # of the time, for the first half's history
_BOUNDS: Final = StreamBounds(first_seconds=300, idle_seconds=120, total_seconds=1_200)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is asked to go on from."""

    set: str
    task: str
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Output:
    """What came, and when: seconds since the first token, for each token."""

    tokens: Sequence[int]
    at: Sequence[float]
    passes: int

    @property
    def counted(self) -> int:
        """Tokens before the first 16-gram that was there before ends."""
        seen: set[tuple[int, ...]] = set()
        for end in range(GRAM, len(self.tokens) + 1):
            gram = tuple(self.tokens[end - GRAM : end])
            if gram in seen:
                return end - 1
            seen.add(gram)
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms of a prompt."""

    prompt: Prompt
    off: Output
    on: Output

    @property
    def different(self) -> int:
        """Tokens that are not equal."""
        long = max(len(self.off.tokens), len(self.on.tokens))
        same = sum(one == two for one, two in zip(self.off.tokens, self.on.tokens, strict=False))
        return long - same

    @property
    def seconds(self) -> tuple[float, float]:
        """Of decoding what counts, off and on."""
        last = self.off.counted - 1
        return self.off.at[last], self.on.at[min(last, len(self.on.at) - 1)]


def smollm2() -> Tokens:
    """The target's tokenizer."""
    fetch = [str(REPOSITORY / "scripts" / "models" / "fetch"), "python", "smollm2"]
    done = subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True, timeout=1_800)
    library, weights = (Path(line) for line in done.stdout.split())
    sys.path.insert(0, str(library))
    module = importlib.import_module("tokenizers")
    tokenizer: Any = module.Tokenizer.from_file(str(weights.with_suffix(".tokenizer.json")))
    return Tokens(tokenizer, tokenizer.encode("<|im_start|>assistant\n").ids, tokenizer.token_to_id("<|im_end|>"))


def prompts(data: Path, tokens: Tokens, wanted: int, seed: int = 1) -> list[Prompt]:
    """One prompt for each of `wanted` tasks, from the sets in turn; where a set has no more, from the others."""
    found: list[list[Prompt]] = []
    for name in SETS:
        chance = random.Random(f"{seed} {name}")
        by_task: dict[str, list[Sequence[int]]] = {}
        for run in load(data, name, tokens):
            by_task.setdefault(run.task, []).extend(_contexts(run.events, tokens))
        tasks = [task for task in sorted(by_task) if by_task[task]]
        found.append([Prompt(name, task, chance.choice(by_task[task])) for task in chance.sample(tasks, len(tasks))])
    in_turn = [one for ones in zip_longest(*found) for one in ones if one is not None]
    return in_turn[:wanted]


def _contexts(run: Sequence[Sequence[int] | Message], tokens: Tokens) -> Iterator[Sequence[int]]:
    before: list[int] = []
    for event in run:
        if isinstance(event, Message):
            if len(before) >= CONTEXT:
                yield [*before, *tokens.header][-CONTEXT:]
            before += [*tokens.header, *event.text, *event.calls, tokens.end]
        else:
            before += event


async def ask(client: KServeClient, prompt: Prompt, most: int, **options: Any) -> Output:
    """One request."""
    found: list[int] = []
    at: list[float] = []
    first, passes = None, 0
    options = {"max_tokens": most, "agent": prompt.set, **options}
    async with aclosing(events(client, prompt.tokens, options, _BOUNDS)) as stream:
        async for event, _ in stream:
            now = time.perf_counter()
            first = now if first is None else first
            found += event["tokens"]
            at += [now - first] * len(event["tokens"])
            passes = event.get("usage", {}).get("passes", passes)
    return Output(found, at, passes)


async def measure(chosen: Sequence[Prompt], most: int, folder: Path, console: Console, seconds: float) -> list[Pair]:
    """Both arms of every prompt, as far as the time goes: a slow machine does fewer of them."""
    repository = folder / "repository"
    repository.mkdir()
    pairs = []
    async with running(find_installation(REPOSITORY / HOME), repository, folder / "log") as server:
        await Keeper(server.client, repository).deploy(render(read_profile("cpu-test"), (), base=REPOSITORY))
        halves = chosen[::2], chosen[1::2]
        began = time.monotonic()
        for prompt in halves[1]:
            if time.monotonic() - began > _FIRST_SHARE * seconds:
                break
            await ask(server.client, prompt, most, speculate=False, tenant="first")
        middle = (began + seconds + time.monotonic()) / 2.0
        for own, other, half, until in (
            ("first", "second", halves[0], middle),
            ("second", "", halves[1], began + seconds),
        ):
            for prompt in half:
                if time.monotonic() > until:
                    break
                off = await ask(server.client, prompt, most, speculate=False, tenant=other)
                on = await ask(server.client, prompt, most, tenant=own)
                pairs.append(Pair(prompt, off, on))
                took = pairs[-1].seconds
                console.print(f"{prompt.set}: {off.counted} tokens, {took[0]:.2f} s off, {took[1]:.2f} s on")
    return pairs


def rows_of(pairs: Sequence[Pair]) -> list[Row]:
    """The figures, by set and over all."""
    found = []
    for name in (*SETS, "all"):
        own = [pair for pair in pairs if name in (pair.prompt.set, "all") and pair.off.counted > 1]
        if not own:
            continue
        off, on = (sum(pair.seconds[arm] for pair in own) for arm in (0, 1))
        ratios = [pair.seconds[0] / pair.seconds[1] for pair in own if pair.seconds[1] > 0]
        tokens = sum(pair.off.counted for pair in own)
        found.append(
            Row(
                name=f"decoding, batch 1, {name}",
                value=tokens / on,
                unit="tokens/s",
                baseline=tokens / off,
                n=len(own),
                spread=(min(ratios), max(ratios)),
                more={
                    "median_ratio": statistics.median(ratios),
                    "tokens": tokens,
                    "different_tokens": sum(pair.different for pair in own),
                    "tokens_per_pass": _per_pass(own),
                },
            )
        )
    return found


def _per_pass(pairs: Sequence[Pair]) -> float:
    passes = sum(pair.on.passes for pair in pairs)
    return sum(len(pair.on.tokens) - 1 for pair in pairs) / passes if passes else 0.0


def show(rows: Sequence[Row], console: Console) -> None:
    """The table."""
    columns = [Column(one, justify="right") for one in ("prompts", "off", "on", "ratio", "a pass", "different")]
    table = Table("", *columns, box=None)
    for row in rows:
        json = row.as_json()
        table.add_row(
            row.name,
            str(row.n),
            f"{row.baseline:.1f}",
            f"{row.value:.1f}",
            f"{json['ratio']:.2f}",
            f"{row.more['tokens_per_pass']:.2f}",
            str(row.more["different_tokens"]),
        )
    console.print(table)


def main() -> int:
    """Parses the command line and measures; 1 where a token differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=7_200.0, help="no prompt begins later")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    subprocess.run([REPOSITORY / "scripts" / "triton" / "install"], check=True)
    chosen = prompts(options.data, smollm2(), options.prompts)
    # Sets take turns, so that a machine that becomes slower does not do so for one of them.
    chosen.sort(key=lambda one: random.Random(one.task).random())
    with tempfile.TemporaryDirectory() as folder:
        pairs = asyncio.run(measure(chosen, options.tokens, Path(folder), console, options.seconds))
    rows = rows_of(pairs)
    show(rows, console)
    console.print(f"written to {write('tokens', rows)}")
    return 1 if any(pair.different for pair in pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
