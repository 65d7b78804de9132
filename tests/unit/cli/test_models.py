"""`forerun models`: exit codes and one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun.cli.main import main

TOY: dict[str, Any] = {
    "name": "mine",
    "target": {"kind": "toy"},
    "draft": {"kind": "toy", "agreement": 0.5},
    "speculation": {"kind": "coupled", "drafters": ["recall", "model"]},
}


def written(folder: Path, profile: dict[str, Any]) -> str:
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    return str(file)


def test_a_pair_that_means_the_same_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "check", written(tmp_path, TOY), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["verifies_trees"]
    assert found["vocabulary"] == {
        "same": True, "tokens": 64, "padding": 0, "differences": 0, "first_differences": [],
    }  # fmt: skip


def test_a_pair_that_does_not_is_refused_with_the_first_five_names_and_not_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = written(tmp_path, {**TOY, "draft": {"kind": "toy", "vocabulary": 50}})
    assert main(["models", "check", profile, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["vocabulary"]["differences"], len(found["vocabulary"]["first_differences"])) == (14, 5)
    assert "50: ' w50' in target, nothing in draft" in found["problems"][0]
    assert main(["models", "render", profile, str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()


def test_files_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = {"kind": "openvino", "weights": "none.gguf", "tokenizer": "none.json"}
    assert main(["models", "check", written(tmp_path, {"name": "m", "target": target})]) == 1
    said = capsys.readouterr().err
    assert "target.weights: there is no file none.gguf" in said
    assert "target.tokenizer: there is no file none.json" in said


def test_what_is_no_profile_has_its_own_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "check", str(tmp_path / "nothing")]) == 3
    assert main(["models", "check", written(tmp_path, {"name": "m"})]) == 1
    assert "target: Field required" in capsys.readouterr().err


def test_memory_is_planned_and_what_is_too_large_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"parameters": 70_000_000_000, "layers": 80, "kv_heads": 8, "head_width": 128, "vocabulary": 128_256}
    profile = {
        "name": "big",
        "target": {"kind": "vllm", "model": "/m", "shape": shape},
        "gpus": {"count": 1, "memory_bytes": 80 * 1024**3},
    }
    assert main(["models", "check", written(tmp_path, profile), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "split the target over more GPUs" in found["problems"][0]
    assert found["memory"]["parts"][0] == {"what": "weights of the target", "bytes_per_gpu": 140_000_000_000, "gpus": 1}


def test_a_repository_is_written_with_the_depths_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.json"
    rows = [
        {"pair": "target", "batch": batch, "context": 4096, "seconds": {"0": 1.0, "4": step}}
        for batch, step in ((8, 1.01), (64, 9.0))
    ]
    table.write_text(json.dumps({"version": 1, "rows": rows}))
    shape = {"parameters": 7_000_000_000, "layers": 28, "kv_heads": 4, "head_width": 128, "vocabulary": 152_064}
    profile = {
        "name": "gpu",
        "target": {"kind": "vllm", "model": "/m", "shape": shape},
        "speculation": {"kind": "engine", "method": "suffix", "table": str(table)},
        "gpus": {"count": 1, "memory_bytes": 80 * 1024**3},
        "slots": 64,
    }
    out = tmp_path / "out"
    assert main(["models", "render", written(tmp_path, profile), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["target/1/model.json", "target/config.pbtxt"]
    model = json.loads((out / "target/1/model.json").read_text())
    assert model["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 64, 0]]
    table.write_text("{}")
    assert main(["models", "render", written(tmp_path, profile), str(out)]) == 1


def test_engines_on_gpus_are_not_calibrated_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "calibrate", "one-gpu", "--out", str(tmp_path / "t.json")]) == 3
    assert "docs/serving.md" in capsys.readouterr().err
    assert main(["models", "calibrate", "toy", "--out", str(tmp_path / "t"), "--triton", str(tmp_path)]) == 3
    assert "`make triton` installs one" in capsys.readouterr().err
