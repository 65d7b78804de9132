"""Scores the engine on recorded runs: `python -m forerun.predictor.evaluate FILE.jsonl.gz`.

Half of the tasks, chosen by hash, are learned first; the sessions of the other half are predicted step by step, and
learned only after they were scored, as they pass. What is printed:

* tool name @1/@3 and exact action @1/@3: of the steps that ask for calls, how often the first call's tool, or the call
  with all its arguments, was among the first one or three candidates;
* exact or no call @1: of all model steps, how often the most probable outcome (a call with all arguments, or no call)
  was right;
* calls covered: of all calls, also the later ones of a message, how many were among the candidates;
* Brier score and calibration of every candidate.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forerun.core.canonical import canonical
from forerun.predictor.engine.engine import Engine, Prediction
from forerun.predictor.engine.history import CallsAsked, ModelStarted, SessionClosed, SessionOpened
from forerun.predictor.recording import Recording, read

_TENANT, _AGENT = "evaluation", "agent"
_BINS = 10


@dataclass(slots=True)
class Score:
    """Counts of one evaluation."""

    steps: int = 0
    calling_steps: int = 0
    right_steps: int = 0
    name_at_1: int = 0
    name_at_3: int = 0
    exact_at_1: int = 0
    exact_at_3: int = 0
    calls: int = 0
    covered: int = 0
    brier: float = 0.0
    bins: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0, 0.0] for _ in range(_BINS)])

    def add(self, prediction: Prediction, asked: CallsAsked | None) -> None:
        """Scores one prediction."""
        actions = [(call.tool, canonical(call.arguments)) for call in asked.calls] if asked is not None else []
        proposed = [(candidate.tool, candidate.arguments) for candidate in prediction.candidates]
        self.steps += 1
        best = prediction.candidates[0].probability if prediction.candidates else 0.0
        self.right_steps += not actions if prediction.no_call_probability >= best else proposed[0] in actions
        for candidate, action in zip(prediction.candidates, proposed, strict=True):
            hit = float(action in actions)
            row = self.bins[min(int(candidate.probability * _BINS), _BINS - 1)]
            row[0], row[1], row[2] = row[0] + 1, row[1] + candidate.probability, row[2] + hit
            self.brier += (candidate.probability - hit) ** 2
        if not actions:
            return
        names = [tool for tool, _ in prediction.tools[:3]]
        self.calling_steps += 1
        self.name_at_1 += actions[0][0] in names[:1]
        self.name_at_3 += actions[0][0] in names
        self.exact_at_1 += actions[0] in proposed[:1]
        self.exact_at_3 += actions[0] in proposed[:3]
        self.calls += len(actions)
        self.covered += sum(action in proposed for action in actions)


def evaluate(recordings: Sequence[Recording], *, split: str, seed: int) -> Score:
    """Learns one half of the recordings and scores the other.

    Args:
        recordings: Sessions of one agent.
        split: "task" keeps the sessions of one task together, "session" does not.
        seed: Another seed gives other halves.
    """
    declared = tuple(sorted({tool for recording in recordings for tool in recording.tools}))
    engine, score = Engine(), Score()
    learned, scored = halves(recordings, split=split, seed=seed)
    for recording in learned:
        run(engine, recording, declared, None)
    for recording in scored:
        run(engine, recording, declared, score)
    return score


def halves(recordings: Iterable[Recording], *, split: str, seed: int) -> tuple[list[Recording], list[Recording]]:
    """What is learned, and what is scored. Arguments: as those of `evaluate`."""
    parts: tuple[list[Recording], list[Recording]] = ([], [])
    for recording in recordings:
        name = recording.task if split == "task" else recording.session
        parts[hashlib.sha256(f"{seed}:{name}".encode()).digest()[-1] % 2].append(recording)
    return parts


def run(engine: Engine, recording: Recording, declared: tuple[str, ...], score: Score | None) -> None:
    """Shows one recorded session to the engine, and scores what it predicts if asked to."""
    key = (_TENANT, _AGENT, recording.session)
    engine.observe(*key, SessionOpened(declared))
    for step in recording.steps:
        for event in step.before:
            engine.observe(*key, event)
        if not step.complete:
            break
        engine.observe(*key, ModelStarted())
        if score is not None:
            score.add(engine.predict(*key), step.asked)
        for happened in (step.text, step.asked):
            if happened is not None:
                engine.observe(*key, happened)
    engine.observe(*key, SessionClosed())


def report(score: Score) -> str:
    """The figures as text, in per cent."""
    calling, steps, calls = max(score.calling_steps, 1), max(score.steps, 1), max(score.calls, 1)
    candidates = max(sum(row[0] for row in score.bins), 1.0)
    lines = [
        f"model steps                {score.steps}, {score.calling_steps} of them with calls, {score.calls} calls",
        f"tool name @1/@3            {score.name_at_1 / calling:.1%} / {score.name_at_3 / calling:.1%}",
        f"exact action @1/@3         {score.exact_at_1 / calling:.1%} / {score.exact_at_3 / calling:.1%}",
        f"exact or no call @1        {score.right_steps / steps:.1%}",
        f"calls covered              {score.covered / calls:.1%}",
        f"Brier score per candidate  {score.brier / candidates:.4f}",
        "calibration: predicted / happened (candidates)",
    ]
    lines += [f"  {row[1] / row[0]:6.1%} / {row[2] / row[0]:6.1%} ({row[0]:.0f})" for row in score.bins if row[0]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m forerun.predictor.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, nargs="+", help="recorded runs, JSON lines, gzipped or not")
    parser.add_argument("--split", choices=("task", "session"), default="task", help="what the halves keep together")
    parser.add_argument("--seed", type=int, default=0, help="chooses the halves")
    options = parser.parse_args(arguments)
    for path in options.file:
        try:
            score = evaluate(list(read(path)), split=options.split, seed=options.seed)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            return 2
        sys.stdout.write(f"{path.name}\n{report(score)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
