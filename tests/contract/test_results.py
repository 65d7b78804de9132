"""The page of results holds every row that `make results` measures, in the tables that it writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "results.md").read_text()


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_script", REPOSITORY / "scripts" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RESULTS = script()


def table(name: str) -> dict[str, list[str]]:
    """The lines of a table by their first cell."""
    text = PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]
    return {row[0]: row for row in rows}


@pytest.mark.parametrize(
    ("name", "head", "tables"),
    [
        ("time", "TIME_HEAD", {"sets"}),
        ("work", "WORK_HEAD", {"sets", "controls"}),
        ("controls", "TIME_HEAD", {"controls"}),
    ],
)
def test_every_row_that_is_measured_is_there(name: str, head: str, tables: set[str]) -> None:
    found = table(name)
    assert list(found) == [row.name for row in RESULTS.ROWS if row.table in tables]
    columns = getattr(RESULTS, head).splitlines()[0].strip("|").split("|")
    assert {len(row) for row in found.values()} == {len(columns)}


def test_nothing_diverged() -> None:
    columns = [cell.strip() for cell in RESULTS.WORK_HEAD.splitlines()[0].strip("|").split("|")]
    place = columns.index("diverged")
    assert {row[place] for row in table("work").values()} == {"0"}


def test_a_table_is_replaced_between_its_markers_only() -> None:
    page = "a\n<!-- time -->\nold\n<!-- /time -->\nb\n"
    assert RESULTS.replaced(page, "time", "new") == "a\n<!-- time -->\nnew\n<!-- /time -->\nb\n"
