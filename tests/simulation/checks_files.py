"""Invariants 1, 3 and 5 for workspaces: staged calls take effect once, in order, and only those that were asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.agents import BESIDE_INDEX, Asked
from tests.simulation.evidence import Evidence, name_of
from tests.simulation.files import FILE_TOOLS

_Content = tuple[str, ...]


def files(evidence: Evidence) -> Iterator[str]:
    """Every answer shows a content that a file could have after the calls before it, in the order of the calls."""
    by_file: dict[tuple[str, int], list[Asked]] = defaultdict(list)
    for one in evidence.diary.asked:
        if one.call.tool in FILE_TOOLS:
            by_file[one.session, int(one.call.arguments["file"])].append(one)
    for asked in by_file.values():
        yield from _one_file(sorted(asked, key=lambda one: (one.turn, one.index, one.asked_at)))
    if evidence.commands_open:
        yield f"6: {evidence.commands_open} commands are still running"


def _one_file(asked: list[Asked]) -> Iterator[str]:
    beside = [one for one in asked if one.index == BESIDE_INDEX]  # in no order with the others
    if any(one.call.tool == "add" for one in beside):
        return
    possible: set[_Content] = {()}
    for one in (one for one in asked if one not in beside):
        token = str(one.call.arguments.get("token", ""))
        after = {(*content, token) for content in possible} if token else set(possible)
        if one.served == "shared" or _asked_twice(one, asked):
            continue
        if one.status != "ok" or one.tool_error:
            possible |= after  # it may have taken effect, or not
            continue
        seen = tuple(one.content.decode().split())
        if seen not in after:
            shown = " or ".join(" ".join(content) or "nothing" for content in sorted(after))
            yield f"1: {name_of(one)} served {one.served} saw {' '.join(seen) or 'nothing'}, not {shown}"
            return
        possible = {seen}


def _asked_twice(one: Asked, asked: list[Asked]) -> bool:
    return any(other is not one and (other.turn, other.index) == (one.turn, one.index) for other in asked)
