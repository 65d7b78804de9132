"""The tools' own record of what they were made to do, apart from everything that the platform says about itself."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from forerun.core.canonical import JsonValue


@dataclass(frozen=True, slots=True)
class Execution:
    """One start of a tool."""

    session: str
    tool: str


class ExecutionLog:
    """Appends one line for each started execution. Several processes may write one file: a line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def started(self, session: str, tool: str, arguments: dict[str, JsonValue]) -> None:
        """Records a start, before anything is done."""
        line = {"session": session, "tool": tool, "arguments": arguments}
        os.write(self._file, json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def executions(path: Path, *, after_bytes: int) -> tuple[list[Execution], int]:
    """The executions logged after an offset, and the offset after them."""
    if not path.exists():
        return [], after_bytes
    with path.open("rb") as file:
        file.seek(after_bytes)
        lines = file.read().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    parsed = [json.loads(line) for line in whole]
    return [Execution(entry["session"], entry["tool"]) for entry in parsed], after_bytes + sum(map(len, whole))
