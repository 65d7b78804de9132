"""Sessions that learn and sessions that are scored."""

from __future__ import annotations

from forerun.cli.replay.split import SplitBy, split
from forerun.cli.replay.traces import RecordedCall, Session, Step


def session(task: str, arguments: str = "{}", number: int = 0) -> Session:
    call = RecordedCall("look", arguments.encode(), "", False, 0.0, "c")
    return Session(f"f/{task}-{number}", "f", task, (Step(1, (), 0.0, "", (call,)),))


def test_a_file_in_both_roles_is_halved_by_task() -> None:
    sessions = [session(f"task{n % 40}", number=n) for n in range(120)]
    parts = split({"f": sessions}, {"f": sessions}, seed=1, by=SplitBy.TASK)
    assert len(parts.training) + len(parts.scored) == 120
    assert 30 < len(parts.scored) < 90
    assert {s.task for s in parts.training}.isdisjoint(s.task for s in parts.scored)
    assert [s.name for s in parts.scored] == [s.name for s in sessions if s in parts.scored]


def test_another_seed_gives_other_halves() -> None:
    sessions = [session(f"task{n}") for n in range(40)]
    one, other = (split({"f": sessions}, {"f": sessions}, seed=seed, by=SplitBy.TASK) for seed in (1, 2))
    assert one.scored != other.scored


def test_without_a_training_file_everything_is_scored() -> None:
    sessions = [session(f"task{n}") for n in range(10)]
    parts = split({"f": sessions}, {}, seed=1, by=SplitBy.TASK)
    assert parts.scored == tuple(sessions)
    assert parts.training == ()


def test_sessions_of_another_training_file_with_a_scored_task_are_left_out() -> None:
    parts = split({"f": [session("a")]}, {"g": [session("a"), session("b")]}, seed=1, by=SplitBy.TASK)
    assert [s.task for s in parts.training] == ["b"]


def test_clusters_keep_tasks_together_that_share_an_identifier() -> None:
    chain = [
        session("a", '{"x":"user_17"}'),
        session("b", '{"x":["user_17","#W1234567"]}'),
        session("c", '{"y":"#W1234567"}'),
    ]
    others = [session(f"other{n}", f'{{"x":"user_{n + 20}"}}') for n in range(20)]
    for seed in range(20):
        parts = split({"f": chain + others}, {"f": chain + others}, seed=seed, by=SplitBy.CLUSTER)
        assert len({s in parts.scored for s in chain}) == 1


def test_dates_words_and_plain_numbers_are_no_identifiers() -> None:
    shared = '{"date":"2024-05-20","city":"Turin","limit":30000,"zip":"19122"}'
    sessions = [session(f"task{n}", shared) for n in range(40)]
    parts = split({"f": sessions}, {"f": sessions}, seed=1, by=SplitBy.CLUSTER)
    assert parts.training and parts.scored
