"""Answers a research script from the shipped data, without servers: what the real tools would say."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.resources import files

from forerun.cli.demo.agents import research
from forerun.cli.demo.agents.script import Call, Message, Observation, Task
from forerun.cli.demo.library import load_library
from forerun.core.canonical import JsonValue

LIBRARY = load_library()


class DeskDouble:
    """The tools of the research agent, for one session."""

    def __init__(self) -> None:
        self.notes: list[JsonValue] = []

    def answer(self, call: Call) -> Observation:
        value = self._value(call)
        return Observation(json.dumps(value).encode(), tool_error=isinstance(value, dict) and "error" in value)

    def _value(self, call: Call) -> JsonValue:
        arguments = call.arguments
        match call.tool:
            case "search":
                return {"hits": LIBRARY.search(str(arguments["q"]))}
            case "fetch":
                document = LIBRARY.documents.get(str(arguments["id"]))
                return document.as_json() if document else {"error": "no document"}
            case "related":
                return {"related": LIBRARY.related(str(arguments["id"]))}
            case "lookup_entity":
                return {"id": arguments["id"]}
            case "warehouse":
                return {"rows": _rows(str(arguments["sql"]), arguments["values"])}
            case "add_note":
                self.notes.append(arguments["text"])
                return {"notes": len(self.notes)}
            case "list_notes":
                return {"notes": list(self.notes)}
        raise AssertionError(f"the research agent has no tool {call.tool}")


def _rows(sql: str, values: JsonValue) -> JsonValue:
    with closing(sqlite3.connect(":memory:")) as warehouse:
        warehouse.executescript((files("forerun.cli.demo") / "assets" / "warehouse.sql").read_text())
        cursor = warehouse.execute(sql, values if isinstance(values, list) else [])
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def play(
    task: Task, seed: int, answer: Callable[[Call], Observation] | None = None
) -> tuple[list[Message], list[Sequence[Observation]]]:
    """Plays a whole research session; messages and their observations."""
    answer = answer or DeskDouble().answer
    script = research.script(task, seed, LIBRARY.documents[task.subject].kind)
    messages: list[Message] = []
    observations: list[Sequence[Observation]] = []
    message = next(script, None)
    while message is not None:
        messages.append(message)
        observations.append([answer(call) for call in message.calls])
        try:
            message = script.send(observations[-1])
        except StopIteration:
            message = None
    return messages, observations
