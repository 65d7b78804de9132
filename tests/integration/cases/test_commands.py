"""Commands through the client, in real sandboxes (C2, C3, C8, C9; A12 and A15 with real files)."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from forerun.cli.virtual import VirtualPlatform
from forerun.client import AsyncClient, AsyncSession, Call, CallRejected, CallTimeout, Status
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.sandbox.isolation.bubblewrap import BubblewrapLevel
from forerun.sandbox.isolation.cgroups import detect
from forerun.sandbox.isolation.levels import Ladder, LevelName, probe
from forerun.sandbox.isolation.process import ProcessLevel
from tests.integration.cases.conftest import policy, tool
from tests.integration.sandbox.conftest import make_bench, open_descriptors
from tests.integration.sandbox.test_isolation import _MANY as MANY_PROCESSES

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
PATH = ["files/{path:path}"]
COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "crème.md"), unicodedata.normalize("NFD", "crème.md")


def command(*argv: str, **more: int | str) -> dict[str, object]:
    return {"command": {"argv": list(argv), **more}}


SH = ("/bin/sh", "-c", "{script}")
RULES = policy(
    tool("sh", "WRITE", staged=True, endpoint=command(*SH)),
    tool("capped", "WRITE", staged=True, outputCapBytes=4096, endpoint=command(*SH)),
    tool("few_processes", "WRITE", staged=True, endpoint=command(*SH, pids=20)),
    tool("little_memory", "WRITE", staged=True, endpoint=command(*SH, memoryBytes=128 * MIB)),
    tool("small_disk", "WRITE", staged=True, endpoint=command(*SH, diskBytes=20_000_000)),
    tool("write", "WRITE", staged=True, writes=PATH, endpoint=command("/usr/bin/tee", "{path}", stdinArgument="text")),
    tool("read", "READ", reads=PATH, endpoint=command("/bin/cat", "{path}")),
    tool(
        "edit", "WRITE", staged=True, reads=PATH, writes=PATH,
        endpoint=command(
            "/bin/sh", "-c", 'grep -qx "$2" "$1" && sleep 0.1 && echo "$3" > "$1"', "sh", "{path}", "{old}", "{new}"
        ),
    ),
)  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def ladder() -> Ladder:
    cgroups = detect()
    return await probe([BubblewrapLevel(cgroups=cgroups), ProcessLevel(cgroups=cgroups)])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(ladder: Ladder, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncClient]:
    """A client of the whole platform in one process and real time, at the strongest isolation of this machine."""
    directory = tmp_path_factory.mktemp("platform")
    file = directory / "policy.yaml"
    rules = RULES | {"servers": [RULES["servers"][0] | {"workspaceSeed": str(directory / "seed")}]}
    file.write_text(json.dumps(rules))
    (directory / "seed").mkdir()
    for name in (COMPOSED, DECOMPOSED):
        (directory / "seed" / name).write_text(f"{len(name)} characters\n")
    clock = SystemClock()
    ids = SystemIds(clock)
    platform = VirtualPlatform(
        directory=directory, policy_file=file, clock=clock, ids=ids, http=httpx.AsyncHTTPTransport(), ladder=ladder
    )
    await platform.start()
    async with AsyncClient(channel=platform.channel(), ids=ids) as opened:
        yield opened
    await platform.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def session(client: AsyncClient) -> AsyncIterator[AsyncSession]:
    async with client.session("agent") as opened:
        yield opened


# ---------------------------------------------------------------- C2


async def test_a_child_that_keeps_the_pipe_open_holds_nobody(session: AsyncSession) -> None:
    async with asyncio.timeout(10):  # far below the 30 s of the child; the platform itself waits well under 2 s
        result = await session.call_tool("sh", {"script": "sleep 30 & echo ready"}, timeout_seconds=20.0)
        assert (result.text, result.tool_error) == ("ready\n", False)
        assert result.execution_seconds < 2.0
        assert (await session.call_tool("sh", {"script": 'read x; echo "[$x]"'})).text == "[]\n"


# ---------------------------------------------------------------- C3


async def test_large_output_is_read_to_the_end_and_says_what_was_cut(session: AsyncSession) -> None:
    script = "python3 -c \"import sys; sys.stderr.write('e' * 10_000_000); print('done'); sys.exit(7)\""
    result = await session.call_tool("capped", {"script": script}, timeout_seconds=30.0)
    lines = result.text.splitlines()
    assert (lines[0], lines[-1], result.tool_error) == ("done", "[exit code 7]", True)
    assert any(f"{10_000_000 - 4096} bytes omitted" in line for line in lines)
    assert len(result.content) < 5_000
    # The command goes on as it would have: what it does after the output is done.
    after = await session.call_tool("capped", {"script": f"{script}; echo after > after; cat after"})
    assert "after" in after.text


async def test_one_endless_line_and_a_character_cut_in_half_are_text(session: AsyncSession) -> None:
    script = "python3 -c \"import sys; w = sys.stdout.buffer.write; w('é'.encode() * 5_000_000); w(b'\\xff\\xc3')\""
    result = await session.call_tool("capped", {"script": script}, timeout_seconds=30.0)
    assert result.text.startswith("éé") and result.text.endswith("é\ufffd\ufffd")
    assert "bytes omitted" in result.text
    assert "replaced=2" in result.media_type
    whole = await session.call_tool("sh", {"script": script}, timeout_seconds=30.0)
    assert len(whole.content) == 10_000_000 + 2 * len("\ufffd".encode()), "without a cap it comes whole"


# ---------------------------------------------------------------- C9


LOADS = (
    ("few_processes", f"python3 -c '{MANY_PROCESSES}'", "LIMIT_PIDS"),
    ("little_memory", f"python3 -c \"x = b'x' * {256 * MIB}; import time; time.sleep(5)\"", "LIMIT_MEMORY"),
    ("small_disk", "head -c 50000000 /dev/zero > big", "LIMIT_DISK"),
)


async def test_each_cap_has_its_own_error_and_neighbours_stay_healthy(client: AsyncClient) -> None:
    async with client.session("agent") as wild, client.session("agent") as neighbour:
        ended = asyncio.Event()

        async def work() -> int:
            count = 0
            while not ended.is_set():
                assert (
                    await neighbour.call_tool("sh", {"script": f"echo {count} >> n; tail -n 1 n"})
                ).text == f"{count}\n"
                count += 1
            return count

        working = asyncio.ensure_future(work())
        for name, load, reason in LOADS:
            with pytest.raises(CallRejected) as caught:
                await wild.call_tool(name, {"script": f"echo begun > begun; {load}"})
            assert caught.value.reason == reason
        ended.set()
        assert await working >= 1
        # What was ended has changed nothing, and the session goes on.
        assert (await wild.call_tool("sh", {"script": "ls begun big 2>/dev/null; echo on"})).text == "on\n"


async def test_a_deadline_is_an_error_of_its_own(session: AsyncSession) -> None:
    with pytest.raises(CallTimeout) as caught:
        await session.call_tool("sh", {"script": "sleep 30"}, timeout_seconds=0.3)
    assert caught.value.reason == "TOOL_TIMEOUT"


async def test_nothing_of_the_host_is_inside(
    session: AsyncSession, ladder: Ladder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOST_API_KEY", "canary")
    (tmp_path / "secret").write_text("canary")
    names = (await session.call_tool("sh", {"script": "env"})).text
    assert "canary" not in names and "TOKEN" not in names
    if ladder.strongest is LevelName.PROCESS:
        pytest.skip("NO ISOLATION ON THIS MACHINE: what files a sandbox sees is not tested")
    seen = await session.call_tool(
        "sh", {"script": f"cat {tmp_path}/secret; ls -A /run /var/run/secrets; cat /proc/*/environ; echo end"}
    )
    assert "canary" not in seen.text
    listed = (await session.call_tool("sh", {"script": "ls -A /run /var/run/secrets 2>/dev/null; echo end"})).text
    assert listed.splitlines()[-1] == "end"
    assert not [line for line in listed.splitlines() if line.endswith((".sock", "token", "secrets"))]


# ---------------------------------------------------------------- C8


async def test_descriptors_stay_the_same_over_a_thousand_runs(ladder: Ladder, tmp_path: Path) -> None:
    bench = make_bench(ladder, ladder.strongest, tmp_path)
    await bench.run("true")
    before = open_descriptors()
    ends: Counter[int | None] = Counter()

    async def some(first: int) -> None:
        for number in range(first, 999, 24):
            if number % 3 == 0:
                result = await bench.run("sleep", "30", wall_seconds=0.01)
            else:
                result = await bench.run("no-such-program" if number % 3 == 1 else "true")
            ends[result.exit_code] += 1

    await asyncio.gather(*(some(first) for first in range(24)))
    assert ends == {None: 333, 127: 333, 0: 333}
    assert abs(open_descriptors() - before) <= 5


# ---------------------------------------------------------------- A12, A15 with real files


async def test_each_spelling_of_a_name_is_its_own_file(session: AsyncSession) -> None:
    for _ in range(2):  # the second time from the memo
        for name in (COMPOSED, DECOMPOSED):
            assert (await session.call_tool("read", {"path": name})).text == f"{len(name)} characters\n"


async def test_a_batch_of_edits_in_a_workspace_loses_none(session: AsyncSession) -> None:
    results = await session.call_tools(
        [
            Call("write", {"path": "n.txt", "text": "1\n"}),
            Call("read", {"path": "./n.txt"}),
            Call("edit", {"path": "n.txt", "old": "1", "new": "2"}),
            Call("edit", {"path": "/workspace/../workspace/./n.txt", "old": "2", "new": "3"}),
            Call("write", {"path": "other.txt", "text": "other\n"}),
        ]
    )
    assert [(result.status, result.tool_error) for result in results[:3]] == [(Status.OK, False)] * 3
    assert results[1].text == "1\n"
    final = await session.call_tool("sh", {"script": "cat n.txt other.txt"})
    assert final.text == "3\nother\n"
