"""Which models a profile becomes, and how they reach a disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.serving.profile import Profile, TensorRtLlmEngine, VllmEngine
from forerun.serving.render.coupled import coupled_models
from forerun.serving.render.engines import tensorrt_llm_models, vllm_models

Depths = Sequence[tuple[int, int]]
"""Depth up to each batch size: ((4, 7), (16, 3)) means 7 up to 4 sequences, 3 up to 16, and none above."""


@dataclass(frozen=True, slots=True)
class Link:
    """A file that the server's image brings."""

    target: str


Files = Mapping[str, str | Link]
"""Path in the repository to what is there."""


def render(profile: Profile, depths: Depths, *, base: Path, generation: int = 1, orders: Path | None = None) -> Files:
    """Every file of the model repository.

    Args:
        profile: What is served.
        depths: For an engine that speculates itself: its schedule. Our own loop reads the table itself.
        base: Folder that relative paths of the profile count from.
        generation: Of coupled models, see `coupled_models`.
        orders: Folder in which coupled models find what they are told while they run; None: nothing.
    """
    if isinstance(profile.target, VllmEngine):
        return dict(vllm_models(profile, depths))
    if isinstance(profile.target, TensorRtLlmEngine):
        files: dict[str, str | Link] = dict(tensorrt_llm_models(profile, depths))
        for model in {path.partition("/")[0] for path in files}:
            for name in ("model.py", "helpers.py"):
                files[f"{model}/1/{name}"] = Link(f"/app/all_models/llmapi/tensorrt_llm/1/{name}")
        return files
    return dict(coupled_models(profile, base=base, generation=generation, orders=orders))


@dataclass(frozen=True, slots=True)
class Placed:
    """Models that were put into a repository, until it is known whether they serve.

    Attributes:
        new: Folders that were not there before.
        replaced: Folder to where its old content lies.
        waiting: Where that is.
    """

    new: tuple[Path, ...]
    replaced: tuple[tuple[Path, Path], ...]
    waiting: Path

    def keep(self) -> None:
        """They serve: what they replaced goes."""
        shutil.rmtree(self.waiting)

    def undo(self) -> None:
        """They do not: everything is as it was."""
        for folder in self.new:
            shutil.rmtree(folder)
        for folder, old in self.replaced:
            shutil.rmtree(folder)
            os.replace(old, folder)
        shutil.rmtree(self.waiting)


def place(files: Files, repository: Path) -> Placed:
    """Puts models into a repository that a server may be reading, each as a whole, beside those that are there."""
    waiting = repository / ".placing"
    shutil.rmtree(waiting, ignore_errors=True)
    for name, content in files.items():
        path = waiting / "new" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        else:
            path.write_text(content, encoding="utf-8")
    for part in ("new", "old"):
        (waiting / part).mkdir(parents=True, exist_ok=True)
    new, replaced = [], []
    for fresh in sorted((waiting / "new").iterdir()):
        folder = repository / fresh.name
        if folder.exists():
            old = waiting / "old" / fresh.name
            os.replace(folder, old)
            replaced.append((folder, old))
        else:
            new.append(folder)
        os.replace(fresh, folder)
    return Placed(tuple(new), tuple(replaced), waiting)


def write(files: Files, folder: Path) -> None:
    """Writes a whole repository, in place of what is there."""
    fresh, old = (folder.with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir(parents=True)
    place(files, fresh).keep()
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
