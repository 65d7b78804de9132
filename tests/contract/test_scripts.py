"""The scripts behind `make`, each in a copy of what it reads: they judge and write their own repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COPIED = ("protos", "scripts", "docs", "helm", "CHANGELOG.md", "pyproject.toml", "requirements.lock")
SESSION = "protos/forerun/v1/session.proto"
# What scripts/setup calls before it has found an interpreter.
SETUP_TOOLS = ("bash", "cat", "cut", "dirname", "env", "flock", "rm", "sed", "sha256sum")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    return root


def run(root: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def add_message(root: Path) -> None:
    with (root / SESSION).open("a") as file:
        file.write("\n// Planted by a test.\nmessage Planted {\n  // Its only field.\n  string name = 1;\n}\n")


def delete_field(root: Path) -> None:
    source = root / SESSION
    source.write_text(re.sub(r"^  (?:\w|\.)+ \w+ = 1;.*\n", "", source.read_text(), count=1, flags=re.MULTILINE))


def test_a_copy_verifies(copy: Path) -> None:
    result = run(copy, "verify.py")
    assert result.returncode == 0, result.stderr


def test_verify_finds_what_is_stale(copy: Path) -> None:
    generated = copy / "protos/gen/forerun/v1"
    (generated / "common_pb2.py").write_text("# edited by hand\n")
    (generated / "gone_pb2.py").write_text("")
    (generated / "policy_pb2.pyi").unlink()
    result = run(copy, "verify.py")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "protos/gen/forerun/v1/policy_pb2.pyi: missing; run make generate",
        "protos/gen/forerun/v1/gone_pb2.py: no source gives it; run make generate",
        "protos/gen/forerun/v1/common_pb2.py: differs from its source; run make generate",
    ]


def test_what_does_not_compile_leaves_what_was_generated(copy: Path) -> None:
    generated = copy / "protos/gen/forerun/v1"
    before = {one.name: one.read_bytes() for one in generated.iterdir() if one.is_file()}
    assert before
    with (copy / SESSION).open("a") as file:
        file.write("\nmessage {\n")
    result = run(copy, "generate.py")
    assert result.returncode != 0
    assert "session" in result.stderr
    assert {one.name: one.read_bytes() for one in generated.iterdir() if one.is_file()} == before


def test_verify_finds_a_contract_that_nobody_recorded(copy: Path) -> None:
    add_message(copy)
    run(copy, "generate.py")
    result = run(copy, "verify.py")
    assert result.returncode == 1
    assert "The contract changed without a record" in result.stderr


def test_a_compatible_change_is_recorded_with_a_note(copy: Path) -> None:
    add_message(copy)
    refused = run(copy, "contract_image.py")
    assert refused.returncode == 1
    assert "make contract-image NOTE=" in refused.stderr
    assert run(copy, "contract_image.py", "--note", "New message Planted.").returncode == 0
    assert re.search(r"^- `[0-9a-f]{12}` New message Planted\.$", (copy / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert run(copy, "contract_image.py", "--check").returncode == 0


def test_a_breaking_change_must_be_called_so(copy: Path) -> None:
    image = (copy / "protos/image.binpb").read_bytes()
    delete_field(copy)
    refused = run(copy, "contract_image.py", "--note", "Tidied up.")
    assert refused.returncode == 1
    assert 'Previously present field "1"' in refused.stderr
    assert (copy / "protos/image.binpb").read_bytes() == image
    assert run(copy, "contract_image.py", "--note", "Breaking: a field is gone.").returncode == 0
    assert (copy / "protos/image.binpb").read_bytes() != image


def test_an_image_that_the_changelog_does_not_name_is_found(copy: Path) -> None:
    changelog = copy / "CHANGELOG.md"
    changelog.write_text(re.sub(r"`[0-9a-f]{12}`", "`000000000000`", changelog.read_text()))
    result = run(copy, "contract_image.py", "--check")
    assert result.returncode == 1
    assert "does not name the recorded contract" in result.stderr


@pytest.mark.parametrize(
    ("name", "before", "after", "complaint"),
    [
        ("pyproject.toml", '"rich>=', '"leftpad>=1",  # planted\n    "rich>=', "resolved from other dependencies"),
        ("requirements.lock", "annotated-types==", "--index-url x\nannotated-types==", "an address or an option"),
        ("requirements.lock", "annotated-types==", "annotated-types>=", "not pinned with hashes: annotated-types"),
    ],
)
def test_a_wrong_lock_file_is_found(copy: Path, name: str, before: str, after: str, complaint: str) -> None:
    file = copy / name
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after, 1))
    result = run(copy, "lock.py", "--check")
    assert result.returncode == 1
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("interpreter", "body", "complaint"),
    [
        (None, "", "no Python found: install Python 3.11 or newer"),
        ("python3", "exit 1", "python3 is older than Python 3.11: install"),
        ("python3.11", '[[ "$2" != *ensurepip* ]]', "python3.11 cannot make virtual environments: install its venv"),
    ],
)
def test_setup_names_what_is_missing(
    copy: Path, tmp_path: Path, interpreter: str | None, body: str, complaint: str
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in SETUP_TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    if interpreter:
        fake = tools / interpreter
        fake.write_text(f"#!{tools / 'bash'}\n{body}\n")
        fake.chmod(0o755)
    result = subprocess.run(
        [copy / "scripts/setup"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 3
    assert complaint in result.stderr
    assert not (copy / ".venv").exists()
