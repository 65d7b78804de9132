"""Read-only commands whose answer changes by itself: with time, or from one view of the same files to the next.

Every execution has a view of its own on the workspace. What a file holds, its size, owner, mode and time of
modification are the same in each. Number, device and the times of access and change belong to the view, or move when
somebody looks; blocks on disk move when the kernel writes them down. Who prints or sorts by those is never run ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from forerun.core.shell_guards import awk_program
from forerun.core.shell_lexer import Word
from forerun.core.shell_scripts import awk_is_volatile

_FIND_TIMES = ("-mmin", "-amin", "-cmin", "-mtime", "-atime", "-ctime", "-used", "-newer")
_FIND_VIEW = ("-anewer", "-cnewer", "-inum", "-ls", "-fstype")
_FIND_FORMAT = re.compile(r"%[-+ #0-9.]*(?:[abcDFiknS]|[AC].)")
_STAT_FORMAT = re.compile(r"-c|--(?:f|fo|for|form|forma|format|p|pr|pri|prin|print|printf)\b")
# Of a stat format: rights, owners, name, kind, size and time of modification.
_STAT_STABLE = re.compile(r"%[-+ #0-9.]*[aAfFgGnNsuUyY%]")


def changes_by_itself(name: str, arguments: Sequence[Word]) -> bool:
    """Whether a read-only use of a command may answer differently though no file has changed."""
    judge = _JUDGES.get(name)
    return judge is not None and judge(arguments)


def _texts(arguments: Sequence[Word]) -> list[str]:
    return [word.text for word in arguments]


def _options(short: str, *long: str, valued: str = "") -> Callable[[Sequence[Word]], bool]:
    """Whether one of these options is among the words.

    Args:
        short: Letters of short options, also inside of a cluster such as `-la`.
        *long: Names of long options. An abbreviation counts, because GNU tools accept it.
        valued: Letters of short options whose value is the rest of the cluster.
    """
    cluster = re.compile(rf"-[^-{valued}{short}][^{valued}{short}]*[{short}]|-[{short}]") if short else None

    def found(arguments: Sequence[Word]) -> bool:
        for text in _texts(arguments):
            if text.startswith("--"):
                name = text[2:].partition("=")[0]
                if name and any(option.startswith(name) for option in long):
                    return True
            elif cluster is not None and cluster.match(text):
                return True
        return False

    return found


def _find(arguments: Sequence[Word]) -> bool:
    texts = _texts(arguments)
    if any(text.startswith(_FIND_TIMES) or text in _FIND_VIEW for text in texts):
        return True
    return any(_FIND_FORMAT.search(text) for action, text in pairwise(texts) if action == "-printf")


_STAT_OF_DISK = _options("f", "file-system", valued="c")


def _stat(arguments: Sequence[Word]) -> bool:
    """Without a format it prints everything; in one, every directive has to be known as stable."""
    if _STAT_OF_DISK(arguments):
        return True
    texts = _texts(arguments)
    formats = [text for text in texts if "%" in text]
    chosen = any(_STAT_FORMAT.match(text) for text in texts)
    return not chosen or not formats or any("%" in _STAT_STABLE.sub("", text) for text in formats)


_JUDGES: dict[str, Callable[[Sequence[Word]], bool]] = {
    "[": lambda arguments: "-N" in _texts(arguments),  # changed since somebody has read it
    "test": lambda arguments: "-N" in _texts(arguments),
    "awk": lambda arguments: awk_is_volatile(awk_program(arguments) or ""),
    "du": lambda _: True,
    "fd": _options("l", "changed", "older", "list-details"),
    "find": _find,
    "ls": _options("isuc", "inode", "size", "time", valued="IwT"),
    "printf": lambda arguments: any("%(" in text for text in _texts(arguments)),
    "rg": lambda arguments: any(
        text.startswith(("--changed", "--older", "--sort=acc", "--sort=cre", "--sortr=acc", "--sortr=cre"))
        or text in ("accessed", "created")
        for text in _texts(arguments)
    ),
    "stat": _stat,
    "tree": _options("c", "inodes", "device", valued="LPIHT"),
}
