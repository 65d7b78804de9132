"""What there is of a kind, kept current in spite of everything that a server and a network do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from forerun.operator.kubernetes.reflector import Reflector
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from tests.unit.operator.fakes import Answer, Object, Stream, an_object, client, refused, said


def listed(*items: Object, version: int = 10) -> httpx.Response:
    return said({"items": list(items), "metadata": {"resourceVersion": str(version)}})


class Server:
    """Answers lists and watches in turn, and remembers what it was asked and when."""

    def __init__(self, *answers: httpx.Response | Callable[[], httpx.Response]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[float, str | None]] = []
        self.done = asyncio.Event()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        watching = request.url.params.get("watch") == "true"
        self.asked.append(
            (asyncio.get_running_loop().time(), request.url.params["resourceVersion"] if watching else None)
        )
        if not self._answers:
            self.done.set()
            return refused(500, "InternalError")
        answer = self._answers.pop(0)
        return answer() if callable(answer) else answer


def watched(*events: tuple[str, Object], silent: bool = False) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(200, stream=Stream(events, silent=silent))


def follow(server: Callable[[], Server]) -> tuple[Server, Reflector, int]:
    """Follows a server until it has given all its answers; with the number of changes that were told."""

    async def main(clock: LoopClock, _ids: SeededIds) -> tuple[Server, Reflector, int]:
        asked, changes = server(), []
        answer: Answer = asked
        reflector = Reflector(client(answer), "/apis/x", clock, lambda: changes.append(1))
        task = asyncio.ensure_future(reflector.run())
        await asked.done.wait()
        task.cancel()
        return asked, reflector, len(changes)

    run: Callable[[LoopClock, SeededIds], Coroutine[Any, Any, tuple[Server, Reflector, int]]] = main
    return run_virtual(run)


def names(reflector: Reflector) -> set[str]:
    return {name for _, name in reflector.objects}


def test_a_watch_goes_on_where_it_ended() -> None:
    server, reflector, _ = follow(
        lambda: Server(
            listed(an_object("a", 9)),
            watched(("ADDED", an_object("b", 11)), ("DELETED", an_object("a", 12))),
            watched(("BOOKMARK", {"metadata": {"resourceVersion": "20"}})),
        )
    )
    assert names(reflector) == {"b"}
    assert [version for _, version in server.asked] == [None, "10", "12", "20"]


def test_a_watch_that_falls_silent_is_given_up_and_goes_on_where_it_was() -> None:
    server, reflector, _ = follow(
        lambda: Server(
            listed(), watched(("ADDED", an_object("a", 11)), silent=True), watched(("ADDED", an_object("b", 12)))
        )
    )
    assert names(reflector) == {"a", "b"}
    assert [version for _, version in server.asked] == [None, "10", "11", "12"]


def test_a_version_that_is_too_old_is_a_new_list_and_nothing_is_missed() -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired"}
    server, reflector, _ = follow(
        lambda: Server(
            listed(an_object("gone", 9)), watched(("ERROR", expired)), listed(an_object("new", 30), version=30)
        )
    )
    assert names(reflector) == {"new"}
    assert [version for _, version in server.asked] == [None, "10", None, "30"]


def test_a_server_that_refuses_is_asked_with_growing_pauses() -> None:
    server, reflector, _ = follow(lambda: Server(*[refused(500, "InternalError") for _ in range(8)]))
    pauses = [later - earlier for (earlier, _), (later, _) in zip(server.asked, server.asked[1:], strict=False)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert not reflector.synced


def test_a_server_that_asks_for_patience_gets_it() -> None:
    server, _, _ = follow(lambda: Server(refused(429, "TooManyRequests", **{"Retry-After": "7"}), listed()))
    assert server.asked[1][0] - server.asked[0][0] == 7.0


def test_a_kind_that_is_not_there_is_not_an_empty_one() -> None:
    _, reflector, _ = follow(lambda: Server(refused(404, "NotFound")))
    assert not reflector.synced
    assert reflector.error is not None


def test_a_list_comes_in_pages() -> None:
    page = said({"items": [an_object("a", 1)], "metadata": {"resourceVersion": "10", "continue": "more"}})
    server, reflector, _ = follow(lambda: Server(page, listed(an_object("b", 2)), watched()))
    assert names(reflector) == {"a", "b"}
    assert len(server.asked) == 4


def test_a_status_that_was_written_is_no_news_and_a_new_wish_is() -> None:
    def told(*events: tuple[str, Object]) -> int:
        return follow(lambda: Server(listed(an_object("a", 9)), watched(*events)))[2] - 2  # list, and the end's error

    assert told(("MODIFIED", an_object("a", 11))) == 0
    assert told(("MODIFIED", an_object("a", 11, generation=2))) == 1
    assert told(("DELETED", an_object("a", 11)), ("ADDED", an_object("a", 12, uid="v"))) == 2
    assert told(("MODIFIED", an_object("a", 11, uid="v"))) == 1
