"""The two distributions: what they hold, what they need, and that they agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grimp

REPOSITORY = Path(__file__).resolve().parents[2]
CLIENT = REPOSITORY / "sdk" / "python"


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {normalised(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in requirements}


def build_wheel(folder: Path, out: Path) -> dict[str, bytes]:
    """Build a wheel without network and return its files."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def third_party_imports() -> dict[str, set[str]]:
    """Each third-party top-level package that our code imports, and the distributions it may come from."""
    graph = grimp.build_graph("forerun", include_external_packages=True, cache_dir=None)
    # What runs inside the model server has an environment of its own (scripts/triton/requirements.in).
    foreign = (".assets.", ".serving.backend.")
    ours = {name for name in graph.modules if name.startswith("forerun.") and not any(part in name for part in foreign)}
    imported = {found.partition(".")[0] for name in ours for found in graph.find_modules_directly_imported_by(name)}
    providers = packages_distributions()
    return {
        name: {normalised(distribution) for distribution in providers.get(name, [])}
        for name in imported - sys.stdlib_module_names - {"forerun", "harbour", "kserve_v2"}
    }


def test_versions_are_the_same() -> None:
    assert project(CLIENT)["version"] == project(REPOSITORY)["version"]


def test_client_needs_a_part_of_what_the_platform_needs() -> None:
    assert set(project(CLIENT)["dependencies"]) <= set(project(REPOSITORY)["dependencies"])
    assert names(project(CLIENT)["dependencies"]) == {"grpcio", "grpcio-status", "protobuf"}


def test_everything_imported_is_a_declared_dependency() -> None:
    declared = names(project(REPOSITORY)["dependencies"])
    undeclared = {name: providers for name, providers in third_party_imports().items() if not providers & declared}
    assert undeclared == {}


def test_every_dependency_has_its_reason() -> None:
    for folder in (REPOSITORY, CLIENT):
        lines = re.findall(r'^    "[A-Za-z0-9].*[<>].*$', (folder / "pyproject.toml").read_text(), re.MULTILINE)
        assert lines
        assert [line for line in lines if not re.search(r'",  # \w', line)] == []


def sources(*folders: str) -> set[str]:
    """Paths that the files of these parts of the namespace have in a wheel."""
    roots = [REPOSITORY / folder for folder in folders]
    paths = {path: root for root in roots for path in root.rglob("*") if path.is_file()}
    return {
        f"forerun/{path.relative_to(root).as_posix()}"
        for path, root in paths.items()
        if path.parent.name != "__pycache__"
    }


def test_client_wheel_holds_client_and_contract_only(tmp_path: Path) -> None:
    files = build_wheel(CLIENT, tmp_path)
    packaged = {name for name in files if name.startswith("forerun/")}
    assert packaged == {*sources("sdk/python/forerun", "protos/gen/forerun"), "forerun/client/LICENSE"}
    assert {name.split("/")[1] for name in packaged} == {"client", "v1"}
    assert {"forerun/client/py.typed", "forerun/v1/py.typed"} <= packaged


def test_platform_wheel_holds_all_rooms_and_the_command(tmp_path: Path) -> None:
    files = build_wheel(REPOSITORY, tmp_path)
    packaged = {name for name in files if name.startswith("forerun/")}
    rooms = ("services/forerun", "protos/gen/forerun", "sdk/python/forerun", "operators/forerun", "gpu-serving/forerun")
    assert packaged == sources(*rooms)
    assert "kserve_v2/inference_pb2.py" in files
    assert {f"forerun/{name.split('/')[1]}/py.typed" for name in packaged} <= packaged, "each room says it is typed"
    (entry_points,) = (data for name, data in files.items() if name.endswith("entry_points.txt"))
    assert b"forerun = forerun.cli.main:main" in entry_points
