"""Durations of recorded runs."""

from __future__ import annotations

import pytest

from forerun.cli.replay.timing import TAU2_TOOL_SECONDS, Timed, with_times
from forerun.cli.replay.traces import RawCall, RawSession, RawStep

REQUEST_START = "call.t=LLM request start; result.t=tool done"
OUTPUT_DONE = "call.t=LLM response done; result.t=tool done"


def call(
    tool: str = "look", at: float | None = None, ended_at: float | None = None, arguments: bytes = b"{}"
) -> RawCall:
    return RawCall(tool, arguments, "c", at, "seen", False, ended_at)


def step(turn: int, *calls: RawCall, user_at: float | None = None, text_at: float | None = None) -> RawStep:
    return RawStep(turn, [] if user_at is None else ["hello"], user_at, ["text"], text_at, list(calls))


def session(*steps: RawStep, t_kind: str = REQUEST_START, source: str = "synthetic", name: str = "s") -> RawSession:
    return RawSession(name, "runs", "t", source, "m", t_kind, list(steps), None, 0)


def times(timed: Timed, number: int = 0) -> list[tuple[float, list[float]]]:
    return [(s.model_seconds, [c.seconds for c in s.calls]) for s in timed.sessions[number].steps]


def test_request_start_the_first_call_is_imputed_and_later_ones_are_measured() -> None:
    timed = with_times([session(step(1, call(at=0.0, ended_at=5.0), call(at=0.0, ended_at=5.7)))], seed=1)
    ((model, tools),) = times(timed)
    assert tools == pytest.approx([0.7, 0.7])  # the only measured value of the tool is the second call's
    assert model == pytest.approx(4.3)
    assert timed.imputed["s"] == 1


def test_request_start_an_imputed_call_leaves_time_for_the_model() -> None:
    raw = session(step(1, call(at=0.0, ended_at=1.0), call(at=0.0, ended_at=31.0)))
    ((model, tools),) = times(with_times([raw], seed=1))
    assert tools[0] <= 0.9
    assert model >= 0.1
    assert tools[1] == pytest.approx(30.0)


def test_request_start_a_message_without_calls_ends_before_the_user_speaks() -> None:
    raw = session(
        step(1, call(at=0.0, ended_at=9.0), call(at=0.0, ended_at=9.1)),
        step(2),
        step(3, call(at=12.0, ended_at=20.0), user_at=12.0),
    )
    timed = with_times([raw], seed=1)
    assert times(timed)[1][0] == pytest.approx(12.0 - 9.1)
    assert timed.imputed["s"] == 3


def test_request_start_a_last_message_gets_a_measured_model_time() -> None:
    raw = session(step(1, call(at=0.0, ended_at=9.0), call(at=0.0, ended_at=9.1)), step(2))
    timed = with_times([raw], seed=1)
    assert times(timed)[1][0] == pytest.approx(times(timed)[0][0])


@pytest.mark.parametrize(
    ("command", "low", "high"), [(b"ls", 0.05, 0.14), (b"python x.py", 0.4, 0.4), (b"pytest -q", 2.0, 2.0)]
)
def test_software_repair_the_command_decides(command: bytes, low: float, high: float) -> None:
    tool = "swebench__swebench_execute_bash"
    raw = session(step(1, call(tool, at=0.0, ended_at=30.0, arguments=b'{"command":"' + command + b'"}')))
    ((_, (seconds,)),) = times(with_times([raw], seed=1))
    assert low <= seconds <= high


def test_output_done_everything_is_measured_and_users_take_no_time() -> None:
    raw = session(
        step(1, call(at=4.0, ended_at=4.5), call(at=4.0, ended_at=6.0), user_at=0.0),
        step(2, text_at=9.0),
        step(3, text_at=103.0, user_at=100.0),
        t_kind=OUTPUT_DONE,
    )
    timed = with_times([raw], seed=1)
    assert times(timed) == [(4.0, [0.5, 1.5]), (3.0, []), (3.0, [])]
    assert timed.imputed["s"] == 0


def test_output_done_a_call_that_ended_before_an_earlier_one_ran_beside_it() -> None:
    raw = session(step(1, call(at=1.0, ended_at=9.0), call(at=2.0, ended_at=5.0)), t_kind=OUTPUT_DONE)
    assert times(with_times([raw], seed=1))[0][1] == [8.0, 3.0]


def test_approval_is_cut_at_the_90th_percentile_of_the_sessions_without() -> None:
    quick = session(
        *(step(n, call("bash", at=float(n), ended_at=n + n / 100)) for n in range(1, 11)),
        t_kind=OUTPUT_DONE,
        source="badlogic/pi-mono",
    )
    slow = session(step(1, call("Bash", at=0.0, ended_at=500.0)), t_kind=OUTPUT_DONE, source="marot/spotter", name="b")
    timed = with_times([quick, slow], seed=1)
    assert times(timed, 1)[0][1] == pytest.approx([0.1])
    assert timed.imputed == {"s": 0, "b": 1}
    assert times(timed)[9][1] == pytest.approx([0.1])


def test_without_times_quantiles_are_drawn_from_the_seed() -> None:
    raw = session(*(step(n, call()) for n in range(1, 200)), t_kind="", source="sierra-research/tau-bench")
    one, same, other = (with_times([raw], seed=seed) for seed in (1, 1, 2))
    assert times(one) == times(same) != times(other)
    tools = [seconds for _, calls in times(one) for seconds in calls]
    assert min(tools) >= TAU2_TOOL_SECONDS[0]
    assert max(tools) <= TAU2_TOOL_SECONDS[-1]
    assert sorted(tools)[99] == pytest.approx(0.0047, rel=0.1)
    assert one.imputed["s"] == 2 * 199


def test_tool_seconds_moves_the_median_and_keeps_the_models_times() -> None:
    raw = session(
        step(1, call(at=1.0, ended_at=1.1), user_at=0.0),
        step(2, call(at=2.0, ended_at=2.2)),
        step(3, call(at=3.0, ended_at=3.4)),
        t_kind=OUTPUT_DONE,
    )
    timed = times(with_times([raw], seed=1, tool_seconds=2.0))
    assert [calls[0] for _, calls in timed] == pytest.approx([1.0, 2.0, 4.0])
    assert [model for model, _ in timed] == pytest.approx([1.0, 0.9, 0.8])


def test_scale_is_a_factor_on_everything() -> None:
    raw = session(step(1, call(at=1.0, ended_at=3.0), user_at=0.0), t_kind=OUTPUT_DONE)
    ((model, tools),) = times(with_times([raw], seed=1, scale=0.1))
    assert (model, *tools) == pytest.approx((0.1, 0.2))
