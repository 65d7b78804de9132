"""Outputs that are kept for later drafts: whose they are, how long they last, and that they go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest

from forerun.serving.backend.remembering import Erased, Memory

CONTEXT = [1, 2, 3, 4]


def memory(
    folder: Path | None,
    model: str = "m",
    tokens: int = 10_000,
    most: int = 8,
    erasures: Mapping[str, str] | None = MappingProxyType({}),
) -> Memory:
    return Memory(model, tokens_each=tokens, most=most, most_of_tenant=6, folder=folder, erasures=erasures)


def say(kept: Memory, tenant: str, agent: str, context: list[int], output: list[int]) -> None:
    kept.append(tenant, agent, context, output, kept.era(tenant))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_outputs_are_their_tenants_alone() -> None:
    kept = memory(None)
    say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    assert len(kept.of("acme", "a")[0]) > 0
    assert kept.of("rival", "a") == []
    assert kept.of("", "a") == []
    say(kept, "", "a", CONTEXT, [5, 6, 7])
    assert kept.of("", "a") == []


async def test_nothing_is_kept_where_the_profile_says_so() -> None:
    kept = memory(None, tokens=0)
    say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    assert kept.of("acme", "a") == []


async def test_what_was_saved_is_there_after_a_restart_and_for_the_same_model_only(tmp_path: Path) -> None:
    first = memory(tmp_path)
    say(first, "acme", "a/../b", CONTEXT, [5, 6, 7])
    first.save()
    again = memory(tmp_path).of("acme", "a/../b")[0]
    assert again.to_bytes() == first.of("acme", "a/../b")[0].to_bytes()
    assert memory(tmp_path, model="other").of("acme", "a/../b") == []
    assert {file.parent.parent for file in files(tmp_path)} == {tmp_path}, "names are digests"


async def test_many_outputs_are_saved_and_sorted_without_being_asked(tmp_path: Path) -> None:
    kept = memory(tmp_path, tokens=100_000)
    for number in range(40):
        say(kept, "acme", "a", CONTEXT, [number * 7 + step for step in range(200)])
        await kept.tend(nullcontext())
    history = kept.of("acme", "a")[0]
    assert not history.merge_is_due
    assert len(memory(tmp_path).of("acme", "a")[0]) > 6_000, "all but what came after the last saving"


async def test_an_erased_tenant_is_gone_on_disk_too_and_comes_back_empty(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    for tenant in ("acme", "rival"):
        say(kept, tenant, "a", CONTEXT, [5, 6, 7])
    kept.save()
    kept.erase("acme")
    assert kept.of("acme", "a") == []
    kept.save()
    restored = memory(tmp_path)
    assert restored.of("acme", "a") == []
    assert len(restored.of("rival", "a")[0]) > 0


async def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    kept.save()
    for file in files(tmp_path):
        file.write_bytes(file.read_bytes()[:-3])
    assert memory(tmp_path).of("acme", "a") == []


async def test_what_is_being_written_when_its_tenant_is_erased_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = memory(tmp_path)
    for _ in range(16):
        say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    writing, go_on, really = threading.Event(), threading.Event(), Path.write_bytes

    def slowly(self: Path, data: bytes) -> int:
        writing.set()
        assert go_on.wait(10)
        return really(self, data)

    monkeypatch.setattr(Path, "write_bytes", slowly)
    tending = asyncio.create_task(kept.tend(nullcontext()))
    assert await asyncio.to_thread(writing.wait, 10)
    erasing = asyncio.create_task(asyncio.to_thread(kept.erase, "acme"))
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(tending, erasing)
    assert files(tmp_path) == []


async def test_what_waits_to_be_written_when_its_tenant_is_erased_is_not_written_over_what_follows(
    tmp_path: Path,
) -> None:
    kept = memory(tmp_path)
    for _ in range(16):
        say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as only:
        asyncio.get_running_loop().set_default_executor(only)
        busy = only.submit(go_on.wait, 10)
        tending = asyncio.create_task(kept.tend(nullcontext()))
        await asyncio.sleep(0.01)
        kept.erase("acme")
        say(kept, "acme", "a", [1], [9])
        go_on.set()
        await tending
        assert busy.result()
    assert files(tmp_path) == [], "one output is not due yet, and the others were erased"


async def test_a_history_that_there_is_no_room_for_leaves_no_file(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    for number in range(40):
        say(kept, "acme", f"agent {number}", CONTEXT, [5, 6, 7])
        kept.save()
        assert len(files(tmp_path)) <= 6
    assert kept.of("acme", "agent 0") != kept.of("acme", "agent 39")
    restored = memory(tmp_path, most=4)
    assert len(files(tmp_path)) == 4, "a smaller bound holds for what was saved, too"
    assert len(restored.of("acme", "agent 39")) == 2


async def test_after_a_restart_a_tenant_with_many_agents_still_crowds_out_itself_alone(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    say(kept, "few", "only", CONTEXT, [5, 6, 7])
    for number in range(5):
        say(kept, "many", f"agent {number}", CONTEXT, [5, 6, 7])
        kept.save()
    restored = memory(tmp_path, most=4)
    assert len(restored.of("few", "only")[0]) > 0, "the oldest file of all"
    assert len(files(tmp_path)) == 4


async def test_a_text_that_began_before_an_erasure_leaves_nothing(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    era = kept.era("acme")
    kept.erase("acme", "first")
    kept.append("acme", "a", CONTEXT, [5, 6, 7], era)
    assert kept.of("acme", "a") == []
    era = kept.era("acme")
    kept.erase("acme", "first")
    kept.append("acme", "a", CONTEXT, [5, 6, 7], era)
    assert len(kept.of("acme", "a")) == 1, "heard of twice, it is one erasure"


async def test_what_was_erased_is_counted_and_what_followed_stays(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    for tenant in ("acme", "rival"):
        say(kept, tenant, "a", CONTEXT, [5, 6, 7])
    kept.save()
    assert kept.erase("acme", "first") == Erased(histories=2, tokens=16, files=2)
    say(kept, "acme", "a", CONTEXT, [8, 9])
    kept.save()
    assert kept.erase("acme", "first") == Erased(histories=2, tokens=16, files=2), "heard of twice, it is one erasure"
    assert len(files(tmp_path)) == 4
    kept.hear({"acme": "first", "rival": "second"})
    assert len(kept.of("acme", "a")) == 1
    assert kept.of("rival", "a") == []


async def test_a_process_that_was_away_while_a_tenant_was_erased_reads_nothing_of_it(tmp_path: Path) -> None:
    away = memory(tmp_path)
    for tenant in ("acme", "rival"):
        say(away, tenant, "a", CONTEXT, [5, 6, 7])
    away.save()
    back = memory(tmp_path, erasures={"acme": "first", "nobody": "second"})
    assert back.of("acme", "a") == []
    assert len(back.of("rival", "a")) == 1
    assert len(files(tmp_path)) == 2, "of the rival"
    say(back, "acme", "a", CONTEXT, [8, 9])
    back.save()
    again = memory(tmp_path, erasures={"acme": "first", "nobody": "second"})
    assert len(again.of("acme", "a")) == 1, "what was said since stays"


async def test_files_of_another_model_go_with_their_tenant_too(tmp_path: Path) -> None:
    other = memory(tmp_path, model="other")
    say(other, "acme", "a", CONTEXT, [5, 6, 7])
    other.save()
    assert memory(tmp_path).erase("acme", "first") == Erased(histories=0, tokens=0, files=2)
    assert files(tmp_path) == []


async def test_nothing_that_was_saved_is_read_while_nobody_knows_what_was_erased(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    kept.save()
    blind = memory(tmp_path, erasures=None)
    assert blind.of("acme", "a") == []
    assert blind.erase("acme", "first").files == 2


async def test_files_that_cannot_be_removed_are_no_erasure_and_are_tried_again(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    say(kept, "acme", "a", CONTEXT, [5, 6, 7])
    kept.save()
    (place,) = {file.parent for file in files(tmp_path)}
    (place / "0").mkdir()
    with pytest.raises(OSError, match="0"):
        kept.erase("acme", "first")
    assert kept.of("acme", "a") == []
    assert files(tmp_path) == [], "what can go is gone"
    (place / "0").rmdir()
    assert kept.erase("acme", "first") == Erased(2, 16, 0)


async def test_an_erased_tenant_whose_files_stay_is_not_read_and_keeps_no_other_from_going(tmp_path: Path) -> None:
    first = memory(tmp_path)
    for tenant in ("acme", "rival"):
        say(first, tenant, "a", CONTEXT, [5, 6, 7])
    first.save()
    stuck = tmp_path / files(tmp_path)[0].parent.name / "0"
    stuck.mkdir()
    again = memory(tmp_path, erasures={"acme": "1", "rival": "1"})
    assert again.of("acme", "a") == again.of("rival", "a") == []
    assert files(tmp_path) == []


async def test_a_disk_that_takes_nothing_costs_what_is_saved_and_nothing_else(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    for tenant in ("acme", "rival"):
        say(kept, tenant, "a", CONTEXT, [5, 6, 7])
    kept.save()
    blocked = files(tmp_path)[0].with_suffix(".new")
    blocked.mkdir()
    for tenant in ("acme", "rival"):
        for number in range(20):
            say(kept, tenant, "a", CONTEXT, [5, 6, 7, number])
    await kept.tend(nullcontext())
    kept.save()
    short = [file for file in files(tmp_path) if len(file.read_bytes()) < 200]
    assert short == [blocked.with_suffix("")], "it is as old as it was, all others are new"
    blocked.rmdir()
    kept.save()
    assert all(len(file.read_bytes()) > 200 for file in files(tmp_path))
    assert len(kept.of("acme", "a")[0]) == len(kept.of("rival", "a")[0]) > 100


async def test_a_file_that_another_process_removes_while_they_are_read_is_left_out(tmp_path: Path) -> None:
    first = memory(tmp_path)
    say(first, "acme", "a", CONTEXT, [5, 6, 7])
    first.save()
    (files(tmp_path)[0].parent / "gone").symlink_to(tmp_path / "nowhere")
    assert len(memory(tmp_path).of("acme", "a")) == 1
