"""What the runs amount to: times, what was saved, what was wasted, and whether anything differed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forerun.cli.demo.agents import research
from forerun.cli.demo.agents.script import Observation
from forerun.cli.demo.draws import KIND_OF_TOOL, Kind
from forerun.cli.demo.runs import Counts, Run, Served, SessionRecord
from forerun.cli.demo.tools.log import Execution

OUTCOMES = ("ready", "joined", "miss", "stale", "preempted", "expired", "failed", "cancelled")


def differing(reference: Sequence[Observation], other: Sequence[Observation]) -> int:
    """Observations that differ between two runs of one session, in value or order, byte for byte.

    One that is missing, or that the other run alone has, differs too.
    """
    same = sum(1 for one, two in zip(reference, other, strict=False) if one == two)
    return max(len(reference), len(other)) - same


def diverged(reference: Iterable[SessionRecord], other: Iterable[SessionRecord]) -> int:
    """Differing observations of all sessions. A session that ended unknown is compared up to there."""
    by_session = {record.task.session: record for record in reference}
    total = 0
    for record in other:
        expected, found = by_session[record.task.session].observations, record.observations
        if record.ended_unknown:
            known = next(index for index, one in enumerate(found) if one.status == "OUTCOME_UNKNOWN")
            expected, found = expected[:known], found[:known]
        total += differing(expected, found)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the demo ran on.

    Attributes:
        isolation: Level of isolation of commands, or None where the platform did not say.
        restarts: Service processes that had to be started again; None where nobody counted.
    """

    isolation: str | None
    restarts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The result of a demo."""

    sequential_seconds: float
    parallel_seconds: float
    forerun_seconds: float
    counts: Counts
    executions: int
    served: Mapping[Served, int]
    hidden_seconds: float
    parallel_diverged: int
    forerun_diverged: int
    unknown: int
    sessions: int
    surroundings: Surroundings

    @property
    def diverged(self) -> int:
        """Observations of either run that differ from the sequential one."""
        return self.parallel_diverged + self.forerun_diverged

    @property
    def saved_percent(self) -> float:
        """Time saved against ordinary ordered parallel execution."""
        return 100.0 * (self.parallel_seconds - self.forerun_seconds) / self.parallel_seconds

    @property
    def hits(self) -> int:
        """Speculations whose result was used."""
        return self.counts.outcomes.get("ready", 0) + self.counts.outcomes.get("joined", 0)

    @property
    def hit_rate(self) -> float | None:
        """Hits of the launched; None where nothing was launched."""
        return self.hits / self.counts.launched if self.counts.launched else None

    @property
    def coverage(self) -> float | None:
        """Hits of the calls that might have been run ahead; None where there were none."""
        return self.hits / self.counts.speculable_calls if self.counts.speculable_calls else None

    @property
    def amplification(self) -> float:
        """Tool executions of an authoritative call."""
        return self.executions / self.counts.calls

    def as_json(self) -> dict[str, object]:
        """The machine-readable form; names are stable."""
        return {
            "sequential_s": round(self.sequential_seconds, 3),
            "parallel_s": round(self.parallel_seconds, 3),
            "forerun_s": round(self.forerun_seconds, 3),
            "saved_pct": round(self.saved_percent, 2),
            "calls": self.counts.calls,
            "launched": self.counts.launched,
            "outcomes": {name: self.counts.outcomes.get(name, 0) for name in OUTCOMES},
            "memo_hits": self.counts.memo_hits,
            "hit_rate": _rounded(self.hit_rate),
            "coverage": _rounded(self.coverage),
            "amplification": round(self.amplification, 4),
            "waste_s": round(self.counts.wasted_seconds, 3),
            "diverged": self.diverged,
            "unknown": self.unknown,
            "isolation": self.surroundings.isolation,
            "restarts": self.surroundings.restarts,
            "sessions": self.sessions,
            "baselines": "sequential and parallel ran on the same platform with mode off",
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def figures(
    records: Mapping[Run, Sequence[SessionRecord]], logged: Sequence[Execution] | None, surroundings: Surroundings
) -> Figures:
    """The figures of a demo.

    Args:
        records: The sessions of the sequential, the parallel and the Forerun run.
        logged: What the tools themselves recorded while the scored runs were on; None where that is out of reach, and
            the platform's own count is taken for all of them.
        surroundings: What it ran on.
    """
    forerun = records[Run.FORERUN]
    sequential = records[Run.SEQUENTIAL]
    answers = [answer for record in forerun for step in record.steps for answer in step.answers]
    return Figures(
        sequential_seconds=_seconds(sequential),
        parallel_seconds=_seconds(records[Run.PARALLEL]),
        forerun_seconds=_seconds(forerun),
        counts=sum((record.counts for record in forerun), Counts()),
        executions=executions(records, logged),
        served=Counter(answer.served for answer in answers),
        hidden_seconds=sum(answer.hidden_seconds for answer in answers),
        parallel_diverged=diverged(sequential, records[Run.PARALLEL]),
        forerun_diverged=diverged(sequential, forerun),
        unknown=sum(record.ended_unknown for run in records.values() for record in run),
        sessions=len(forerun),
        surroundings=surroundings,
    )


def executions(records: Mapping[Run, Sequence[SessionRecord]], logged: Iterable[Execution] | None) -> int:
    """Tool executions of the Forerun run: of servers by their own log, of commands by the platform's count.

    Where the servers' log is out of reach everything is by the platform's count.

    A command runs where it can write nothing but its workspace, and a discarded one takes that with it; so it cannot
    keep a log, and the worker's count is taken. The graph server is told a ticket, which all runs share; nothing runs
    ahead in the baselines, so what they asked of it they executed, and the rest of its log is Forerun's.
    """
    forerun = records[Run.FORERUN]
    if logged is None:
        return sum(record.counts.executions for record in forerun)
    commands = sum(record.counts.executions for record in forerun if record.task.agent != research.AGENT)
    logged = list(logged)
    by_label = sum(one.session.startswith(f"{Run.FORERUN.value}.") for one in logged)
    by_ticket = sum("." not in one.session for one in logged)
    of_baselines = sum(
        KIND_OF_TOOL[call.tool] is Kind.MCP
        for run in (Run.PARALLEL, Run.SEQUENTIAL)
        for record in records[run]
        for step in record.steps
        for call in step.calls
    )
    return commands + by_label + by_ticket - of_baselines


def _seconds(records: Iterable[SessionRecord]) -> float:
    return sum(record.seconds for record in records)
