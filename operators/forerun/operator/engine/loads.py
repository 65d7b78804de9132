"""What was heard of the load: reports of workers by pool, reports of orchestrators, and what they add up to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from forerun.core.capacity import Signal
from forerun.v1 import capacity_pb2, sandbox_pb2

# A worker that is silent for longer is gone: its sessions are elsewhere or over, and its report is a memory.
_GONE_SECONDS: Final = 5.0
_FORGET_SECONDS: Final = 900.0
_GAIN_SECONDS: Final = 300.0
_GAIN_EVERY_SECONDS: Final = 5.0
# Below so much speculative work within the window its gain is chance.
_GAIN_EVIDENCE_SECONDS: Final = 30.0
_REPORTERS: Final = 10_000
_EARLY_SECONDS: Final = 2.0


@dataclass(slots=True)
class _Worker:
    report: sandbox_pb2.LoadReport
    at: float
    refused_before: tuple[float, int]


@dataclass(slots=True)
class _Orchestrator:
    report: capacity_pb2.DemandReport
    at: float


class Loads:
    """Takes reports and gives signals. Times are seconds of a clock that never goes backwards."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._orchestrators: dict[str, _Orchestrator] = {}
        self._totals: deque[tuple[float, float, float]] = deque()
        self._saved = 0.0
        self._spent = 0.0

    def hear_worker(self, report: sandbox_pb2.LoadReport, now: float) -> None:
        """Takes a worker's report; those without a pool say nothing about any."""
        if not report.pool or (report.worker not in self._workers and len(self._workers) >= _REPORTERS):
            return
        old = self._workers.get(report.worker)
        before = (now, report.speculative_refused) if old is None else old.refused_before
        if old is not None and now - before[0] >= _EARLY_SECONDS:
            before = (old.at, old.report.speculative_refused)
        self._workers[report.worker] = _Worker(report, now, before)

    def hear_orchestrator(self, report: capacity_pb2.DemandReport, now: float) -> None:
        """Takes an orchestrator's report. Totals of one that began anew count from there."""
        if report.owner not in self._orchestrators and len(self._orchestrators) >= _REPORTERS:
            return
        old = self._orchestrators.get(report.owner)
        if old is not None:
            self._saved += max(0.0, report.saved_seconds - old.report.saved_seconds)
            self._spent += max(0.0, report.speculative_seconds - old.report.speculative_seconds)
        self._orchestrators[report.owner] = _Orchestrator(report, now)
        if not self._totals or now - self._totals[-1][0] >= _GAIN_EVERY_SECONDS:
            self._totals.append((now, self._saved, self._spent))
        while now - self._totals[0][0] > _GAIN_SECONDS:
            self._totals.popleft()

    def forget(self, now: float) -> None:
        """Lets go of who has been silent for long."""
        self._workers = {key: one for key, one in self._workers.items() if now - one.at < _FORGET_SECONDS}
        self._orchestrators = {key: one for key, one in self._orchestrators.items() if now - one.at < _FORGET_SECONDS}

    def workers(self, pool: str, now: float) -> int:
        """Workers of a pool that live."""
        return len(self._alive(pool, now))

    def signal(self, pool: str, ready_replicas: int, now: float) -> Signal:
        """The load of a pool.

        Where no worker lives because the pool has no replicas, the calls that orchestrators have in flight say that
        somebody waits. Where there should be workers and none is heard, nothing is known.
        """
        alive = self._alive(pool, now)
        if not alive:
            return self._without_workers(pool, ready_replicas, now)
        return Signal(
            at=now,
            age_seconds=now - max(one.at for one in alive),
            running=sum(one.report.authoritative_running for one in alive),
            waiting=sum(one.report.authoritative_waiting for one in alive),
            speculative_wanted=sum(one.report.speculative_running + _refused(one) for one in alive),
            gain=self._gain(),
            ready_replicas=ready_replicas,
        )

    def _without_workers(self, pool: str, ready_replicas: int, now: float) -> Signal:
        silent = [now - one.at for one in self._workers.values() if one.report.pool == pool]
        heard = [one for one in self._orchestrators.values() if now - one.at <= _GONE_SECONDS]
        if ready_replicas > 0 or not heard:
            return Signal(at=now, age_seconds=min(silent, default=None), ready_replicas=ready_replicas)
        return Signal(
            at=now,
            age_seconds=now - max(one.at for one in heard),
            waiting=sum(one.report.calls_in_flight for one in heard),
            gain=self._gain(),
        )

    def _alive(self, pool: str, now: float) -> list[_Worker]:
        return [one for one in self._workers.values() if one.report.pool == pool and now - one.at <= _GONE_SECONDS]

    def _gain(self) -> float | None:
        if not self._totals:
            return None
        _, saved, spent = self._totals[0]
        spent = self._spent - spent
        return (self._saved - saved) / spent if spent >= _GAIN_EVIDENCE_SECONDS else None


def _refused(worker: _Worker) -> int:
    """Executions ahead of time that found no slot lately."""
    return max(0, worker.report.speculative_refused - worker.refused_before[1])
