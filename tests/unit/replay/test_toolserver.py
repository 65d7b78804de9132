"""The tool server and the arms without the platform, under virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest

from forerun.cli.replay.agent import run_agent
from forerun.cli.replay.direct import DirectSession
from forerun.cli.replay.divergence import differences
from forerun.cli.replay.policies import Rules, ToolRule
from forerun.cli.replay.positions import Durations, record
from forerun.cli.replay.toolserver import ToolServer, label_of
from forerun.cli.replay.traces import RecordedCall, Session, Step
from forerun.runtime.virtual import run_virtual

RULES = Rules("f", {"read": ToolRule("read", "orders"), "write": ToolRule("write", "orders")})


def call(tool: str, seconds: float, content: str = "", arguments: str = "{}", *, error: bool = False) -> RecordedCall:
    return RecordedCall(tool, arguments.encode(), content, error, seconds, "c")


SESSION = Session(
    "f/s",
    "f",
    "t",
    (
        Step(1, ("hello",), 10.0, "", (call("read", 2.0, "a"), call("read", 3.0, "b", '{"x":1}'))),
        Step(2, (), 10.0, "", (call("read", 1.0, "c", '{"y":1}'), call("write", 4.0, "d"), call("read", 2.0, "e"))),
        Step(3, (), 5.0, "bye", ()),
    ),
)


def with_server(run: Callable[[ToolServer, httpx.AsyncClient], Awaitable[None]], session: Session = SESSION) -> None:
    async def main(_clock: object, _ids: object) -> None:
        server = ToolServer({0: record(session, RULES)}, Durations([session], seed=1))
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://tools") as client:
            await run(server, client)

    run_virtual(main)


def test_sequential_takes_the_sum_and_parallel_the_critical_path_with_the_same_observations() -> None:
    async def run(server: ToolServer, client: httpx.AsyncClient) -> None:
        runs = {
            arm: await run_agent(SESSION, DirectSession(client, label_of(arm, 0), RULES, parallel=arm == "parallel"))
            for arm in ("sequential", "parallel")
        }
        assert runs["sequential"].wall_seconds == pytest.approx(25.0 + 12.0)
        assert runs["parallel"].wall_seconds == pytest.approx(25.0 + 3.0 + 1.0 + 4.0 + 2.0)
        logs = server.log["parallel.0"], server.log["sequential.0"]
        assert differences(runs["parallel"], runs["sequential"], *logs) == []
        assert server.executions("parallel") == 5
        assert [line.wrote for line in server.log["sequential.0"]] == [False, False, False, True, False]

    with_server(run)


def test_a_recorded_failure_is_a_failure_and_an_unknown_session_is_told() -> None:
    session = Session("f/s", "f", "t", (Step(1, (), 0.0, "", (call("read", 1.0, "no", error=True),)),))

    async def run(_: ToolServer, client: httpx.AsyncClient) -> None:
        observed = await DirectSession(client, "a.0", RULES, parallel=True).call(session.steps[0].calls[0])
        assert observed.tool_error
        assert observed.content == b'{"content":"no","epoch":{"orders":0}}'
        assert observed.seconds == pytest.approx(1.0)
        assert (await client.post("/a.7/read", content=b"{}")).status_code == 404

    with_server(run, session)


def test_a_read_that_came_too_early_and_a_write_that_ran_twice_are_found() -> None:
    async def run(server: ToolServer, client: httpx.AsyncClient) -> None:
        right = await run_agent(SESSION, DirectSession(client, "sequential.0", RULES, parallel=False))
        reordered = Session("f/s", "f", "t", (Step(1, (), 0.0, "", tuple(reversed(SESSION.steps[1].calls))),))
        whole = Session("f/s", "f", "t", (SESSION.steps[0], *reordered.steps))
        wrong = await run_agent(whole, DirectSession(client, "wrong.0", RULES, parallel=False))
        await client.post("/wrong.0/write", content=b"{}")
        found = differences(wrong, right, server.log["wrong.0"], server.log["sequential.0"])
        assert {difference.what for difference in found} == {"observation", "write_added"}
        assert sum(difference.what == "write_added" for difference in found) == 1

    with_server(run)


def test_an_answer_that_the_tool_server_never_gave_is_found() -> None:
    async def run(server: ToolServer, client: httpx.AsyncClient) -> None:
        right = await run_agent(SESSION, DirectSession(client, "sequential.0", RULES, parallel=False))
        found = differences(right, right, [], server.log["sequential.0"])
        assert [difference.what for difference in found].count("not_in_log") == 5
        assert [difference.what for difference in found].count("write_missing") == 1

    with_server(run)
