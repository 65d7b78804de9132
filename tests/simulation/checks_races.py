"""Invariants 2, 5 and 7 for races: few second attempts, each loser stopped at once and written down once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from forerun.v1 import ledger_pb2
from tests.simulation.evidence import Evidence, end_of, line_key
from tests.simulation.nemesis import REPLICAS
from tests.simulation.policy import RACED
from tests.simulation.world import Execution

_STOP_SECONDS = 1.0


def races(evidence: Evidence) -> Iterator[str]:
    """The tool servers' log says which calls raced, and the ledger says so of each of them."""
    attempts: dict[str, list[Execution]] = defaultdict(list)
    for one in evidence.world.log:
        attempts[one.key].append(one)
        if one.second and (one.speculative or one.audit or one.tool not in RACED):
            yield f"7: {one.tool} {one.key} had a second attempt, which is for slow calls of other tools"
    yield from _few(evidence)
    lines = Counter(line_key(line) for line in evidence.lines if line.kind == ledger_pb2.LEDGER_KIND_RACE)
    told = sum(totals.races for totals in evidence.totals)
    if not any(outage.what in REPLICAS for outage in evidence.nemesis.outages) and told != lines.total():
        yield f"2: the replicas count {told} races, the ledger {lines.total()}"
    for key, count in lines.items():
        if count > evidence.tap.epochs[key.partition("/")[0]]:
            yield f"2: the race of {key} is in the ledger {count} times"
    for line in evidence.lines:
        if line.kind == ledger_pb2.LEDGER_KIND_RACE and line.wasted_seconds != line.seconds:
            yield f"2: the race of {line_key(line)} took {line.seconds:.3f} s, billed are {line.wasted_seconds:.3f}"
    for key, own in attempts.items():
        yield from _one(evidence, key, own, lines[key])


def _few(evidence: Evidence) -> Iterator[str]:
    """Second attempts stay below their share of the calls, whatever the policies that were in force."""
    most = max(policy.most_extra for policy in evidence.nemesis.policies)
    for tool in RACED:
        second = sum(one.second for one in evidence.world.log if one.tool == tool)
        first = evidence.wiretap.first[tool]
        if second > most * first:
            yield f"7: {tool} had {second} second attempts for {first} calls, allowed are {most:.2f} of them"


def _one(evidence: Evidence, key: str, own: list[Execution], lines: int) -> Iterator[str]:
    if evidence.kinds & {"network", "crash", "restart", "broker"}:
        return  # the winner's answer may be lost on its way, or nobody is there who could stop the loser
    for second in (one for one in own if one.second):
        # The latest attempt at the first provider that began before it: there may have been tries before.
        first = next((one for one in reversed(own) if not one.second and one.started_at <= second.started_at), None)
        if first is None:
            continue
        winner, loser = sorted((first, second), key=end_of)
        if winner.end != "ok" or winner.garbled or loser.started_at > end_of(winner):
            continue
        late = end_of(loser) - end_of(winner)
        if late > _STOP_SECONDS:
            yield f"5: {loser.tool} {key} went on for {late:.2f} s after its other attempt had answered"
        if lines == 0 and loser.end == "gone":
            yield f"2: {loser.tool} {key} was raced, and no line of the ledger says what that cost"
