"""Whether a sed script or an awk program only reads.

Both languages can write files and start programs. Only scripts that are made of harmless commands are recognised;
everything else counts as writing.
"""

from __future__ import annotations

import re

# ---------------------------------------------------------------- sed


def _pattern(delimiter: str) -> str:
    """A regular expression up to the delimiter. A bracket that spans the delimiter is read differently by seds."""
    end = re.escape(delimiter)
    return rf"(?:[^{end}\\\n\[]|\\.|\[\^?\]?[^\]{end}\\\n]*\])*"


def _plain(delimiter: str) -> str:
    return rf"(?:[^{re.escape(delimiter)}\\\n]|\\.|\\\n)*"


def _substitution(delimiter: str) -> str:
    end = re.escape(delimiter)
    # Without the flags e (runs the result) and w (writes a file).
    return rf"s{end}{_pattern(delimiter)}{end}{_plain(delimiter)}{end}[gpiIm0-9]*"


_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_pattern('/')}/[IM]*)"
_SUBSTITUTIONS = "|".join(_substitution(delimiter) for delimiter in "/|,#:@!%+")
_COMMAND = re.compile(
    rf"(?:{_ADDRESS}(?:\s*,\s*(?:{_ADDRESS}|[+~]\d+))?)?\s*!*\s*"
    rf"(?:[pdDPnNgGhHxz=]|[qQl]\s*\d*|{_SUBSTITUTIONS}|y/{_plain('/')}/{_plain('/')}/|(?P<block>\{{))[ \t]*"
)
_BETWEEN = re.compile(r"[\s;}]*")


def sed_only_reads(script: str) -> bool:
    """Whether a sed script only selects and edits what it prints."""
    at = 0
    while True:
        at = _BETWEEN.match(script, at).end()  # type: ignore[union-attr]  # matches the empty text too
        if at == len(script):
            return True
        command = _COMMAND.match(script, at)
        if command is None:
            return False
        at = command.end()
        if command["block"] is None and at < len(script) and script[at] not in ";}\n":
            return False


# ---------------------------------------------------------------- awk

_AWK_NEVER = re.compile(r"system|getline|@|\bclose\b")
_AWK_TIME = re.compile(r"systime|strftime|srand|rand\b|PROCINFO")
_AWK_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def awk_only_reads(program: str) -> bool:
    """Whether an awk program only prints: no files, no pipes, no commands."""
    if _AWK_NEVER.search(program):
        return False
    if "/" in program or "#" in program:
        # Inside of a regular expression or a comment a quote begins no string, so strings are not certain here.
        return ">" not in program and "|" not in program.replace("||", "")
    code = _AWK_STRING.sub('""', program)
    if '"' in code.replace('""', "") or "|" in code.replace("||", ""):
        return False
    depth = 0
    for character in code:
        if character in "{}":
            depth += 1 if character == "{" else -1
            if depth < 0:
                return False
        elif character == ">" and depth:
            return False  # a comparison is possible here too, but so is a file
    return depth == 0


def awk_is_volatile(program: str) -> bool:
    """Whether an awk program prints something else at another time."""
    return _AWK_TIME.search(program) is not None
