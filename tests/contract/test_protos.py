"""The wire contract: style, compatibility, and that generated code and changelog follow it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROTOS = REPOSITORY / "protos"
IMAGE = PROTOS / "image.binpb"


def buf(*arguments: str | Path, cwd: Path = PROTOS) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("buf"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def copy_of_protos(tmp_path: Path) -> Path:
    copy = tmp_path / "protos"
    shutil.copytree(PROTOS, copy, ignore=shutil.ignore_patterns("gen"))
    return copy


def test_protos_follow_the_style() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_field_without_comment_is_found(tmp_path: Path) -> None:
    copy = copy_of_protos(tmp_path)
    with (copy / "forerun/v1/session.proto").open("a") as file:
        file.write("\n// Has a comment.\nmessage Planted {\n  string silent = 1;\n}\n")
    result = buf("lint", cwd=copy)
    assert result.returncode != 0
    assert '"silent" should have a non-empty comment' in result.stdout


def test_nothing_recorded_is_broken() -> None:
    result = buf("breaking", "--against", IMAGE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_deleting_a_field_is_breaking(tmp_path: Path) -> None:
    copy = copy_of_protos(tmp_path)
    source = copy / "forerun/v1/session.proto"
    shortened, count = re.subn(r"^  (?:\w|\.)+ \w+ = 1;.*\n", "", source.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    source.write_text(shortened)
    result = buf("breaking", "--against", IMAGE, cwd=copy)
    assert result.returncode != 0
    assert 'Previously present field "1"' in result.stdout


def test_image_and_changelog_record_the_contract() -> None:
    result = script("contract_image.py", "--check")
    assert result.returncode == 0, result.stderr
    assert hashlib.sha256(IMAGE.read_bytes()).hexdigest()[:12] in (REPOSITORY / "CHANGELOG.md").read_text()


def test_generated_code_is_current(tmp_path: Path) -> None:
    assert script("generate.py", "--root", tmp_path).returncode == 0
    fresh, committed = tmp_path / "protos/gen", PROTOS / "gen"
    names = {path.relative_to(fresh) for path in fresh.rglob("*.py*") if path.is_file()}
    assert names, "nothing was generated"
    assert names == {path.relative_to(committed) for path in committed.rglob("*.py*") if path.suffix != ".pyc"}
    for name in sorted(names):
        assert (committed / name).read_bytes() == (fresh / name).read_bytes(), f"{name}: run make generate"
