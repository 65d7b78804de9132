"""The page of cases names tests that exist, for every case that the platform must hold."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "cases.md"
# One row each.
REQUIRED = (
    "A1 A2 A3 A4 A5 A7 A9 A11 A12 A14 A15 A17 A19 A20 C2 C3 C8 C9 D1 D2 D3 D5 D6 D7 E1 E2 E4 E6 G1 G2 G3 G4 G5 I4 "
    "J1 J2 J5 K1 K3 K5 K6 K8"
).split()
ROW = re.compile(r"^\| (?P<case>[A-Z]\d+) \| (?P<promise>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`([^`:]+\.py)::(test_\w+)`")


def rows(text: str) -> dict[str, list[tuple[str, str]]]:
    """Case to the tests that its row names, as file and function."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in ROW.finditer(text):
        assert row["case"] not in found, f"{row['case']} has two rows"
        named = row["tests"].split("<br>")
        tests = TEST.findall(row["tests"])
        assert len(tests) == len(named), f"{row['case']}: something is no test name: {named}"
        found[row["case"]] = tests
    return found


@cache
def functions(file: str) -> frozenset[str]:
    """The test functions of a file, those that pytest would collect."""
    tree = ast.parse((REPOSITORY / "tests" / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_every_case_has_its_row_and_only_cases_have() -> None:
    assert sorted(rows(PAGE.read_text())) == sorted(REQUIRED)


@pytest.mark.parametrize("case", REQUIRED)
def test_the_tests_of_a_case_exist(case: str) -> None:
    tests = rows(PAGE.read_text())[case]
    assert tests
    missing = [
        f"{file}::{name}"
        for file, name in tests
        if not (REPOSITORY / "tests" / file).is_file() or name not in functions(file)
    ]
    assert missing == []
    assert len(set(tests)) == len(tests), "a test is named twice"


def test_every_test_of_the_cases_is_named() -> None:
    named = {test for tests in rows(PAGE.read_text()).values() for test in tests}
    folder = REPOSITORY / "tests" / "integration" / "cases"
    made = {
        (f"integration/cases/{path.name}", name)
        for path in folder.glob("test_*.py")
        for name in functions(f"integration/cases/{path.name}")
        if name.startswith("test_")
    }
    assert made - named == set()


def test_a_row_with_a_test_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError, match="no test name"):
        rows("| A7 | promise | `unit/core/test_intake.py` |")
    assert "test_no_such_test" not in functions("unit/core/test_intake.py")
