"""The ledger lines of an answer: one for each attempt of each request. Their money is what the answer has cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forerun.core.answers import End, Report
from forerun.core.ledger import FIRST_WON, SECOND_WON, EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus
from forerun.orchestrator.answers.jobs import Job, Purpose
from forerun.runtime.errors import DeadlineExceeded, InvalidArgument
from forerun.runtime.models.calling import Attempt, Bill


def entries(answer: str, jobs: Iterable[Job], reports: Mapping[int, Report]) -> list[LedgerEntry]:
    """The lines of an answer.

    Args:
        answer: Its id.
        jobs: Its requests, all of which have ended.
        reports: How its candidates fared.
    """
    return [entry for job in jobs for entry in _of(answer, job, reports.get(job.candidate))]


def _of(answer: str, job: Job, report: Report | None) -> list[LedgerEntry]:
    bills = job.bills()
    if not bills:
        return []
    main = _main(job, bills)
    return [
        _race(answer, job, bill)
        if bill is not main and _beaten(job, bill.attempt)
        else _line(answer, job, bill, report)
        for bill in bills
    ]


def _main(job: Job, bills: list[Bill]) -> Bill:
    """The attempt that has answered, else the last one."""
    answered = job.call.answered
    return next((bill for bill in bills if bill.attempt is answered), bills[-1])


def _beaten(job: Job, attempt: Attempt) -> bool:
    """Another attempt that ran beside it has answered: it was stopped for that, or had failed in between."""
    return job.call.raced and job.call.answered is not None and (attempt.stopped or attempt.second)


def _race(answer: str, job: Job, bill: Bill) -> LedgerEntry:
    differs = bool(job.call.differs())
    return LedgerEntry(
        kind=EntryKind.RACE,
        tool=job.model,
        status=_status(bill.attempt),
        reason=FIRST_WON if bill.attempt.second else SECOND_WON,
        seconds=bill.attempt.seconds,
        wasted_seconds=bill.attempt.seconds,
        cost_money=bill.money,
        explanation="the other attempt had begun another answer" if differs else "",
        model=job.model,
        provider=bill.attempt.endpoint.provider.name,
        input_tokens=bill.usage.input_tokens,
        output_tokens=bill.usage.output_tokens,
        tokens_estimated=bill.usage.estimated,
        answer=answer,
    )


def _line(answer: str, job: Job, bill: Bill, report: Report | None) -> LedgerEntry:
    candidate = job.purpose in (Purpose.CANDIDATE, Purpose.DRAFT)
    taken = not candidate or (report is not None and report.end is End.CHOSEN)
    seconds = bill.attempt.seconds
    return LedgerEntry(
        kind=EntryKind.CANDIDATE if candidate else EntryKind.MODEL,
        tool="",
        status=_status(bill.attempt),
        reason=_reason(job, bill.attempt, report if candidate else None),
        seconds=seconds,
        wasted_seconds=0.0 if taken else seconds,
        cost_money=bill.money,
        model=job.model,
        provider=bill.attempt.endpoint.provider.name,
        input_tokens=bill.usage.input_tokens,
        output_tokens=bill.usage.output_tokens,
        tokens_estimated=bill.usage.estimated,
        answer=answer,
    )


def _reason(job: Job, attempt: Attempt, report: Report | None) -> str:
    if attempt.error is not None:
        return attempt.error.error.reason
    if report is None:
        return job.purpose.value
    if job.purpose is Purpose.DRAFT:
        return f"approximate: {report.end.value}"
    score = "" if report.score is None else f", score {report.score:.3g}"
    return f"candidate {report.candidate}: {report.end.value}{score}"


def _status(attempt: Attempt) -> CallStatus:
    if attempt.won:
        return CallStatus.OK
    if attempt.error is None:
        return CallStatus.CANCELLED
    if isinstance(attempt.error.error, DeadlineExceeded):
        return CallStatus.TIMEOUT
    return CallStatus.REJECTED if isinstance(attempt.error.error, InvalidArgument) else CallStatus.UNAVAILABLE
