"""The same commands at every level that isolates give the same bytes: the coding project of the demo."""

import json
from pathlib import Path

from forerun.cli.demo.toolbench import _WORKBENCH, make_project
from forerun.sandbox.commands.runner import CommandPlan, CommandRunner
from forerun.sandbox.isolation.launch import Overlay
from forerun.sandbox.isolation.levels import Ladder, LevelName
from forerun.sandbox.isolation.limits import CommandLimits
from tests.integration.sandbox.conftest import need

_ENVIRONMENT = {"FORERUN_DEMO_SEED": "1", "FORERUN_DEMO_SCALE": "0", "FORERUN_DEMO_SESSION": "s"}
_MODULE = "harbour/berths.py"
_CALLS = (
    ("run_tests", "tests.test_berths"),
    ("search_code", "Berth"),
    ("history", _MODULE),
    ("read_file", _MODULE),
    ("edit_file", _MODULE, "import", "import  "),
    ("read_file", "no/such/file"),
    ("run_tests", "tests.no_such_module"),
)


async def test_the_demos_coding_tools_print_the_same_at_every_level(ladder: Ladder, tmp_path: Path) -> None:
    levels = (LevelName.BUBBLEWRAP, LevelName.GVISOR)
    for level in levels:
        need(ladder, level)
    make_project(tmp_path / "project")
    printed = {level: await _printed(ladder, level, tmp_path) for level in levels}
    assert printed[LevelName.GVISOR] == printed[LevelName.BUBBLEWRAP]
    # They did what they are there for, and are not all the same complaint.
    assert json.loads(printed[LevelName.GVISOR][0][1])["ran"] > 0
    assert len(set(printed[LevelName.GVISOR])) == len(_CALLS) + 1


async def _printed(ladder: Ladder, level: LevelName, root: Path) -> list[tuple[int | None, str, str]]:
    for part in ("upper", "work", "scratch"):
        (root / level / part).mkdir(parents=True)
    runner = CommandRunner(ladder.usable[level], str(root / level / "scratch"))
    workspace = Overlay((str(root / "project"),), str(root / level / "upper"), str(root / level / "work"))
    printed = []
    commands = [("python3", "-I", "-S", "-B", _WORKBENCH, *call) for call in _CALLS]
    for argv in (
        *commands,
        ("/bin/sh", "-c", "id; pwd; env | sort; ls -A; stat -c %A%U%G /tmp; wc -c < /etc/passwd; umask"),
    ):
        result = await runner.run(CommandPlan(argv, _ENVIRONMENT, workspace, (), None, CommandLimits()))
        printed.append((result.exit_code, result.stdout.text, result.stderr.text))
    return printed
