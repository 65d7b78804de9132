"""What all sessions of a replica share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.orchestrator.certifier import Certifier
from forerun.orchestrator.ledger import Outbox
from forerun.orchestrator.observer import Observer
from forerun.orchestrator.places import Places
from forerun.orchestrator.results import Results
from forerun.orchestrator.shared import SharedGenerations
from forerun.orchestrator.workers import Workers
from forerun.runtime.tasks import TaskScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What all sessions of a replica share.

    Attributes:
        workers: Runs tools.
        certifier: The verifier.
        shared: Generations of shared resources.
        outbox: Ledger lines and audits.
        tasks: Owns background work.
        observer: Metrics, totals and traces.
        places: What may run at the same time.
        results: Large results that were stored.
        partitions: Predictor partitions.
        monotonic: The time for decisions.
    """

    workers: Workers
    certifier: Certifier
    shared: SharedGenerations
    outbox: Outbox
    tasks: TaskScope
    observer: Observer
    places: Places
    results: Results
    partitions: int
    monotonic: Callable[[], float]
