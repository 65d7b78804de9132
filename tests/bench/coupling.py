"""What coupling real small models inside the server adds to a step: `make bench-coupling`.

    python -m tests.bench.coupling [--models NAME ...] [--texts N] [--tokens N]

Each step is compared with itself: the client's time from one event to the next, and the seconds that the model's own
process spent on the step's pass, from a request that it has read to tokens that are chosen. The rest is coupling: the
loop, drafts that cost no model, and calls between processes of the server, with all that is packed and read for them.
What tells the client of a step runs beside the next pass: it counts where the pass has to wait for it, and makes the
pass longer where it takes its core. A machine that becomes slower does so for both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from forerun.runtime.kserve import KServeClient, StreamBounds
from forerun.serving.keeper import Keeper
from forerun.serving.profile import OpenVinoEngine, Profile, read_profile
from forerun.serving.render.repository import render
from forerun.serving.server import HOME, find_installation, running
from tests.bench.results import REPOSITORY, Row, write
from tests.integration.serving.conftest import events

MODELS: Final = ("smollm2", "qwen2.5-coder-0.5b")
"""Of 135M and 500M parameters: coupling takes the same milliseconds, so its share falls as passes grow."""

ARMS: Final[Mapping[str, Mapping[str, Any]]] = {"without drafts": {"speculate": False}, "with drafts": {}}
_PROMPT_TOKENS: Final = 128
_BOUNDS: Final = StreamBounds(first_seconds=300, idle_seconds=120, total_seconds=1_200)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one text, without the prompt's.

    Attributes:
        count: How many.
        wall: Seconds that the client saw.
        passes: Seconds of the model's process.
    """

    count: int
    wall: float
    passes: float

    @property
    def share(self) -> float:
        """Of a step's time that coupling takes."""
        return 1.0 - self.passes / self.wall


async def steps(client: KServeClient, text: int, tokens: int, options: Mapping[str, Any]) -> Steps:
    """Decodes one text."""
    prompt = [(text * 7_919 + place * 31) % 40_000 + 100 for place in range(_PROMPT_TOKENS)]
    given = {"max_tokens": tokens, "ignore_end": True, "history": False, **options}
    count, passes, first, last = 0, 0.0, 0.0, 0.0
    async with aclosing(events(client, prompt, given, _BOUNDS)) as stream:
        async for event, _ in stream:
            last = time.perf_counter()
            if not first:
                first = last
                continue
            count += 1
            passes += event["seconds"]
    return Steps(count, last - first, passes)


def profile_of(model: str) -> Profile:
    """The profile of tests on CPU, with this model."""
    weights = Path(".tools", "models", f"{model}.gguf")
    target = OpenVinoEngine(kind="openvino", weights=weights, tokenizer=weights.with_suffix(".tokenizer.json"))
    return read_profile("cpu-test").model_copy(update={"target": target})


async def measure(model: str, texts: int, tokens: int, folder: Path) -> dict[str, list[Steps]]:
    """All texts, both arms of each right after each other."""
    repository = folder / "repository"
    repository.mkdir()
    found: dict[str, list[Steps]] = {arm: [] for arm in ARMS}
    async with running(find_installation(REPOSITORY / HOME), repository, folder / "log") as server:
        await Keeper(server.client, repository).deploy(render(profile_of(model), (), base=REPOSITORY))
        await steps(server.client, texts, 16, {})
        for text in range(texts):
            for arm, options in ARMS.items():
                found[arm].append(await steps(server.client, text, tokens, options))
    return found


def row(model: str, arm: str, found: Sequence[Steps]) -> Row:
    """The figures of one arm."""
    shares = [one.share for one in found]
    count, passes = sum(one.count for one in found), sum(one.passes for one in found)
    return Row(
        name=f"{model}, coupling, batch 1, {arm}",
        value=100.0 * statistics.median(shares),
        unit="% of a step",
        n=len(found),
        spread=(100.0 * min(shares), 100.0 * max(shares)),
        more={
            "steps": count,
            "pass_ms": 1e3 * passes / count,
            "coupling_ms": 1e3 * (sum(one.wall for one in found) - passes) / count,
        },
    )


def main() -> int:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="which (default: both)")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    for needed in (["triton", "install"], ["models", "fetch", *options.models]):
        subprocess.run(
            [REPOSITORY.joinpath("scripts", *needed[:2]), *needed[2:]], check=True, stdout=subprocess.DEVNULL
        )
    rows: list[Row] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measure(model, options.texts, options.tokens, Path(folder)))
        rows += [row(model, arm, taken) for arm, taken in found.items()]
    console = Console(highlight=False, soft_wrap=True)
    for one in rows:
        more, (low, high) = one.more, one.spread or (0.0, 0.0)
        console.print(
            f"{one.name}: median {one.value:.1f} % of a step's time ({low:.1f} to {high:.1f} over {one.n} texts); "
            f"a pass {more['pass_ms']:.1f} ms, coupling {more['coupling_ms']:.2f} ms, {more['steps']} steps"
        )
    console.print(f"written to {write('coupling', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
