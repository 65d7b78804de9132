"""The coding agent's commands: tests, search, history, reads and edits in the workspace it is started in.

`python -I -S -B workbench.py TOOL ARGUMENT...` prints one JSON value. It prints no clock, duration, pid or path outside
the workspace, so that the same workspace gives the same bytes. Exit code 1 says that tests failed or that the request
made no sense; both are ordinary results. Seed, scale and session come in the environment.

Every call is a new process, so the module is run by its path, without `site`, and loads little.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Where the `forerun` packages lie: this file is forerun/cli/demo/tools/workbench.py below it.
_PACKAGES = str(Path(__file__).resolve().parents[4])

Answer = dict[str, object]


def run_tests(target: str) -> tuple[Answer, int]:
    """Runs a test module, class or case by its dotted name."""
    import unittest

    outcome = unittest.TestResult()
    suite = unittest.defaultTestLoader.loadTestsFromName(target)
    suite.run(outcome)
    failed = [_failure(case, trace) for case, trace in [*outcome.failures, *outcome.errors]]
    answer: Answer = {
        "target": target,
        "module": ".".join(target.split(".")[:2]),
        "ran": outcome.testsRun,
        "passed": outcome.testsRun - len(failed),
        "verdict": "failed" if failed else "passed",
        "failed": failed,
    }
    return answer, 1 if failed else 0


def _failure(case: object, trace: str) -> Answer:
    message = trace.strip().splitlines()[-1]
    subject = getattr(case, "subject", None)
    if subject is None:
        return {"test": str(case).split()[0], "message": message}
    return {
        "test": str(case).split()[0],
        "symbol": subject.__name__,
        "path": os.path.relpath(subject.__code__.co_filename),
        "message": message,
    }


def search_code(symbol: str) -> tuple[Answer, int]:
    """Lines of the project that hold a name as a whole word, by path and line."""
    word = re.compile(rf"\b{re.escape(symbol)}\b")
    hits: list[object] = [
        {"path": str(path), "line": number, "text": line.strip()}
        for path in _sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if word.search(line)
    ]
    return {"symbol": symbol, "hits": hits}, 0 if hits else 1


def history(path: str) -> tuple[Answer, int]:
    """The entries of the project's change log that name a file, newest first."""
    log = Path("HISTORY.txt").read_text(encoding="utf-8").splitlines()
    entries: list[object] = [line for line in log if f" {path}: " in line]
    return {"path": path, "entries": entries}, 0 if entries else 1


def read_file(path: str) -> tuple[Answer, int]:
    """A file's text."""
    inside = _inside(path)
    if inside is None or not inside.is_file():
        return {"error": f"no file {path}"}, 1
    return {"path": path, "text": inside.read_text(encoding="utf-8")}, 0


def edit_file(path: str, old: str, new: str) -> tuple[Answer, int]:
    """Replaces a text that occurs exactly once."""
    inside = _inside(path)
    if inside is None or not inside.is_file():
        return {"error": f"no file {path}"}, 1
    text = inside.read_text(encoding="utf-8")
    if (found := text.count(old)) != 1:
        return {"error": f"the text occurs {found} times in {path}"}, 1
    inside.write_text(text.replace(old, new), encoding="utf-8")
    return {"path": path, "line": text[: text.index(old)].count("\n") + 1, "replaced": 1}, 0


def _inside(path: str) -> Path | None:
    root = Path.cwd().resolve()
    resolved = (root / path).resolve()
    return resolved if resolved.is_relative_to(root) else None


def _sources() -> list[Path]:
    return sorted(path for folder in ("harbour", "tests") for path in Path(folder).glob("*.py"))


# Each tool with the names of its arguments, in the order of the command line.
TOOLS: dict[str, tuple[Callable[..., tuple[Answer, int]], tuple[str, ...]]] = {
    "run_tests": (run_tests, ("target",)),
    "search_code": (search_code, ("symbol",)),
    "history": (history, ("path",)),
    "read_file": (read_file, ("path",)),
    "edit_file": (edit_file, ("path", "old", "new")),
}


def main(argv: list[str]) -> int:
    """Runs one tool, waits for what is missing to its drawn time, prints its answer.

    Returns:
        The exit code: that of the tool, or 2 for a command line that names no tool or not its arguments.
    """
    started = time.monotonic()
    if not argv or argv[0] not in TOOLS or len(argv) - 1 != len(TOOLS[argv[0]][1]):
        print("usage: workbench.py TOOL ARGUMENT...", file=sys.stderr)
        return 2
    name, *values = argv
    tool, parameters = TOOLS[name]
    sys.path[:0] = [os.getcwd(), _PACKAGES]
    from forerun.cli.demo.draws import Draws, logical_session

    answer, code = tool(*values)
    draws = Draws(int(os.environ["FORERUN_DEMO_SEED"]), float(os.environ["FORERUN_DEMO_SCALE"]))
    session = logical_session(os.environ["FORERUN_DEMO_SESSION"])
    drawn = draws.tool_seconds(session, name, dict(zip(parameters, values, strict=True)))
    # The tool's own process is the one place where the demo may block: nothing else lives in it.
    time.sleep(max(0.0, drawn - (time.monotonic() - started)))
    print(json.dumps(answer, ensure_ascii=False))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
