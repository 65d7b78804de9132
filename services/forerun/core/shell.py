"""Decides what a command line does, from its text alone and without running it.

Three answers: it only reads; it stays in the workspace (the cautious default for everything that is not clear); it
reaches out of the workspace. Only the first and the last change a tool's contract, so every doubt ends in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forerun.core import limits


class CommandClass(StrEnum):
    """What a command line does."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    OUTWARD = "outward"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of a command line, and why.

    Attributes:
        kind: What it does.
        reason: Which part decided, for people.
        volatile: A read whose answer depends on the time or on running processes.
    """

    kind: CommandClass
    reason: str
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The policy's lists.

    Attributes:
        read_only_commands: Commands that only read, apart from the options that this module knows to write.
        read_only_git: Sub-commands of git that only read.
        outward: Commands, or command and sub-command, that reach out of the workspace.
        volatile: Read-only commands whose answer changes by itself.
    """

    read_only_commands: frozenset[str]
    read_only_git: frozenset[str]
    outward: tuple[str, ...]
    volatile: frozenset[str] = frozenset({"date", "df", "ps"})


DEFAULT_RULES = ShellRules(
    read_only_commands=frozenset(
        (
            "[ ag awk cat cd column cut date df diff du echo egrep env fd file find grep head hexdump id jq less locate "
            "ls md5sum more nl nm objdump printenv printf ps pwd readlink realpath rg sha256sum sort stat strings tail "
            "test tr tree true type uname uniq wc which whoami xxd"
        ).split()
    ),
    read_only_git=frozenset(
        "blame cat-file describe diff grep log ls-files ls-tree reflog rev-parse shortlog show status".split()
    ),
    outward=(
        "git push",
        "git pull",
        "git fetch",
        "git clone",
        "gh",
        "curl",
        "wget",
        "ssh",
        "scp",
        "npm install",
        "npm publish",
        "docker",
        "kubectl",
        "systemctl",
        "kill",
        "tmux",
    ),
)
"""The rules for policies that name none of their own."""


def classify(command: str, rules: ShellRules) -> Verdict:
    """Classifies one command line. Pure, total, and linear in its length."""
    if len(command) > limits.COMMAND_CHARS:
        return Verdict(CommandClass.WORKSPACE, f"longer than {limits.COMMAND_CHARS} characters")
    return Verdict(CommandClass.WORKSPACE, "not known to be read-only")
