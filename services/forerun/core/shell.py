"""Decides what a command line does, from its text alone and without running it.

Three answers: it only reads; it stays in the workspace (the cautious default for everything that is not clear); it
reaches out of the workspace. Only the first and the last change a tool's contract, so every doubt ends in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forerun.core import limits
from forerun.core.shell_guards import GUARDS, forbids
from forerun.core.shell_lexer import UnclearError, Word, parse_command_line
from forerun.core.shell_volatile import changes_by_itself


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
        reason: Which part decided, for people. Holds a part of the command, so it is content.
        volatile: A read whose answer changes by itself, see `shell_volatile`.
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
        conditional: Commands that read only in some forms: sed without -i, xargs with a read-only command.
        volatile: Read-only commands whose answer changes by itself.
    """

    read_only_commands: frozenset[str]
    read_only_git: frozenset[str]
    outward: tuple[str, ...]
    conditional: frozenset[str] = frozenset({"sed", "xargs"})
    volatile: frozenset[str] = frozenset({"date", "df", "ps"})


DEFAULT_RULES = ShellRules(
    read_only_commands=frozenset(
        {
            *("[", "ag", "awk", "cat", "cd", "column", "cut", "date", "df", "diff", "du", "echo", "egrep", "env", "fd"),
            *("file", "find", "grep", "head", "hexdump", "id", "jq", "less", "locate", "ls", "md5sum", "more", "nl"),
            *("nm", "objdump", "printenv", "printf", "ps", "pwd", "readlink", "realpath", "rg", "sha256sum", "sort"),
            *("stat", "strings", "tail", "test", "tr", "tree", "true", "type", "uname", "uniq", "wc", "which"),
            *("whoami", "xxd"),
        }
    ),
    read_only_git=frozenset(
        {
            *("blame", "cat-file", "describe", "diff", "grep", "log", "ls-files", "ls-tree", "reflog", "rev-parse"),
            *("shortlog", "show", "status"),
        }
    ),
    outward=(
        *("git push", "git pull", "git fetch", "git clone", "gh", "curl", "wget", "ssh", "scp"),
        *("npm install", "npm publish", "docker", "kubectl", "systemctl", "kill", "tmux"),
    ),
)
"""The rules for policies that name none of their own."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
# Variables that change how something is shown, and start nothing.
_HARMLESS_VARIABLES = frozenset({"LANG", "LANGUAGE", "TZ", "COLUMNS", "LINES", "TERM", "NO_COLOR", "CLICOLOR"})
_HARMLESS_ASSIGNMENTS = frozenset({"PAGER=cat", "GIT_PAGER=cat", "PAGER=", "GIT_PAGER="})
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")
_MOVING_FILES = ("/proc/", "/sys/", "/dev/")

# Words behind which another command may stand.
_WRAPPERS = frozenset(
    {
        *("!", "{", "}", "[[", "awk", "bash", "builtin", "case", "command", "coproc", "dash", "do", "elif", "else"),
        *("env", "eval", "exec", "fd", "find", "for", "if", "ksh", "make", "nice", "node", "nohup", "parallel", "perl"),
        *("php", "python", "python3", "ruby", "sed", "setsid", "sh", "stdbuf", "sudo", "then", "time", "timeout"),
        *("until", "watch", "while", "xargs", "zsh"),
    }
)
_ROUGH_BREAK = re.compile(r"[;|&()<>`'\"\n{}\[\],$]+")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_INTERPRETERS = re.compile(r"\b(?:ba|da|k|z)?sh\b|\b(?:python[0-9.]*|perl|ruby|node|php|ssh)\b")


def classify(command: str, rules: ShellRules) -> Verdict:
    """Classifies one command line. Pure and total."""
    if len(command) > limits.COMMAND_CHARS:
        kind = CommandClass.OUTWARD if _roughly_outward(command, rules) else CommandClass.WORKSPACE
        return Verdict(kind, f"longer than {limits.COMMAND_CHARS} characters")
    try:
        line = parse_command_line(command)
    except UnclearError as unclear:
        kind = CommandClass.OUTWARD if _roughly_outward(command, rules) else CommandClass.WORKSPACE
        return Verdict(kind, str(unclear))
    if not line.commands:
        return Verdict(CommandClass.WORKSPACE, "no command")
    for words in line.commands:
        if _reads(words, rules).kind is not CommandClass.READ_ONLY and _outward(words, rules):
            return Verdict(CommandClass.OUTWARD, _shown(words))
    if line.writes:
        return Verdict(CommandClass.WORKSPACE, f"redirection {line.writes}")
    volatile = line.volatile
    for words in line.commands:
        verdict = _reads(words, rules)
        if verdict.kind is not CommandClass.READ_ONLY:
            return verdict
        volatile = volatile or verdict.volatile
    return Verdict(CommandClass.READ_ONLY, "every command only reads", volatile)


def _shown(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words[:3])[:100]


def _without_assignments(words: Sequence[Word]) -> Sequence[Word]:
    for index, word in enumerate(words):
        if _ASSIGNMENT.match(word.text) is None:
            return words[index:]
    return ()


# ---------------------------------------------------------------- reading


def _reads(words: Sequence[Word], rules: ShellRules) -> Verdict:
    """Judges one simple command; either read-only or not, with the reason."""
    rest = _without_assignments(words)
    if not rest:
        return _no("it sets a variable of the shell")
    for word in words[: len(words) - len(rest)]:
        if not _harmless_assignment(word):
            return _no(f"variable {word.text[:50]}")
    name, arguments = _system_name(rest[0].text), rest[1:]
    if rest[0].expands or rest[0].globs:
        return _no("the command itself is expanded")
    volatile = name in rules.volatile or any(
        word.text.startswith(_MOVING_FILES) and word.text != "/dev/null" for word in arguments
    )
    if name == "git":
        return _git(arguments, rules)
    if name not in rules.read_only_commands and name not in rules.conditional:
        return _no(f"{name[:50]} is not known to read only")
    if name == "env":
        return _env(arguments, rules)
    if name == "xargs":
        return _xargs(arguments, rules)
    if guard := GUARDS.get(name):
        if any(word.expands or word.globs for word in arguments):
            return _no(f"an expansion may become an option of {name}")
        if reason := guard(arguments):
            return _no(f"{name}: {reason}")
    elif name in rules.conditional:
        return _no(f"no rule says when {name[:50]} reads only")
    return Verdict(CommandClass.READ_ONLY, name, volatile or changes_by_itself(name, arguments))


def _no(reason: str) -> Verdict:
    return Verdict(CommandClass.WORKSPACE, reason)


def _system_name(text: str) -> str:
    """The bare name of a command of the system. A path into the workspace stays a path, which no list contains."""
    for folder in _SYSTEM_FOLDERS:
        if text.startswith(folder) and "/" not in text[len(folder) :]:
            return text[len(folder) :]
    return text


def _harmless_assignment(word: Word) -> bool:
    name = word.text.partition("=")[0]
    return name in _HARMLESS_VARIABLES or name.startswith("LC_") or word.text in _HARMLESS_ASSIGNMENTS


def _env(arguments: Sequence[Word], rules: ShellRules) -> Verdict:
    rest = list(arguments)
    while rest and rest[0].text in {"-i", "-", "-0", "--ignore-environment", "--null", "-u"}:
        del rest[: 2 if rest[0].text == "-u" else 1]
    if rest and rest[0].text.startswith("-"):
        return _no(f"env: {rest[0].text[:50]} is not known to read only")
    if not _without_assignments(rest):
        return Verdict(CommandClass.READ_ONLY, "env")
    return _reads(rest, rules)


_XARGS_OPTION = re.compile(
    r"-(?:[0rtx]+|[nPIiLds].+)\Z|--(?:null|no-run-if-empty|verbose|exit|(?:max-args|max-procs|delimiter|replace)=.+)\Z",
    re.DOTALL,
)


def _xargs(arguments: Sequence[Word], rules: ShellRules) -> Verdict:
    rest = list(arguments)
    while rest and rest[0].text.startswith("-"):
        if rest[0].text in {"-n", "-P", "-I", "-L", "-d", "-s"}:
            del rest[:2]
        elif _XARGS_OPTION.match(rest[0].text):
            del rest[0]
        else:
            return _no(f"xargs: {rest[0].text[:50]} is not known to read only")
    if not rest:
        return Verdict(CommandClass.READ_ONLY, "xargs")
    name = _system_name(rest[0].text)
    if name in GUARDS or name in {"git", "env", "xargs"}:
        return _no(f"xargs: the input may bring options of {name}")
    return _reads(rest, rules)


_GIT_GUARDS = {
    "cat-file": forbids("", "filters", "textconv"),
    "grep": forbids("O", "open-files-in-pager", "ext-grep"),
}
_GIT_ANY = forbids("", "output", "ext-diff")
_GIT_RELATIVE = re.compile(
    r"--(?:since|until|after|before)\b|relative|human|%[ac][rh]|@\{(?![0-9-]+\}|u\}|upstream\}|push\})"
)


def _git(arguments: Sequence[Word], rules: ShellRules) -> Verdict:
    rest = list(arguments)
    while rest and rest[0].text.startswith("-"):
        if rest[0].text == "-C" and len(rest) > 1 and not rest[1].expands:
            del rest[:2]
        elif rest[0].text in {"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"}:
            del rest[0]
        else:
            return _no(f"git: {rest[0].text[:50]} is not known to read only")
    if not rest or rest[0].text not in rules.read_only_git:
        return _no(f"git {_shown(rest)} is not known to read only")
    name, options = rest[0].text, rest[1:]
    if any(word.expands or word.globs for word in options):
        return _no(f"an expansion may become an option of git {name}")
    if reason := _GIT_ANY(options) or (_GIT_GUARDS[name](options) if name in _GIT_GUARDS else ""):
        return _no(f"git {name}: {reason}")
    if name == "reflog" and options and not options[0].text.startswith(("-", "HEAD", "show", "list", "exists")):
        return _no("git reflog can drop entries")
    volatile = any(_GIT_RELATIVE.search(word.text) or word.text.startswith("--deb") for word in options)
    return Verdict(CommandClass.READ_ONLY, f"git {name}", volatile)


# ---------------------------------------------------------------- reaching out


def _outward(words: Sequence[Word], rules: ShellRules) -> bool:
    rest = _without_assignments(words)
    if not rest:
        return False
    name = rest[0].text.rpartition("/")[2]
    if name in _WRAPPERS or rest[0].expands:
        return any(_roughly_outward(word.text, rules) for word in rest[1:]) or _names_outward(
            [word.text for word in rest[1:]], rules, anywhere=True
        )
    return _names_outward([word.text for word in rest], rules, anywhere=False)


def _names_outward(texts: Sequence[str], rules: ShellRules, *, anywhere: bool) -> bool:
    """Whether the words name an outward command at their beginning, or anywhere behind a wrapper."""
    names = [text.rpartition("/")[2] for text in texts]
    for entry in rules.outward:
        first, _, second = entry.partition(" ")
        for start in range(len(names) if anywhere else min(1, len(names))):
            if names[start] == first and (not second or second in texts[start + 1 :]):
                return True
    return False


def _roughly_outward(text: str, rules: ShellRules) -> bool:
    """The same for text that cannot be taken apart with certainty: every piece of it may be a command."""
    if not any(entry.partition(" ")[0] in text for entry in rules.outward):
        return False  # the usual case, found without taking anything apart
    if not _INTERPRETERS.search(text):
        text = _without_here_documents(text)
    for piece in _ROUGH_BREAK.split(text):
        texts = [word for word in piece.split() if _ASSIGNMENT.match(word) is None]
        wrapped = bool(texts) and texts[0].rpartition("/")[2] in _WRAPPERS
        if _names_outward(texts, rules, anywhere=wrapped):
            return True
    return False


def _without_here_documents(text: str) -> str:
    """Removes the bodies of here-documents: they are data, unless something interprets them."""
    kept: list[str] = []
    at = 0
    while opening := _HERE_DOCUMENT.search(text, at):
        line_end = text.find("\n", opening.end())
        if line_end < 0:
            break
        closing = re.compile(rf"^\t*{re.escape(opening[2])}$", re.MULTILINE).search(text, line_end + 1)
        kept.append(text[at:line_end])
        if closing is None:
            return "".join(kept)
        at = closing.end()
    kept.append(text[at:])
    return "".join(kept)
