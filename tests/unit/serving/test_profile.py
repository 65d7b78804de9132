"""Profiles: what fits together, what the repository becomes, what fits into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun.core.tokens.depth import StepCosts, StepTable
from forerun.runtime.errors import FailedPrecondition, InvalidArgument
from forerun.serving.memory import memory_plan
from forerun.serving.profile import BUILT_IN, Profile, read_profile
from forerun.serving.render.repository import Link, place, render, write
from forerun.serving.schedule import schedule

SHAPE = {"parameters": 7_000_000_000, "layers": 28, "kv_heads": 4, "head_width": 128, "vocabulary": 152_064}
GPUS = {"count": 2, "memory_bytes": 48 * 1024**3}
VLLM = {"kind": "vllm", "model": "/m/target", "shape": SHAPE}
TOY = {"kind": "toy"}
OPENVINO = {"kind": "openvino", "weights": "w.gguf", "tokenizer": "t.json"}


def profile(**fields: Any) -> Profile:
    return Profile.model_validate({"name": "p", "target": TOY, **fields})


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_profiles_are_valid_and_fit(name: str) -> None:
    plan = memory_plan(read_profile(name))
    assert plan is None or plan.problems == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "No Name"}, "name"),
        ({"slot": 3}, "slot"),
        ({"draft": {**VLLM}}, "one engine"),
        ({"speculation": {"kind": "engine", "method": "ngram"}}, "no speculation of its own"),
        ({"speculation": {"kind": "coupled", "drafters": ["model"]}}, "need each other"),
        ({"draft": TOY, "speculation": {"kind": "coupled", "drafters": ["recall"]}}, "need each other"),
        ({"speculation": {"kind": "coupled", "max_depth": 8}}, "max_depth"),
        ({"target": OPENVINO, "speculation": {"kind": "coupled", "branches": 2}}, "verifies chains only"),
        ({"target": VLLM}, "needs `gpus`"),
        ({"target": {**VLLM, "gpus": 4}, "gpus": GPUS}, "the machine has 2"),
        ({"target": VLLM, "gpus": GPUS, "speculation": {"kind": "coupled"}}, "speculates itself"),
        ({"target": VLLM, "gpus": GPUS, "speculation": {"kind": "engine", "method": "eagle3"}}, "`head`"),
        ({"target": VLLM, "gpus": GPUS, "speculation": {"kind": "engine", "method": "draft_model"}}, "draft model"),
        (
            {
                "target": {**VLLM, "kind": "tensorrt_llm"},
                "gpus": GPUS,
                "speculation": {"kind": "engine", "method": "suffix"},
            },
            "no suffix decoding",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(yaml.safe_dump({"name": "p", "target": TOY, **fields}))
    with pytest.raises(InvalidArgument, match=message):
        read_profile(str(file))


def test_a_profile_that_is_not_there_is_missing_and_not_invalid(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="one of toy, cpu-test"):
        read_profile(str(tmp_path / "none.yaml"))


def test_vllm_gets_its_speculation_with_our_depths_and_a_plain_copy_for_those_who_opt_out() -> None:
    speculation = {"kind": "engine", "method": "draft_model", "max_depth": 5, "plain_copy": True}
    draft = {**VLLM, "model": "/m/draft", "shape": {**SHAPE, "parameters": 500_000_000}}
    files = render(
        profile(target=VLLM, draft=draft, speculation=speculation, gpus=GPUS, slots=64), [(4, 5), (16, 2)], base=Path()
    )
    served, plain = (json.loads(str(files[f"{name}/1/model.json"])) for name in ("target", "target-plain"))
    assert served["speculative_config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 5,
        "model": "/m/draft",
        "draft_tensor_parallel_size": 1,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 16, 2], [17, 64, 0]],
    }
    assert "speculative_config" not in plain
    assert plain["model"] == served["model"] == "/m/target"


def test_tensorrt_llm_gets_a_schedule_without_zeros_and_its_images_own_code() -> None:
    speculation = {"kind": "engine", "method": "eagle3", "head": "/m/head", "max_depth": 4}
    target = {**VLLM, "kind": "tensorrt_llm"}
    files = render(profile(target=target, speculation=speculation, gpus=GPUS), [(4, 4), (32, 1), (64, 0)], base=Path())
    served = yaml.safe_load(str(files["target/1/model.yaml"]))
    assert served["speculative_config"] == {
        "decoding_type": "Eagle3",
        "max_draft_len": 4,
        "speculative_model": "/m/head",
        "draft_len_schedule": {4: 4, 32: 1},
    }
    assert isinstance(files["target/1/model.py"], Link)


def test_a_schedule_takes_the_depth_that_pays_and_never_grows_with_the_batch() -> None:
    def costs(per_token: float) -> StepCosts:
        return StepCosts({depth: 1.0 + per_token * depth for depth in range(6)})

    cells = {(1, 512): costs(0.01), (8, 512): costs(0.3), (16, 512): costs(0.05), (64, 512): costs(1.0)}
    found = schedule(StepTable({"target": cells}), "target", 5)
    assert found[0] == (1, 5)
    assert [batch for batch, _ in found] == sorted(batch for batch, _ in found)
    assert [depth for _, depth in found] == sorted((depth for _, depth in found), reverse=True)
    assert found[-1] == (64, 0)
    assert schedule(StepTable({}), "target", 5) == []


def test_memory_that_does_not_suffice_is_said_with_what_to_do() -> None:
    small = {"count": 1, "memory_bytes": 16 * 1024**3}
    plan = memory_plan(profile(target={**VLLM, "shape": {**SHAPE, "parameters": 32_000_000_000}}, gpus=small))
    assert plan is not None
    assert "split the target over more GPUs" in plan.problems[0]
    tight = memory_plan(profile(target=VLLM, gpus={**small, "memory_bytes": 20 * 1024**3}, context_tokens=100_000))
    assert tight is not None
    assert "context_tokens" in tight.problems[0]


def test_a_repository_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    write({"a/1/model.py": "one", "b/config.pbtxt": "two"}, folder)
    write({"a/1/model.py": "three"}, folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["model.py"]
    assert (folder / "a/1/model.py").read_text() == "three"
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_models_that_do_not_serve_leave_the_repository_as_it_was(tmp_path: Path) -> None:
    write({"a/1/model.py": "one"}, tmp_path / "r")
    placed = place({"a/2/model.py": "two", "b/1/model.py": "new"}, tmp_path / "r")
    assert (tmp_path / "r/a/2/model.py").exists()
    placed.undo()
    found = {str(path.relative_to(tmp_path / "r")): path.read_text() for path in (tmp_path / "r").rglob("*.py")}
    assert found == {"a/1/model.py": "one"}
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["a"]
