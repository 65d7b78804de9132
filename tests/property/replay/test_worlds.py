"""Laws of the recorded world, for generated sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.cli.replay.agent import SessionRun, run_agent
from forerun.cli.replay.direct import DirectSession
from forerun.cli.replay.divergence import differences
from forerun.cli.replay.policies import Rules, ToolRule
from forerun.cli.replay.positions import Durations, record
from forerun.cli.replay.split import SplitBy, split
from forerun.cli.replay.toolserver import Execution, ToolServer, label_of
from forerun.cli.replay.traces import RecordedCall, Session, Step
from forerun.runtime.virtual import run_virtual

RULES = Rules(
    "f",
    {
        "read_a": ToolRule("read", "a"),
        "read_b": ToolRule("read", "b"),
        "write_a": ToolRule("write", "a"),
        "write_b": ToolRule("write", "b"),
        "pure": ToolRule("pure", ""),
    },
)
calls = st.builds(
    RecordedCall,
    tool=st.sampled_from([*RULES.tools, "unlisted"]),
    arguments=st.sampled_from([b"{}", b'{"x":1}']),
    content=st.text(max_size=3),
    error=st.booleans(),
    seconds=st.floats(0.0, 9.0),
    provider_call_id=st.just("c"),
)
steps = st.lists(st.lists(calls, max_size=6), min_size=1, max_size=6)


def session_of(messages: list[list[RecordedCall]]) -> Session:
    made = [Step(turn, (), 1.0, "", tuple(message)) for turn, message in enumerate(messages, start=1)]
    return Session("f/s", "f", "t", tuple(made))


def users(sessions: Sequence[Session]) -> set[bytes]:
    return {call.arguments for session in sessions for step in session.steps for call in step.calls}


def run_both(session: Session) -> tuple[SessionRun, SessionRun, list[Execution], list[Execution]]:
    async def main(_clock: object, _ids: object) -> tuple[SessionRun, SessionRun, list[Execution], list[Execution]]:
        server = ToolServer({0: record(session, RULES)}, Durations([session], seed=1))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://tools") as client:
            runs = [
                await run_agent(session, DirectSession(client, label_of(arm, 0), RULES, parallel=arm == "parallel"))
                for arm in ("parallel", "sequential")
            ]
        first, second = server.logs(0, "parallel", "sequential")
        return runs[0], runs[1], list(first), list(second)

    return run_virtual(main)


@settings(deadline=None, max_examples=30)
@given(steps)
def test_ordered_parallel_observes_what_sequential_observes_and_is_never_slower(
    messages: list[list[RecordedCall]],
) -> None:
    parallel, sequential, *logs = run_both(session_of(messages))
    assert differences(parallel, sequential, *logs) == []
    assert parallel.wall_seconds <= sequential.wall_seconds + 1e-6


@settings(deadline=None, max_examples=30)
@given(steps)
def test_a_sequential_run_observes_the_recorded_answers_in_order(messages: list[list[RecordedCall]]) -> None:
    session = session_of(messages)
    recording = record(session, RULES)
    _, sequential, _, log = run_both(session)
    assert [one.content for one in sequential.flat] == [answer.body for answer in recording.in_order]
    assert not any("never_recorded" in json.loads(one.content) for one in sequential.flat)
    assert len(log) == session.calls


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40),
    st.integers(0, 2**32),
    st.sampled_from(SplitBy),
)
def test_no_task_is_learned_and_scored_and_no_session_is_lost(
    drawn: list[tuple[int, int]], seed: int, by: SplitBy
) -> None:
    sessions = [
        Session(
            f"f/{number}",
            "f",
            f"task{task}",
            (Step(1, (), 0.0, "", (RecordedCall("t", f'{{"id":"user_{user}00"}}'.encode(), "", False, 0.0, ""),)),),
        )
        for number, (task, user) in enumerate(drawn)
    ]
    parts = split({"f": sessions}, {"f": sessions}, seed=seed, by=by)
    assert sorted(s.name for s in (*parts.training, *parts.scored)) == sorted(s.name for s in sessions)
    assert {s.task for s in parts.training}.isdisjoint(s.task for s in parts.scored)
    if by is SplitBy.CLUSTER:
        assert users(parts.training).isdisjoint(users(parts.scored))
