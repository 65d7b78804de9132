"""A small model's second guess on recorded runs, against statistics alone: `make bench-guesses`.

    python -m tests.bench.guesses [--data DIR] [--guesses N] [--seconds N] [--seed N] [--weights GGUF] [--name NAME]

One half of the tasks is learned, the other is predicted step by step as by `forerun.predictor.evaluate`. Of the steps
at which statistics are unsure a sample is drawn, the same for the same seed, and the model is asked at each: served by
a real Triton, held to one valid call of the four likeliest tools. The recordings hold no schemas; they are made of the
calls of the learned half. Calls are compared as a whole: tool and all arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from forerun.core.canonical import JsonValue, canonical
from forerun.core.grammar.calls import call_text
from forerun.core.second_guess import Guessed, GuessPrices, SecondGuesses
from forerun.predictor.engine.engine import Engine, Prediction
from forerun.predictor.engine.history import ModelStarted, SessionClosed, SessionOpened
from forerun.predictor.evaluate import halves
from forerun.predictor.recording import RecordedStep, Recording, read
from forerun.predictor.small_model.guess import Ended, SmallModel
from forerun.predictor.small_model.transcript import Transcript, guess_request
from forerun.runtime.clock import SystemClock
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.models import Models
from forerun.runtime.models.port import Deadlines, ModelRequest
from forerun.runtime.models.providers import make_port
from forerun.serving.keeper import Keeper
from forerun.serving.profile import OpenVinoEngine, Profile, read_profile
from forerun.serving.render.repository import render
from forerun.serving.server import HOME, find_installation, running
from tests.bench.results import REPOSITORY, Row, write

_CONTEXT: Final = 1_024
_TOKENS: Final = 96
_CHARS: Final = 900
_TOOLS: Final = 4
_UNSURE: Final = 0.5
_DEADLINE: Final = 120.0


@dataclass(frozen=True, slots=True)
class Set:
    """Recorded runs.

    Attributes:
        name: In results.
        file: Below `traces`.
        model_seconds: Median of the agent's own model, in the recordings.
        tool_seconds: Median of its tools.
    """

    name: str
    file: str
    model_seconds: float
    tool_seconds: float


SETS: Final = (
    Set("tau2", "tau2_agents.jsonl.gz", 5.4, 0.005),
    Set("airline", "tau_airline_gpt4o.jsonl.gz", 5.4, 0.005),
    Set("MCP", "mcpbench_agents.jsonl.gz", 12.0, 0.17),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A step at which statistics are unsure.

    Attributes:
        set: Where it comes from.
        site: Its call site.
        request: What the model is asked.
        proposed: Calls that statistics named, likeliest first.
        asked: Calls that came.
    """

    set: Set
    site: str
    request: ModelRequest
    proposed: Sequence[tuple[str, bytes]]
    asked: frozenset[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model gave for a case."""

    case: Case
    ended: Ended

    @property
    def named(self) -> tuple[str, bytes] | None:
        """The call that it named."""
        call = self.ended.call
        return None if call is None else (call.tool, call.arguments)

    @property
    def right(self) -> bool:
        """It came."""
        return self.named in self.case.asked

    @property
    def new(self) -> bool:
        """It came, and statistics had not named it."""
        return self.right and self.named not in self.case.proposed


def schemas_of(recordings: Iterable[Recording]) -> tuple[tuple[str, str], ...]:
    """Schemas of the tools, as their calls show them."""
    calls: dict[str, list[dict[str, JsonValue]]] = defaultdict(list)
    for recording in recordings:
        for step in recording.steps:
            for one in step.asked.calls if step.asked is not None else ():
                if isinstance(one.arguments, dict):
                    calls[one.tool].append(one.arguments)
    return tuple((name, json.dumps(_schema(seen))) for name, seen in sorted(calls.items()))


def _schema(seen: Sequence[dict[str, JsonValue]]) -> dict[str, Any]:
    names = sorted({name for one in seen for name in one})
    return {
        "type": "object",
        "properties": {name: _values([one[name] for one in seen if name in one]) for name in names},
        "required": [name for name in names if all(name in one for one in seen)],
    }


def _values(values: Sequence[JsonValue]) -> dict[str, Any]:
    kinds = sorted({_kind(value) for value in values})
    if kinds == ["array"]:
        items = [item for value in values if isinstance(value, list) for item in value]
        return {"type": "array", "items": _values(items) if items else {}}
    if kinds == ["object"]:
        return _schema([value for value in values if isinstance(value, dict)])
    texts = {value for value in values if isinstance(value, str)}
    if kinds == ["string"] and len(texts) <= 6 and len(values) >= 20:
        return {"enum": sorted(texts)}
    return {"type": kinds}


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return {str: "string", list: "array", dict: "object", type(None): "null"}.get(type(value), "number")


def cases_of(which: Set, data: Path, seed: int) -> tuple[list[Case], int]:
    """All unsure steps of the scored half, and how many steps it has."""
    recordings = list(read(data / "traces" / which.file))
    learned, scored = halves(recordings, split="task", seed=seed)
    engine, schemas = Engine(), schemas_of(learned)
    declared = tuple(sorted({tool for one in recordings for tool in one.tools}))
    found: list[Case] = []
    steps = 0
    for number, recording in enumerate([*learned, *scored]):
        key, transcript = ("bench", "agent", recording.session), Transcript()
        opened = SessionOpened(declared, schemas)
        engine.observe(*key, opened)
        transcript.take(opened)
        for step in recording.steps:
            for event in step.before:
                engine.observe(*key, event)
                transcript.take(event)
            if not step.complete:
                break
            engine.observe(*key, ModelStarted())
            if number >= len(learned):
                steps += 1
                case = _case(which, transcript, engine.predict(*key), step)
                found += [] if case is None else [case]
            for happened in (step.text, step.asked):
                if happened is not None:
                    engine.observe(*key, happened)
                    transcript.take(happened)
        engine.observe(*key, SessionClosed())
    return found, steps


def _case(which: Set, transcript: Transcript, prediction: Prediction, step: RecordedStep) -> Case | None:
    candidates = prediction.candidates
    if candidates and candidates[0].probability >= _UNSURE:
        return None
    tools = dict.fromkeys([*(one.tool for one in candidates), *(name for name, _ in prediction.tools)])
    request = guess_request(
        transcript,
        [name for name in tools if name in transcript.schemas][:_TOOLS],
        chars=_CHARS,
        tokens=_TOKENS,
        expected=[call_text(one.tool, one.arguments.decode()) for one in candidates[:4]],
    )
    if request is None:
        return None
    calls = step.asked.calls if step.asked is not None else ()
    return Case(
        which,
        candidates[0].site if candidates else "none",
        request,
        [(one.tool, one.arguments) for one in candidates],
        frozenset((one.tool, canonical(one.arguments)) for one in calls),
    )


async def ask(cases: Sequence[Case], address: str, name: str, seconds: float) -> list[Outcome]:
    """Asks the model, one case after the other, as many as there is time for."""
    bounds = Deadlines(first_token=_DEADLINE, between_tokens=_DEADLINE, total=_DEADLINE)
    provider = Provider(name=name, url=f"kserve://{address}", model=name, deadlines=bounds)
    model = SmallModel(Models.made_of(make_port(None, SystemClock())), Model(name, (provider,)), _DEADLINE)
    loop = asyncio.get_running_loop()
    until, found = loop.time() + seconds, list[Outcome]()
    try:
        for case in cases:
            if loop.time() > until:
                break
            ended: list[Ended] = []
            await model.guess(case.request, ended.append)
            found.append(Outcome(case, ended[0]))
    finally:
        await model.close()
    return found


def served(weights: Path) -> Profile:
    """A profile for prompts of this kind."""
    profile = read_profile("cpu-test")
    target = OpenVinoEngine(kind="openvino", weights=weights, tokenizer=weights.with_suffix(".tokenizer.json"))
    return profile.model_copy(update={"target": target, "context_tokens": _CONTEXT})


async def measure(weights: Path, name: str, cases: Sequence[Case], seconds: float) -> list[Outcome]:
    """Serves the model and asks it."""
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "repository"
        repository.mkdir()
        async with running(find_installation(REPOSITORY / HOME), repository, Path(scratch) / "log") as server:
            await Keeper(server.client, repository).deploy(render(served(weights), (), base=REPOSITORY))
            return await ask(cases, server.grpc_address, name, seconds)


def rows_of(name: str, outcomes: Sequence[Outcome], unsure: int, steps: int) -> list[Row]:
    """The figures of one set, or of all."""
    count = len(outcomes)
    if not count:
        return []
    answered = [one for one in outcomes if not one.ended.failed]
    shares = {
        "statistics @1": sum(any(p in one.case.asked for p in one.case.proposed[:1]) for one in outcomes),
        "statistics @2": sum(any(p in one.case.asked for p in one.case.proposed[:2]) for one in outcomes),
        "statistics, all candidates": sum(any(p in one.case.asked for p in one.case.proposed) for one in outcomes),
        "model alone": sum(one.right for one in outcomes),
        "statistics @1 and the model second": sum(
            one.right or any(p in one.case.asked for p in one.case.proposed[:1]) for one in outcomes
        ),
        "model, beyond all candidates": sum(one.new for one in outcomes),
        "valid calls": sum(one.named is not None for one in outcomes),
    }
    rows = [
        Row(
            name=f"{name}: {what}",
            value=hits / count,
            unit="share of unsure steps",
            n=count,
            spread=_wilson(hits, count),
        )
        for what, hits in shares.items()
    ]
    taken = sorted(one.ended.seconds for one in answered) or [0.0]
    rows.append(Row(name=f"{name}: seconds of a guess", value=statistics.median(taken), unit="s", n=len(answered),
                    spread=(taken[0], taken[-1])))  # fmt: skip
    rows.append(Row(name=f"{name}: unsure steps", value=unsure / max(1, steps), unit="share of steps", n=steps))
    for label, tool_seconds in (("recorded tools", None), ("tools of 1 s", 1.0), ("tools of 5 s", 5.0)):
        rows.append(_worth(f"{name}: gain of a guess, {label}", outcomes, tool_seconds))
    return rows


def _worth(name: str, outcomes: Sequence[Outcome], tool_seconds: float | None) -> Row:
    """What guesses are worth by the rule of the switch, and at how many call sites it would be on."""
    worth = SecondGuesses(GuessPrices())
    for one in outcomes:
        left = max(0.0, one.case.set.model_seconds - one.ended.seconds)
        hidden = min(one.case.set.tool_seconds if tool_seconds is None else tool_seconds, left)
        guess = Guessed(seconds=one.ended.seconds, hit=one.new, right=one.right, hidden_seconds=hidden)
        worth.learn(one.case.site, guess)
    hidden = worth.record.gained + worth.record.seconds
    more = {"sites_on": worth.sites_on, "sites": worth.sites_on + worth.sites_off,
            "pays_below_cost_per_second": hidden / max(worth.record.seconds, 1e-9)}  # fmt: skip
    return Row(name=name, value=worth.record.gained / len(outcomes), unit="s of waiting", n=len(outcomes), more=more)


def _wilson(hits: int, count: int) -> tuple[float, float]:
    z = 1.96
    share, square = hits / count, z * z / count
    half = z * (share * (1 - share) / count + square / (4 * count)) ** 0.5
    middle = share + square / 2
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.guesses", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--guesses", type=int, default=150, help="over all sets")
    parser.add_argument("--seconds", type=float, default=500.0, help="of asking; what does not fit is left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weights", type=Path, help="a GGUF file with its tokenizer beside it; none: SmolLM2")
    parser.add_argument("--name", default="SmolLM2-135M")
    options = parser.parse_args()
    console, weights = Console(width=140), options.weights
    if weights is None:
        fetch = [str(REPOSITORY / "scripts" / "models" / "fetch"), "smollm2"]
        done = subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True, timeout=1_800)
        weights = Path(done.stdout.strip())
    chosen: list[Case] = []
    counts: dict[str, tuple[int, int]] = {}
    for one in SETS:
        cases, steps = cases_of(one, options.data, options.seed)
        counts[one.name] = (len(cases), steps)
        chance = random.Random(f"{options.seed} {one.name}")
        chosen += chance.sample(cases, min(len(cases), options.guesses // len(SETS)))
    random.Random(options.seed).shuffle(chosen)  # what there is no time for is missing in all sets alike
    outcomes = asyncio.run(measure(weights, options.name, chosen, options.seconds))
    rows: list[Row] = []
    for one in SETS:
        rows += rows_of(one.name, [each for each in outcomes if each.case.set is one], *counts[one.name])
    unsure, steps = (sum(column) for column in zip(*counts.values(), strict=True))
    rows += rows_of("all", outcomes, unsure, steps)
    table = Table("", Column("value", justify="right"), "unit", "95 % or range", Column("n", justify="right"), "more")
    for row in rows:
        spread = "" if row.spread is None else f"{row.spread[0]:.3f} .. {row.spread[1]:.3f}"
        more = ", ".join(f"{key} {value:.3g}" for key, value in row.more.items())
        table.add_row(row.name, f"{row.value:.3f}", row.unit, spread, str(row.n), more)
    console.print(table)
    pays = next(row for row in rows if row.name == "all: gain of a guess, recorded tools")
    word = "pays" if pays.value is not None and pays.value > 0 else "does not pay: the switch leaves it off"
    console.print(f"{options.name} {word} at the recorded times and a price of 1 for a second of the model.")
    console.print(f"Written to {write('guesses', rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
