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


def render(profile: Profile, depths: Depths, *, base: Path) -> Files:
    """Every file of the model repository.

    Args:
        profile: What is served.
        depths: For an engine that speculates itself: its schedule. Our own loop reads the table itself.
        base: Folder that relative paths of the profile count from.
    """
    if isinstance(profile.target, VllmEngine):
        return dict(vllm_models(profile, depths))
    if isinstance(profile.target, TensorRtLlmEngine):
        files: dict[str, str | Link] = dict(tensorrt_llm_models(profile, depths))
        for model in {path.partition("/")[0] for path in files}:
            for name in ("model.py", "helpers.py"):
                files[f"{model}/1/{name}"] = Link(f"/app/all_models/llmapi/tensorrt_llm/1/{name}")
        return files
    return dict(coupled_models(profile, base=base))


def write(files: Files, folder: Path) -> None:
    """Writes a repository so that a server never sees half of it: beside its place, then moved there.

    What was there before is replaced as a whole. A server that has it loaded is not disturbed: it reads models again
    only when it is asked to load them.
    """
    fresh = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    for name, content in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        else:
            path.write_text(content)
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
