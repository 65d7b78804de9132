"""Figures: differences are counted byte for byte, shares have the right denominators."""

import io
from dataclasses import replace

from rich.console import Console

from forerun.cli.demo.agents.script import Call, Observation, Task
from forerun.cli.demo.draws import Kind
from forerun.cli.demo.figures import Surroundings, differing, diverged, figures
from forerun.cli.demo.report import Progress, most_telling, print_table, print_timeline, print_times
from forerun.cli.demo.runs import Answer, Counts, Run, Served, SessionRecord, Step
from forerun.cli.demo.tools.log import Execution

ONE, TWO, THREE = (Observation(text) for text in (b"1", b"2", b"3"))


def record(
    run: Run,
    *observations: Observation,
    seconds: float = 10.0,
    session: str = "R01",
    agent: str = "research",
    counts: Counts | None = None,
    served: Served = Served.DIRECT,
) -> SessionRecord:
    task = Task(session, agent, f"Ticket {session}: [why]?", "INC-1", Kind.RESEARCH_MODEL)
    waited = 0.25 if served is Served.READY else 1.0
    answers = [Answer(observation, served, 1.0, waited) for observation in observations]
    calls = [Call("fetch", {"id": str(index)}) for index in range(len(observations))]
    return SessionRecord(task, run, seconds, [Step(4.0, waited, calls, answers)], counts or Counts())


def test_equal_observations_do_not_differ() -> None:
    assert differing([ONE, TWO], [ONE, TWO]) == 0


def test_another_value_order_or_number_differs() -> None:
    assert differing([ONE, TWO], [ONE, THREE]) == 1
    assert differing([ONE, TWO], [TWO, ONE]) == 2
    assert differing([ONE, TWO], [ONE]) == 1
    assert differing([ONE], [ONE, TWO]) == 1


def test_an_error_flag_or_a_status_alone_differs() -> None:
    assert differing([ONE], [Observation(b"1", tool_error=True)]) == 1
    assert differing([ONE], [Observation(b"1", status="TIMEOUT")]) == 1


def test_nothing_is_normalised() -> None:
    assert differing([Observation(b'{"a": 1}')], [Observation(b'{"a":1}')]) == 1


def test_a_session_that_ended_unknown_is_compared_up_to_there() -> None:
    unknown = Observation(b"", status="OUTCOME_UNKNOWN")
    reference = [record(Run.SEQUENTIAL, ONE, TWO, THREE)]
    assert diverged(reference, [record(Run.FORERUN, ONE, unknown)]) == 0
    assert diverged(reference, [record(Run.FORERUN, THREE, unknown)]) == 1


def make(forerun_value: Observation = TWO) -> tuple[dict[Run, list[SessionRecord]], list[Execution]]:
    outcomes = {"ready": 2, "joined": 1, "miss": 1}
    counts = Counts(2, 4, outcomes, memo_hits=1, speculable_calls=6, executions=3, wasted_seconds=0.5)
    coding = Counts(3, 0, {}, executions=4)
    records = {
        Run.SEQUENTIAL: [record(Run.SEQUENTIAL, ONE, TWO, seconds=30.0), record(Run.SEQUENTIAL, ONE, session="K01")],
        Run.PARALLEL: [record(Run.PARALLEL, ONE, TWO, seconds=20.0), record(Run.PARALLEL, ONE, session="K01")],
        Run.FORERUN: [
            record(Run.FORERUN, ONE, forerun_value, seconds=14.0, counts=counts, served=Served.READY),
            record(Run.FORERUN, ONE, session="K01", agent="coding", counts=coding),
        ],
    }
    asked = Call("related", {"ticket": "R01", "id": "SUP-01"})
    for run in (Run.PARALLEL, Run.SEQUENTIAL):
        step = records[run][0].steps[0]
        records[run][0] = replace(records[run][0], steps=[replace(step, calls=[asked, *step.calls[1:]])])
    desk = [Execution("forerun.R01", "fetch")] * 5 + [Execution("parallel.R01", "fetch")] * 4
    # Two look-ups of the baselines and one of Forerun: the graph server knows the ticket only.
    return records, desk + [Execution("R01", "related")] * 3


def test_the_machine_readable_form_has_the_agreed_names_and_values() -> None:
    made = figures(*make(), Surroundings(isolation="bubblewrap", restarts=0)).as_json()
    assert made == {
        "sequential_s": 40.0,
        "parallel_s": 30.0,
        "forerun_s": 24.0,
        "saved_pct": 20.0,
        "calls": 5,
        "launched": 4,
        "outcomes": {
            "ready": 2,
            "joined": 1,
            "miss": 1,
            "stale": 0,
            "preempted": 0,
            "expired": 0,
            "failed": 0,
            "cancelled": 0,
        },
        "memo_hits": 1,
        "hit_rate": 0.75,
        "coverage": 0.5,
        "amplification": 2.0,  # six by the servers' own log, four commands by the worker's count
        "waste_s": 0.5,
        "diverged": 0,
        "unknown": 0,
        "isolation": "bubblewrap",
        "restarts": 0,
        "sessions": 2,
        "baselines": "sequential and parallel ran on the same platform with mode off",
    }


def test_what_is_unknown_is_null_and_not_zero() -> None:
    records, logged = make()
    records[Run.FORERUN] = [record(Run.FORERUN, ONE, TWO, counts=Counts(calls=2))]
    made = figures(records, logged, Surroundings(isolation=None, restarts=None)).as_json()
    unknown = ("hit_rate", "coverage", "isolation", "restarts")
    assert [made[name] for name in unknown] == [None, None, None, None]


def test_a_divergence_is_counted_for_the_run_that_has_it() -> None:
    made = figures(*make(THREE), Surroundings(isolation=None, restarts=None))
    assert (made.parallel_diverged, made.forerun_diverged, made.diverged) == (0, 1, 1)


def printed() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=140, color_system=None), out


def test_the_report_says_what_is_drawn_and_that_no_language_model_is_involved() -> None:
    console, out = printed()
    print_times(console, 0.05)
    assert "seeded script, not a language model" in " ".join(out.getvalue().split())
    assert "0.29" in out.getvalue()  # 5.8 s of a search, at a twentieth


def test_the_table_compares_with_ordered_parallel() -> None:
    console, out = printed()
    print_table(console, figures(*make(), Surroundings(isolation="bubblewrap", restarts=0)))
    text = out.getvalue()
    assert "-20.0 %" in text
    assert "+33.3 %" in text
    assert "2 ready, 1 joined, 1 miss" in text
    assert "bubblewrap" in text


def test_the_timeline_says_which_seconds_were_hidden_and_how() -> None:
    records, _ = make()
    telling = most_telling(records[Run.FORERUN])
    assert telling.task.session == "R01"
    console, out = printed()
    print_timeline(console, telling, records[Run.PARALLEL][0])
    assert "14.00 s with Forerun, 20.00 s in ordered parallel" in out.getvalue()
    assert "hidden 0.75 s (ready before it was asked for)" in out.getvalue()
    assert "[why]?" in out.getvalue()


def test_progress_is_told_by_the_eighth() -> None:
    console, out = printed()
    progress = Progress(console, "warm-up")
    for ended in range(1, 25):
        progress(ended, 24)
    assert out.getvalue().splitlines() == [f"warm-up: {ended} of 24 sessions" for ended in range(3, 25, 3)]
