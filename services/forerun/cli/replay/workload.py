"""What a replay runs: loaded, timed, split and recorded at its positions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.cli.replay import policies
from forerun.cli.replay.policies import Rules
from forerun.cli.replay.positions import Durations, Recording, record, sequential_session
from forerun.cli.replay.split import SplitBy, split
from forerun.cli.replay.timing import Timed, with_times
from forerun.cli.replay.traces import Session, read_file, stem_of
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.v1 import policy_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the person asked for.

    Attributes:
        files: Trace files to score.
        train: Trace files to learn from.
        sessions: Score at most so many sessions, chosen by the seed. None: all.
        seed: Decides halves, choices, imputed times and draws.
        split_by: What learned and scored sessions must not share.
        tool_seconds: Median to which each file's tool times are scaled. None: as recorded.
        scale: Factor on every time.
        policy: Effect contracts for all files. None: the file beside the traces, see `default_policy`.
        max_amplification: Bound on executions per authoritative call. None: the platform's own budget.
    """

    files: tuple[Path, ...]
    train: tuple[Path, ...] = ()
    sessions: int | None = None
    seed: int = 1
    split_by: SplitBy = SplitBy.TASK
    tool_seconds: float | None = None
    scale: float = 1.0
    policy: Path | None = None
    max_amplification: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What a replay runs.

    Attributes:
        recordings: The sessions to score, in the order of their files; their number is their place here.
        training: The sessions to learn from, with the contents that an agent observes.
        tools: Names of the tools of each file, which is each agent.
        durations: How long calls take that were never recorded.
        policies: The policy of each file.
        imputed_times: Durations of scored sessions that were not measured.
        notes: What a person should know about the data.
    """

    recordings: tuple[Recording, ...]
    training: tuple[Session, ...]
    tools: Mapping[str, tuple[str, ...]]
    durations: Durations
    policies: tuple[policy_pb2.SpeculationPolicy, ...]
    imputed_times: int
    notes: tuple[str, ...]

    @property
    def calls(self) -> int:
        """Tool calls of the scored sessions."""
        return sum(recording.session.calls for recording in self.recordings)

    @property
    def nondeterministic(self) -> int:
        """Calls of scored sessions whose recorded answer differs from an earlier one at the same position."""
        return sum(recording.nondeterministic for recording in self.recordings)

    @property
    def all_tools(self) -> tuple[str, ...]:
        """Names of the tools of all files."""
        return tuple(sorted({tool for tools in self.tools.values() for tool in tools}))

    def policy_file(self, address: str) -> policy_pb2.PolicyFile:
        """Policies and the tool server at `address`."""
        return policies.policy_file(self.policies, self.all_tools, address=address)


def default_policy(trace: Path) -> Path:
    """Where the effect contracts of a trace file lie: `policies/<stem>.json` beside the folder of the traces."""
    return trace.resolve().parent.parent / "policies" / f"{stem_of(trace)}.json"


def load(selection: Selection) -> Workload:
    """Reads and prepares everything.

    Raises:
        FailedPrecondition: A file is missing; the message names it.
        InvalidArgument: A file cannot be understood.
    """
    paths = {stem_of(path): path for path in (*selection.files, *selection.train)}
    notes: list[str] = []
    timed = {stem: _timed(path, selection) for stem, path in paths.items()}
    rules = {stem: _rules(path, selection, notes) for stem, path in paths.items()}
    unanswered = sum(one.unanswered for one in timed.values())
    if unanswered:
        notes.append(f"{unanswered} calls without a recorded answer are left out")
    parts = split(
        {stem_of(path): timed[stem_of(path)].sessions for path in selection.files},
        {stem_of(path): timed[stem_of(path)].sessions for path in selection.train},
        seed=selection.seed,
        by=selection.split_by,
    )
    scored = _chosen(parts.scored, selection)
    every = [session for one in timed.values() for session in one.sessions]
    tools = {
        stem: tuple(sorted({call.tool for session in one.sessions for step in session.steps for call in step.calls}))
        for stem, one in timed.items()
    }
    return Workload(
        recordings=tuple(record(session, rules[session.file]) for session in scored),
        training=tuple(sequential_session(record(session, rules[session.file])) for session in parts.training),
        tools=tools,
        durations=Durations(every, selection.seed),
        policies=tuple(
            policies.policy(rules[stem], tools[stem], max_amplification=selection.max_amplification) for stem in paths
        ),
        imputed_times=sum(timed[session.file].imputed[session.name] for session in scored),
        notes=tuple(notes),
    )


def _timed(path: Path, selection: Selection) -> Timed:
    try:
        raw = read_file(path)
    except OSError as error:
        raise _missing(path, error) from error
    return with_times(raw, seed=selection.seed, tool_seconds=selection.tool_seconds, scale=selection.scale)


def _rules(path: Path, selection: Selection, notes: list[str]) -> Rules:
    stem = stem_of(path)
    found = selection.policy or default_policy(path)
    if selection.policy is None and not found.is_file():
        notes.append(f"no policy for {stem} at {found}: every call is a write, nothing runs ahead")
        return Rules(stem, {})
    try:
        return policies.load(found, stem)
    except OSError as error:
        raise _missing(found, error) from error


def _chosen(sessions: Sequence[Session], selection: Selection) -> Sequence[Session]:
    if selection.sessions is None or selection.sessions >= len(sessions):
        return sessions
    places = random.Random(f"sessions:{selection.seed}").sample(range(len(sessions)), selection.sessions)
    return [sessions[place] for place in sorted(places)]


def _missing(path: Path, error: OSError) -> FailedPrecondition:
    return FailedPrecondition(
        ErrorReason.DEPENDENCY_MISSING, f"cannot read {path}: {error.strerror or error}", metadata={"file": str(path)}
    )
