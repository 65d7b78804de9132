"""Writes everything that is generated from sources: `make generate`, and `make verify` into a scratch folder.

Each generator owns whole folders or single files below the root it is given; nothing there is edited by hand. A new
generator is one row of `GENERATORS`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTOS = REPOSITORY / "protos"
THIRD_PARTY = PROTOS / "third_party"
"""Protocols of others, in packages of their own: outside of the namespace that the light client ships."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of generated thing: the paths it owns (relative to the root) and how to write them."""

    name: str
    owns: tuple[str, ...]
    write: Callable[[Path], None]


def write_stubs(root: Path) -> None:
    """Messages, gRPC stubs and their types, in a package that is importable as it lies: proto root = import root."""
    out = root / "protos" / "gen"
    out.mkdir(parents=True, exist_ok=True)
    sources = [
        *sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.glob("forerun/*/*.proto")),
        *sorted(path.relative_to(THIRD_PARTY).as_posix() for path in THIRD_PARTY.glob("*/*.proto")),
    ]
    # The mypy plugins are programs beside the interpreter, whether or not the environment is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{PROTOS}",
        f"-I{THIRD_PARTY}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet,only_async:{out}",
        *sources,
    ]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    for source in {Path(source).parent for source in sources}:
        package = out / source
        version = ".".join(source.parts)
        origin = PROTOS if (PROTOS / source).is_dir() else THIRD_PARTY
        place = (origin / source).relative_to(REPOSITORY)
        (package / "__init__.py").write_text(f'"""Generated from {place}: import {version}.<file>_pb2."""\n')
        (package / "py.typed").write_text("")
        # protoc writes gRPC modules for files without a service, too: nothing would ever import them.
        for module in package.glob("*_pb2_grpc.py"):
            if "add_" not in module.read_text():
                module.unlink()
                module.with_suffix(".pyi").unlink(missing_ok=True)


REFERENCES = {
    "errors": "forerun.runtime.error_reference",
    "metrics": "forerun.runtime.metrics",
    "topology": "forerun.runtime.topology",
    "settings": "forerun.cli.settings_reference",
    "limits": "forerun.cli.limits_reference",
    "conditions": "forerun.operator.engine.conditions",
}
"""Page of docs/reference to the module that prints it."""


def write_references(root: Path) -> None:
    """The reference pages, each printed by the module that holds the facts."""
    folder = root / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for page, module in REFERENCES.items():
        done = subprocess.run([sys.executable, "-m", module], check=True, capture_output=True, cwd=REPOSITORY)
        (folder / f"{page}.md").write_bytes(done.stdout)


def write_crds(root: Path) -> None:
    """The custom resource definitions; in a process of its own, which sees the stubs that were just written."""
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "crds.py", str(root)], check=True)


def write_chart_readme(root: Path) -> None:
    """The table of the chart's values."""
    import chart

    target = root / chart.CHART / "README.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(chart.readme((REPOSITORY / chart.CHART / "values.yaml").read_text()))


def write_dashboards(root: Path) -> None:
    """Dashboards, alert rules and their reference."""
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "dashboards.py", str(root)], check=True)


GENERATORS = (
    Generator("protos", ("protos/gen/forerun", "protos/gen/kserve_v2"), write_stubs),
    Generator("references", tuple(f"docs/reference/{page}.md" for page in REFERENCES), write_references),
    Generator("chart", ("helm/forerun/README.md",), write_chart_readme),
    Generator(
        "dashboards",
        ("helm/forerun/files/dashboards", "helm/forerun/files/rules", "docs/reference/alerts.md"),
        write_dashboards,
    ),
    Generator("crds", ("helm/forerun/files/crds",), write_crds),
)


def generate(root: Path) -> None:
    """Replace everything generated below `root`: each generator's things once it has written all of them."""
    for generator in GENERATORS:
        with tempfile.TemporaryDirectory(prefix="forerun-generate-") as folder:
            written = Path(folder)
            generator.write(written)
            for owned in generator.owns:
                replace(root / owned, written / owned)


def replace(target: Path, written: Path) -> None:
    """Put what was written in the place of what was there."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if written.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(written, target)


def main() -> int:
    """Parse the command line and generate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="where to write; the repository when not given")
    generate(parser.parse_args().root.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
