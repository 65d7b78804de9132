"""Invariants 1, 3 and 5 for workspaces: staged calls take effect once, in order, and only those that were asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.simulation.agents import BESIDE_INDEX
from tests.simulation.diary import Asked
from tests.simulation.evidence import Evidence, name_of
from tests.simulation.files import FILE_TOOLS
from tests.simulation.tap import CallKey

_Content = tuple[str, ...]


def files(evidence: Evidence) -> Iterator[str]:
    """Every answer shows a content that a file could have after the calls before it, in the order of the calls."""
    keys: dict[tuple[str, int], list[CallKey]] = defaultdict(list)
    asked_at = evidence.tap.asked_at  # the order of keys, too, but where an owner forgot and a turn came again
    # Calls of a message that was cut off were never asked for, so they may change nothing and have no place in it.
    placed = [one for one in evidence.tap.actions.items() if one[0] in asked_at]
    for key, actions in sorted(placed, key=lambda one: (asked_at[one[0]], one[0])):
        for file in {int(arguments["file"]) for tool, arguments in actions if tool in FILE_TOOLS}:
            keys[key[0], file].append(key)
    answers: dict[CallKey, list[Asked]] = defaultdict(list)
    for one in evidence.diary.asked:
        answers[one.session, one.turn, one.index].append(one)
    for (session, file), asked in keys.items():
        turns = [one.turn for one in evidence.diary.asked if one.session == session]
        if turns != sorted(turns):
            continue  # an owner forgot, and keys came again for other calls
        yield from _one_file(evidence, file, asked, answers)
    if evidence.commands_open:
        yield f"6: {evidence.commands_open} commands are still running"


def _one_file(
    evidence: Evidence, file: int, asked: Sequence[CallKey], answers: dict[CallKey, list[Asked]]
) -> Iterator[str]:
    possible: set[_Content] = {()}
    meant = {key: [one for one in evidence.tap.actions[key] if one[1].get("file") == file] for key in asked}
    if any(len(evidence.tap.actions[key]) > 1 for key in asked):
        return  # a key for several calls
    if any(key[2] == BESIDE_INDEX and actions[0][0] == "add" for key, actions in meant.items()):
        return  # a write in no order with those of its message
    late: set[str] = set()
    for key in asked:
        _, arguments = meant[key][0]
        token = str(arguments.get("token", ""))
        possible = _with_late(possible, late)
        after = {(*content, token) for content in possible} if token else possible
        # The agent may have given up and never seen an answer: it may have taken effect, may still do so beside the
        # calls of later messages, or not.
        one = answers[key][0] if len(answers[key]) == 1 else None
        if one is None and token:
            late.add(token)
        if one is None or one.status != "ok" or one.tool_error or one.call.tool not in FILE_TOOLS:
            possible = possible | after
        elif one.served != "shared" and key[2] != BESIDE_INDEX:
            seen = tuple(one.content.decode().split())
            if seen not in after:
                shown = " or ".join(" ".join(content) or "nothing" for content in sorted(after))
                yield f"1: {name_of(one)} served {one.served} saw {' '.join(seen) or 'nothing'}, not {shown}"
                return
            possible = {seen}


def _with_late(possible: set[_Content], late: set[str]) -> set[_Content]:
    """The contents that there can be as well where some of what nobody has waited for takes effect now."""
    found, new = set(possible), list(possible)
    while new:
        content = new.pop()
        more = {(*content, token) for token in late if token not in content} - found
        found |= more
        new += more
    return found
