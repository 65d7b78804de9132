"""`forerun plan check` and `draw`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "plans"
POLICY = ["--policy", str(EXAMPLES / "policy.yaml")]
PLANS = ("trip.json", "report.txt", "message.openai.json", "message.anthropic.json")


def check(capsys: pytest.CaptureFixture[str], file: Path, *options: str) -> tuple[int, str, str]:
    code = main(["plan", "check", str(file), *options])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("name", PLANS)
def test_every_example_is_a_plan_and_can_be_drawn(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text, _ = check(capsys, EXAMPLES / name, *POLICY, "--json")
    assert code == 0
    found = json.loads(text)
    assert found["fine"] and found["problems"] == []
    assert sorted(one for wave in found["waves"] for one in wave) == sorted(one["id"] for one in found["tasks"])
    assert main(["plan", "draw", str(EXAMPLES / name), *POLICY]) == 0
    drawn = capsys.readouterr().out
    assert all(one["id"] in drawn and one["tool"] in drawn for one in found["tasks"])
    out = tmp_path / "plan.svg"
    assert main(["plan", "draw", str(EXAMPLES / name), *POLICY, "--svg", str(out)]) == 0
    picture = ElementTree.parse(out)
    boxes = picture.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == len(found["tasks"])


def test_the_page_of_examples_names_every_file() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for file in EXAMPLES.iterdir():
        assert file.name == "README.md" or f"`{file.name}`" in page


def test_what_check_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = check(capsys, EXAMPLES / "trip.json", *POLICY)
    assert code == 0
    assert "8 tasks in 5 waves, at most 3 at once, 5 on the longest chain; format json, failure policy isolate" in text
    assert "longest chain: oslo -> price -> note -> book -> left" in text
    assert "left waits for book: both touch rooms/Bergen" in text
    code, text, _ = check(capsys, EXAMPLES / "report.txt", *POLICY)
    assert "6 shares the outcome of 1" in text and "format llmcompiler" in text
    code, text, _ = check(capsys, EXAMPLES / "message.openai.json", *POLICY)
    assert "4 waits for 3: one of them runs alone" in text and "4 send_mail (unknown)" in text


def test_without_a_policy_everything_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = check(capsys, EXAMPLES / "trip.json")
    assert code == 0 and "8 tasks in 8 waves" in text and "without --policy every tool is unknown" in text


def test_no_plan_is_exit_code_one_and_names_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    tasks = [{"id": "a", "tool": "t", "arguments": {"x": "$b"}}, {"id": "b", "tool": "t", "arguments": {"x": ["$a"]}}]
    file.write_text(json.dumps({"tasks": [*tasks, {"id": "c", "tool": "t", "arguments": {"x": "$zz"}}]}))
    code, text, error = check(capsys, file)
    assert (code, text) == (1, "")
    assert "tasks that wait for each other: a -> b -> a" in error and "$zz names no task" in error
    code, text, error = check(capsys, file, "--json")
    found = json.loads(text)
    assert code == 1 and not found["fine"]
    assert [(one["reason"], one["tasks"]) for one in found["problems"]] == [
        ("unknown_reference", ["c", "zz"]),
        ("cycle", ["a", "b"]),
    ]
    file.write_text('{"tasks": [')
    code, _, error = check(capsys, file, "--format", "json")
    assert code == 1 and "cut off" in error
    file.write_bytes(b"\xff")
    assert check(capsys, file)[0] == 1


def test_what_is_missing_is_exit_code_three(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, error = check(capsys, tmp_path / "nothing.json")
    assert code == 3 and "cannot be read" in error
    assert main(["plan", "draw", str(EXAMPLES / "trip.json"), "--svg", str(tmp_path / "no" / "where.svg")]) == 3
    assert check(capsys, EXAMPLES / "trip.json", "--policy", str(EXAMPLES / "trip.json"))[0] == 1


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["plan"], ["plan", "check"], ["plan", "run"], ["plan", "check", "x", "--format", "csv"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2


def test_values_by_position_need_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = check(capsys, EXAMPLES / "report.txt")
    assert code == 1 and "write them as name=value" in error


def test_more_tasks_have_to_be_allowed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"tasks": [{"tool": "t"}] * 2_000}))
    code, _, error = check(capsys, file)
    assert code == 1 and "PLAN_TASKS" in error
    assert check(capsys, file, "--max-tasks", "2000")[0] == 0


def test_events_of_a_stream_are_read_like_the_whole_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "stream.json"
    call = {"index": 0, "id": "c", "function": {"name": "search", "arguments": '{"query": "a"}'}}
    events = [{"choices": [{"delta": {"tool_calls": [call]}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    file.write_text(json.dumps(events))
    code, text, _ = check(capsys, file, "--json")
    assert code == 0 and json.loads(text)["format"] == "openai"
    file.write_text(json.dumps(events[:1]))
    assert check(capsys, file, "--json")[0] == 1
    whole = {"content": [{"type": "tool_use", "id": "t", "name": "search", "input": {"query": "a"}}]}
    file.write_text(json.dumps(whole))
    assert json.loads(check(capsys, file, "--json")[1])["format"] == "anthropic"
