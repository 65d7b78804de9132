"""Reading of trace files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from forerun.cli.replay.traces import read_file, stem_of
from forerun.runtime.errors import InvalidArgument

CALL = {"type": "tool_call", "id": "c1", "name": "look", "args": {"a": 1}, "turn": 1}
RESULT = {"type": "tool_result", "id": "c1", "name": "look", "content": "seen"}


def write(folder: Path, *sessions: object, name: str = "runs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    return path


def session(*events: object, **fields: object) -> dict[str, object]:
    return {"session": "s", "task": "t", "source": "synthetic", "model": "m", "events": list(events), **fields}


def test_a_session_becomes_steps_with_calls_and_what_the_user_said_before(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        session(
            {"type": "user", "content": "hello"},
            {"type": "assistant", "content": "one moment", "turn": 1},
            CALL,
            RESULT,
            {"type": "assistant", "content": "done", "turn": 2},
        ),
    )
    (read,) = read_file(path)
    first, second = read.steps
    assert (first.turn, first.user_turns, first.text) == (1, ["hello"], ["one moment"])
    assert [(call.tool, call.arguments, call.content) for call in first.calls] == [("look", b'{"a":1}', "seen")]
    assert (second.turn, second.user_turns, second.text, second.calls) == (2, [], ["done"], [])
    assert read.name == "runs/s"


def test_calls_of_one_turn_are_one_message_even_when_answers_come_in_between(tmp_path: Path) -> None:
    second = {**CALL, "id": "c2"}
    (read,) = read_file(write(tmp_path, session(CALL, RESULT, second, {**RESULT, "id": "c2"})))
    assert [len(step.calls) for step in read.steps] == [2]


def test_answers_to_calls_with_the_same_id_come_in_the_order_of_the_calls(tmp_path: Path) -> None:
    later = {**CALL, "turn": 2, "args": {"a": 2}}
    path = write(tmp_path, session(CALL, RESULT, later, {**RESULT, "content": "seen again"}))
    (read,) = read_file(path)
    assert [call.content for step in read.steps for call in step.calls] == ["seen", "seen again"]


def test_a_call_without_an_answer_is_left_out_and_counted(tmp_path: Path) -> None:
    (read,) = read_file(write(tmp_path, session(CALL, RESULT, {**CALL, "id": "c2"})))
    assert [len(step.calls) for step in read.steps] == [1]
    assert read.unanswered == 1


def test_text_that_was_no_json_object_stays_the_object_that_holds_it(tmp_path: Path) -> None:
    (read,) = read_file(write(tmp_path, session({**CALL, "args": {"_raw": '{"a": '}}, RESULT)))
    assert read.steps[0].calls[0].arguments == b'{"_raw":"{\\"a\\": "}'


def test_names_that_no_tool_can_have_become_usable_and_stay_apart(tmp_path: Path) -> None:
    paragraph = "look<tool_sep>" + "x" * 400
    calls = [{**CALL, "id": str(n), "name": name} for n, name in enumerate((paragraph, paragraph + "y"))]
    results = [{**RESULT, "id": str(n)} for n in range(2)]
    (read,) = read_file(write(tmp_path, session(*calls, *results)))
    one, other = (call.tool for call in read.steps[0].calls)
    assert one.startswith("look-tool_sep-xxx")
    assert one != other
    assert len(one) <= 128


def test_lone_surrogates_and_nan_become_something_that_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(
        '{"session":"s","events":[{"type":"tool_call","id":"c","name":"n","turn":1,'
        '"args":{"a":NaN,"b":"\\ud800"}},{"type":"tool_result","id":"c","content":"\\udfff"}]}\n'
    )
    (read,) = read_file(path)
    assert read.steps[0].calls[0].arguments == '{"a":"NaN","b":"\ufffd"}'.encode()
    assert read.steps[0].calls[0].content == "\ufffd"


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(session(CALL, RESULT)).encode()))
    assert len(read_file(path)) == 1
    assert stem_of(path) == "runs"


@pytest.mark.parametrize("text", ["no json", "[]", '{"session":"s"}', '{"events":[3]}'])
def test_what_is_no_trace_is_refused_with_the_file_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(InvalidArgument, match=r"broken\.jsonl"):
        read_file(path)


@pytest.mark.parametrize("content", [gzip.compress(b"{}")[:-4], b"plain text", gzip.compress(b"\xff\n")])
def test_a_broken_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"runs\.jsonl\.gz"):
        read_file(path)
