"""Which sessions are learned from and which are scored: by task, or by entity.

Sessions that learn and sessions that are scored never share a task. With `cluster` they share no entity either: an
entity is an identifier that appears in the arguments of calls (a user id, an order, a reservation, a phone number),
and tasks that share one are kept together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forerun.cli.replay.traces import Session

# Letters and digits together, or many digits: an identifier. Numbers, dates and words are values that anybody has.
_IDENTIFIER = re.compile(r"#?[A-Za-z0-9]+(?:[_\-][A-Za-z0-9]+)*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_IDENTIFIER_CHARS = range(5, 65)
_MANY_DIGITS = 8


class SplitBy(StrEnum):
    """What sessions of the two parts must not share."""

    TASK = "task"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Split:
    """Sessions to learn from, and sessions to score, each in the order of the files."""

    training: tuple[Session, ...]
    scored: tuple[Session, ...]


def split(
    files: Mapping[str, Sequence[Session]], training_files: Mapping[str, Sequence[Session]], *, seed: int, by: SplitBy
) -> Split:
    """Splits the sessions of all files.

    A file that is in both roles is halved by a hash of (seed, task or cluster). Of another training file every session
    is taken that shares no task (or entity) with a scored session.

    Args:
        files: Sessions to score, by file.
        training_files: Sessions to learn from, by file.
        seed: Decides the halves.
        by: What the two parts must not share.
    """
    everything = [session for sessions in {**files, **training_files}.values() for session in sessions]
    group = _clusters(everything) if by is SplitBy.CLUSTER else {task: task for task in map(_task, everything)}
    scored = [
        session
        for name, sessions in files.items()
        for session in sessions
        if name not in training_files or not _first_half(seed, group[_task(session)])
    ]
    taken = {group[_task(session)] for session in scored}
    training = [s for sessions in training_files.values() for s in sessions if group[_task(s)] not in taken]
    return Split(tuple(training), tuple(scored))


def _task(session: Session) -> str:
    return session.task


def _first_half(seed: int, group: str) -> bool:
    return hashlib.sha256(f"{seed}:{group}".encode()).digest()[0] < 128  # half of the values of a byte


def _clusters(sessions: Sequence[Session]) -> dict[str, str]:
    """The cluster of each task: the smallest task that it is connected to by shared identifiers."""
    parents = {session.task: session.task for session in sessions}

    def root(task: str) -> str:
        while parents[task] != task:
            parents[task] = parents[parents[task]]
            task = parents[task]
        return task

    tasks_of: dict[str, set[str]] = defaultdict(set)
    for session in sessions:
        for identifier in _identifiers(session):
            tasks_of[identifier].add(session.task)
    for tasks in tasks_of.values():
        first, *others = sorted(root(task) for task in tasks)
        for other in others:
            parents[root(other)] = root(first)
    return {task: root(task) for task in parents}


def _identifiers(session: Session) -> Iterator[str]:
    for step in session.steps:
        for call in step.calls:
            for leaf in _leaves(json.loads(call.arguments)):
                if len(leaf) in _IDENTIFIER_CHARS and _is_identifier(leaf):
                    yield leaf


def _is_identifier(text: str) -> bool:
    if not _IDENTIFIER.fullmatch(text) or _DATE.fullmatch(text):
        return False
    digits = sum(character.isdigit() for character in text)
    return digits >= _MANY_DIGITS or (digits > 0 and any(character.isalpha() for character in text))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member)
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield str(value)
