"""The coding agent's script: it follows the failure that it reads, and tests until the test passes."""

import json
from collections.abc import Sequence

import pytest

from forerun.cli.demo.agents import coding
from forerun.cli.demo.agents.script import Call, Message, Observation, Task

FAULTS = coding.load_faults()
TASKS = coding.tasks(FAULTS, 1, len(FAULTS))


class BenchDouble:
    """The workbench's answers for one fault: the test fails until the fix is in the file."""

    def __init__(self, fault: coding.Fault) -> None:
        self.fault = fault
        self.text = f"def {fault.symbol}():\n    {fault.fault}\n"

    def answer(self, call: Call) -> Observation:
        return Observation(json.dumps(self._value(call)).encode())

    def _value(self, call: Call) -> dict[str, object]:
        if call.tool == "read_file":
            return {"path": call.arguments["path"], "text": self.text}
        if call.tool == "edit_file":
            assert self.text.count(str(call.arguments["old"])) == 1
            self.text = self.text.replace(str(call.arguments["old"]), str(call.arguments["new"]))
            return {"replaced": 1}
        if call.tool == "run_tests":
            target = str(call.arguments["target"])
            answer: dict[str, object] = {"target": target, "module": ".".join(target.split(".")[:2])}
            if self.fault.fix in [line.strip() for line in self.text.splitlines()]:
                return {**answer, "verdict": "passed", "failed": []}
            failure = {"path": self.fault.path, "symbol": self.fault.symbol, "message": "AssertionError"}
            return {**answer, "verdict": "failed", "failed": [failure]}
        return {"hits": [], "entries": []}


def play(task: Task) -> tuple[list[Message], BenchDouble]:
    bench = BenchDouble(FAULTS[task.subject])
    script = coding.script(task, 1, FAULTS[task.subject])
    messages: list[Message] = []
    message: Message | None = next(script, None)
    while message is not None:
        messages.append(message)
        observations: Sequence[Observation] = [bench.answer(call) for call in message.calls]
        try:
            message = script.send(observations)
        except StopIteration:
            message = None
    return messages, bench


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.subject)
def test_every_fault_is_mended(task: Task) -> None:
    messages, bench = play(task)
    assert bench.fault.fix in bench.text
    edits = [call for message in messages for call in message.calls if call.tool == "edit_file"]
    assert len(edits) == (2 if bench.fault.first_try else 1)


def test_the_user_names_the_test_and_the_failure_names_the_rest() -> None:
    for task in TASKS:
        messages, bench = play(task)
        assert f"`{messages[0].calls[0].arguments['target']}`" in task.user_text
        assert bench.fault.path not in task.user_text
        assert messages[1].calls[0].arguments == {"path": bench.fault.path}


def test_a_test_that_stays_red_is_reported_and_looked_into() -> None:
    task = TASKS[0]
    script = coding.script(task, 1, FAULTS[task.subject])
    red = {"verdict": "failed", "module": "tests.m", "failed": [{"path": "p", "symbol": "s"}]}
    last = message = next(script)
    for _ in range(20):
        observations = [Observation(json.dumps(red).encode()) for _ in message.calls]
        try:
            last = message = script.send(observations)
        except StopIteration:
            break
    assert [call.tool for call in last.calls] == ["history"]


def test_variation_is_there_and_is_the_exception() -> None:
    sessions = [play(task)[0] for task in TASKS]
    with_history = sum(any(call.tool == "history" for call in session[1].calls) for session in sessions)
    assert 0 < with_history < len(sessions) / 3
