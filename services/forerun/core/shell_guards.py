"""Read-only commands that can write, or run other commands, when asked to with an option.

Each guard sees the words after the command's name and answers why the use is not read-only, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from forerun.core.shell_lexer import Word
from forerun.core.shell_scripts import awk_only_reads, sed_only_reads

Guard = Callable[[Sequence[Word]], str]
"""Words after the name -> why this is not read-only, or the empty text."""


def forbids(short: str = "", *long: str, words: tuple[str, ...] = ()) -> Guard:
    """A guard against options.

    Args:
        short: Letters of short options, also inside of a cluster such as `-uo`.
        *long: Names of long options. An abbreviation counts, because GNU tools accept it.
        words: Words that are not allowed as they are.
    """

    def guard(arguments: Sequence[Word]) -> str:
        for word in arguments:
            text = word.text
            name = text[2:].partition("=")[0] if text.startswith("--") else ""
            if text in words or (name and any(option.startswith(name) for option in long)):
                return f"{text[:100]} writes or runs something"
            if len(text) > 1 and text[0] == "-" and text[1] != "-" and any(letter in text for letter in short):
                return f"{text[:100]} writes or runs something"
        return ""

    return guard


def _one_operand(valued: str) -> Guard:
    """For commands whose second operand is a file to write.

    Args:
        valued: Letters of short options that take the next word as their value.
    """

    def guard(arguments: Sequence[Word]) -> str:
        operands = 0
        skip = False
        for word in arguments:
            if skip:
                skip = False
            elif word.text.startswith("-") and word.text != "-":
                skip = len(word.text) == 2 and word.text[1] in valued
            else:
                operands += 1
        return "the second operand is written" if operands > 1 else ""

    return guard


def _date(arguments: Sequence[Word]) -> str:
    if reason := forbids("s", "set")(arguments):
        return reason
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word.text in {"-d", "-r", "-f", "--date", "--reference", "--file"}:
            skip = True
        elif not word.text.startswith(("+", "-")):
            return "an operand sets the clock"
    return ""


def _plus(arguments: Sequence[Word]) -> str:
    """Pagers run what stands behind a plus."""
    if any(word.text.startswith("+") for word in arguments):
        return "a start command"
    return forbids("oOkK", "log-file", "LOG-FILE", "lesskey-file", "lesskey-src", "lesskey-content")(arguments)


_SED_CLUSTER = re.compile(r"-[nErsuz]*(e?)\Z")
_SED_LONG = frozenset({"--quiet", "--silent", "--regexp-extended", "--separate", "--unbuffered", "--null-data"})


def _sed(arguments: Sequence[Word]) -> str:
    scripts: list[str] = []
    operands: list[str] = []
    script_follows = False
    for word in arguments:
        text = word.text
        if script_follows:
            scripts.append(text)
            script_follows = False
        elif text.startswith("--expression="):
            scripts.append(text.partition("=")[2])
        elif len(text) > 1 and text.startswith("-") and text not in _SED_LONG:
            cluster = _SED_CLUSTER.match(text)
            if cluster is None:
                return f"{text[:100]} is not known to read only"
            script_follows = cluster[1] == "e"
        elif text not in _SED_LONG:
            operands.append(text)
    if not scripts:
        scripts = operands[:1]
    if not scripts or script_follows:
        return "no script"
    return "" if all(sed_only_reads(script) for script in scripts) else "the script can write or run something"


def awk_program(arguments: Sequence[Word]) -> str | None:
    """The program among the arguments of awk, or None where an option is not known to be harmless."""
    skip = False
    for word in arguments:
        text = word.text
        if skip:
            skip = False
        elif text in {"-F", "-v"}:
            skip = True
        elif text.startswith(("-F", "-v")):
            continue
        elif text.startswith("-"):
            return None
        else:
            return text
    return None


def _awk(arguments: Sequence[Word]) -> str:
    program = awk_program(arguments)
    if program is None:
        return "no program, or an option that is not known to read only"
    if any(word.text.startswith("-") for word in arguments[[w.text for w in arguments].index(program) + 1 :]):
        return "an option after the program"
    return "" if awk_only_reads(program) else "the program can write or run something"


_FIND_ACTIONS = (
    "-exec",
    "-execdir",
    "-ok",
    "-okdir",
    "-delete",
    "-fprint",
    "-fprint0",
    "-fprintf",
    "-fls",
)

GUARDS: Mapping[str, Guard] = MappingProxyType(
    {
        "[": forbids(words=("-v", "-R")),  # the name of a variable may hold a substitution
        "test": forbids(words=("-v", "-R")),
        "ag": forbids("", "pager"),
        "awk": _awk,
        "date": _date,
        "fd": forbids("xX", "exec", "exec-batch"),
        "file": forbids("C", "compile"),
        "find": forbids(words=_FIND_ACTIONS),
        "less": _plus,
        "more": _plus,
        "nm": forbids("", "plugin"),
        "printf": forbids("v"),
        "rg": forbids("", "pre", "hostname-bin"),
        "sed": _sed,
        "sort": forbids("o", "output", "compress-program"),
        "tail": forbids("fF", "follow", "retry"),  # would never end
        "tree": forbids("oR", "output"),
        "uniq": _one_operand("fsw"),
        "xxd": _one_operand("lscgno"),
    }
)
"""Commands that read only in some forms. A word that the shell expands makes any of them unclear."""
