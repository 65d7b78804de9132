"""Controls: known changes in the place of Forerun, by which the replay itself is checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final

from forerun.cli.replay.agent import SessionRun
from forerun.core.experiment import Effect, Finding, Unit, effect
from forerun.core.governor import Refusal
from forerun.v1 import ledger_pb2

PLANTED: Final = 0.05
"""Share of its time by which a session of the harm control is longer."""

HARM_SEEDS: Final = 100
EQUAL_PAIRS: Final = 1_000
_FOUND_AT_LEAST: Final = 80
_QUIET: Final = range(930, 971)
_CALLS_UNTIL_OFF: Final = 50


class Control(StrEnum):
    """What takes the place of Forerun, to see whether the replay itself is right."""

    OFF = "off"
    """Speculation and memo switched off: what is left is the platform's overhead."""
    ALL_WRONG = "all-wrong"
    """A predictor that was perfect until the scored sessions begin, and is certain and always wrong from then on."""
    AA = "aa"
    """Ordered parallel a second time: no difference may be found."""
    HARM = "harm"
    """Ordered parallel made 5 % slower: a hold-out experiment must find it, and nothing where nothing is planted."""


@dataclass(frozen=True, slots=True)
class HarmStudy:
    """What hold-out experiments said about a planted harm, and about nothing.

    Attributes:
        effect: Of the first assignment; None where the sessions are too few or too alike for any statement.
        found: Of `seeds` assignments, those in which the planted harm was found.
        quiet: Of `pairs` assignments of equal sessions, those in which nothing was found.
    """

    effect: Effect | None
    found: int
    quiet: int
    seeds: int = HARM_SEEDS
    pairs: int = EQUAL_PAIRS

    @property
    def holds(self) -> bool:
        """Harm is found in 80 of 100 assignments, and nothing in 93 to 97 % of equal pairs."""
        return self.found >= _FOUND_AT_LEAST and self.quiet in _QUIET

    def row(self) -> dict[str, object]:
        """For `--json`."""
        first = self.effect
        return {
            "share": 0.5,
            "sessions": 0 if first is None else first.held_out,
            "saved_pct": None if first is None else first.saved_pct,
            "saved_pct_ci95": None if first is None else [first.low, first.high],
            "sessions_for_1_pct": None if first is None else first.sessions_for(1.0),
            "found": self.found,
            "seeds": self.seeds,
            "quiet": self.quiet,
            "pairs": self.pairs,
            "holds": self.holds,
        }


def harm_study(equal: Sequence[SessionRun], harmed: Sequence[SessionRun]) -> HarmStudy:
    """Assigns sessions to the two groups by hash, many times, and asks the hold-out report each time.

    Args:
        equal: The sessions as they are.
        harmed: The same sessions with the planted harm.
    """
    expected = expected_seconds(equal)

    def experiment(name: str, treated: Sequence[SessionRun]) -> Effect | None:
        units = []
        for plain, other, seconds in zip(equal, treated, expected, strict=True):
            chosen = _chosen(name, plain.session.name)
            wall = other.wall_seconds if chosen else plain.wall_seconds
            units.append(Unit(chosen, wall, seconds, plain.session.task))
        return effect(units)

    found = sum(_finding(experiment(f"harm:{seed}", harmed)) is Finding.HARM for seed in range(HARM_SEEDS))
    quiet = sum(_finding(experiment(f"equal:{seed}", equal)) is Finding.NOTHING for seed in range(EQUAL_PAIRS))
    return HarmStudy(experiment("harm:0", harmed), found, quiet)


def expected_seconds(runs: Sequence[SessionRun]) -> list[float]:
    """What each session would be expected to take: its models' seconds, and its calls at their tool's median."""
    by_tool: dict[str, list[float]] = {}
    for run in runs:
        for call, seconds in _calls(run):
            by_tool.setdefault(call, []).append(seconds)
    usual = {tool: median(seconds) for tool, seconds in by_tool.items()}
    return [
        sum(step.model_seconds for step in run.session.steps) + sum(usual[tool] for tool, _ in _calls(run))
        for run in runs
    ]


def _calls(run: SessionRun) -> list[tuple[str, float]]:
    tools = [call.tool for step in run.session.steps for call in step.calls]
    return [(tool, one.execution_seconds) for tool, one in zip(tools, run.flat, strict=True)]


def _finding(found: Effect | None) -> Finding | None:
    return None if found is None else found.finding


def _chosen(experiment: str, session: str) -> bool:
    return hashlib.sha256(f"{experiment}:{session}".encode()).digest()[0] < 128  # half of the values of a byte


@dataclass(slots=True)
class SiteWatch:
    """Follows call sites through the ledger: what was launched there, and after how many calls each was off.

    Attributes:
        launched: Speculations by site.
        calls: Authoritative calls of a site's tool since the first launch there, until it was off.
        off: Sites that were turned off.
    """

    launched: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    off: set[str] = field(default_factory=set)
    _by_tool: dict[str, set[str]] = field(default_factory=dict)

    def see(self, line: ledger_pb2.LedgerLine) -> None:
        """Takes the next line of the ledger."""
        if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION:
            self.launched[line.site] += 1
            self._by_tool.setdefault(line.tool, set()).add(line.site)
        elif line.kind == ledger_pb2.LEDGER_KIND_DECISION and line.reason == Refusal.SITE_OFF:
            self.off.add(line.site)
        elif line.kind == ledger_pb2.LEDGER_KIND_CALL:
            for site in self._by_tool.get(line.tool, set()) - self.off:
                self.calls[site] += 1


@dataclass(frozen=True, slots=True)
class WrongStudy:
    """What an always wrong predictor cost.

    Attributes:
        off_seconds: The same sessions with speculation off.
        wrong_seconds: The sessions with the wrong predictor.
        sites: Call sites with a launch.
        off: Of these, those that were turned off.
        slowest: Calls until the last of them was off, or of the one that stayed on longest.
    """

    off_seconds: float
    wrong_seconds: float
    sites: int
    off: int
    slowest: int

    @property
    def holds(self) -> bool:
        """At most 2 % above off, and no call site stays on for more than 50 calls."""
        return self.wrong_seconds <= 1.02 * self.off_seconds and self.slowest <= _CALLS_UNTIL_OFF

    def row(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "off_s": self.off_seconds,
            "sites": self.sites,
            "sites_off": self.off,
            "calls_until_off": self.slowest,
            "holds": self.holds,
        }


def wrong_study(wrong: Sequence[SessionRun], off: Sequence[SessionRun], watch: SiteWatch) -> WrongStudy:
    """Puts the figures of the all-wrong control together."""
    return WrongStudy(
        off_seconds=_sum(off),
        wrong_seconds=_sum(wrong),
        sites=len(watch.launched),
        off=len(watch.off & set(watch.launched)),
        slowest=max((watch.calls[site] for site in watch.launched), default=0),
    )


def _sum(runs: Sequence[SessionRun]) -> float:
    return sum(run.wall_seconds for run in runs)
