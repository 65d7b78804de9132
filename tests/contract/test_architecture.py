"""The direction of dependencies, as CONTRIBUTING.md describes it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import grimp
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE_FOLDERS = (
    "services/forerun",
    "protos/gen/forerun",
    "sdk/python/forerun",
    "operators/forerun",
    "gpu-serving/forerun",
)
ROOMS = (
    "cli",
    "client",
    "core",
    "operator",
    "orchestrator",
    "predictor",
    "runtime",
    "sandbox",
    "serving",
    "snapshots",
    "v1",
    "verifier",
)
# A decision takes time, chance and input as values. These would let it reach for them.
IMPURE = frozenset(
    "asyncio concurrent ctypes glob http importlib io logging multiprocessing os pathlib platform queue random secrets"
    " select selectors shutil signal socket sqlite3 ssl subprocess sys tempfile threading time uuid".split()
)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("forerun", include_external_packages=True, cache_dir=None)


def lint(cwd: Path, *, tree: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the repository's rules on the real rooms, or on those below `tree` only."""
    run = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", run, str(REPOSITORY / ".importlinter"), "--no-cache"]
    environment = dict(os.environ)
    if tree:
        # Without `site`, the .pth file of the editable install does not add the real rooms.
        command.insert(1, "-S")
        environment["PYTHONPATH"] = os.pathsep.join([str(tree), sysconfig.get_path("purelib")])
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def plant(tree: Path, **sources: str) -> None:
    """Write a namespace of empty rooms, except those whose source is given."""
    for room in {*ROOMS, *sources}:
        package = tree / "forerun" / room
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(sources.get(room, ""))


def external_imports(graph: grimp.ImportGraph, room: str) -> set[str]:
    """Top-level packages outside of forerun that a room imports, standard library included."""
    modules = {name for name in graph.modules if name == room or name.startswith(f"{room}.")}
    imported = {found for module in modules for found in graph.find_modules_directly_imported_by(module)}
    return {name.partition(".")[0] for name in imported} - {"forerun"}


def test_rooms_import_in_one_direction_only(tmp_path: Path) -> None:
    result = lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Contracts: 2 kept, 0 broken." in result.stdout


@pytest.mark.parametrize(
    ("room", "imports"),
    [
        ("predictor", "sandbox"),
        ("runtime", "verifier"),
        ("core", "runtime"),
        ("client", "core"),
        ("orchestrator", "client"),
        ("sandbox", "cli"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, room: str, imports: str) -> None:
    plant(tmp_path, **{room: f"import forerun.{imports}\n"})
    result = lint(tmp_path, tree=tmp_path)
    assert result.returncode == 1
    assert f"forerun.{room} -> forerun.{imports}" in result.stdout


def test_allowed_imports_are_left_alone(tmp_path: Path) -> None:
    plant(tmp_path, cli="import forerun.sandbox\nimport forerun.client\n", sandbox="import forerun.runtime\n")
    result = lint(tmp_path, tree=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_room_without_a_place_is_found(tmp_path: Path) -> None:
    plant(tmp_path, attic="")
    result = lint(tmp_path, tree=tmp_path)
    assert result.returncode == 1
    assert "attic" in result.stdout


def test_core_is_pure(graph: grimp.ImportGraph) -> None:
    imported = external_imports(graph, "forerun.core")
    assert imported - sys.stdlib_module_names == set(), "core needs nothing but the standard library"
    assert imported & IMPURE == set(), "core has no input or output, no clock and no chance of its own"


def test_client_needs_only_grpc_and_protobuf(graph: grimp.ImportGraph) -> None:
    imported = external_imports(graph, "forerun.client") - sys.stdlib_module_names
    assert imported <= {"grpc", "grpc_status", "google"}


def test_models_inside_the_model_server_need_nothing_of_the_platform_but_core(graph: grimp.ImportGraph) -> None:
    inside = {name for name in graph.modules if name.startswith("forerun.serving.backend")}
    imported = {found for module in inside for found in graph.find_modules_directly_imported_by(module)}
    ours = {name for name in imported if name.startswith("forerun.") and not name.startswith("forerun.core")}
    assert ours - inside == set(), "the model server's environment holds no package of the platform"
    others = {name.partition(".")[0] for name in imported if not name.startswith("forerun.")}
    assert others - sys.stdlib_module_names <= {
        "numpy",
        "openvino",
        "gguf",
        "tokenizers",
        "jinja2",
        "triton_python_backend_utils",
    }


@pytest.mark.parametrize("folder", NAMESPACE_FOLDERS)
def test_forerun_stays_a_namespace_package(folder: str) -> None:
    assert not (REPOSITORY / folder / "__init__.py").exists(), "one __init__.py here would hide the other folders"
