"""Takes a command line apart into simple commands, as far as that is certain without running it.

Unlike `shlex` it remembers what was quoted and what the shell would still expand: `uniq '|' f` writes the file `f`,
`uniq | f` does not. Everything it does not know for certain ends in `UnclearError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forerun.core.errors import CoreError

_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\}|([0-9?#@*$!_-]))")
_VOLATILE_VARIABLES = frozenset(
    {"RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID", "PPID", "$", "!"}
)
# What means itself wherever it stands in a word.
_ORDINARY = re.compile(r"[A-Za-z0-9_./,:=+%@~^!#-]+")
_REDIRECTIONS = ("&>>", "&>", "<<<", "<<", "<>", "<&", ">>", ">|", ">&", "<", ">")
_SEPARATORS = ("&&", "||", "|&", "|", ";", "\n")
_DOUBLE_QUOTE_ESCAPES = '$`"\\'


class UnclearError(CoreError):
    """The shell would do something with this text that cannot be told from the text."""

    def __init__(self, message: str) -> None:
        super().__init__("unclear", message)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    Attributes:
        text: The word without its quotes; an expansion stands as it was written.
        expands: The shell puts something else in place of a part of it, perhaps several words.
        globs: It begins with a pattern, so that a file's name decides how it begins.
    """

    text: str
    expands: bool = False
    globs: bool = False


@dataclass(slots=True)
class CommandLine:
    """A command line as simple commands, whatever operators stand between them.

    Attributes:
        commands: Words of each simple command, without its redirections.
        writes: The redirection that writes somewhere, or empty.
        volatile: A variable that changes by itself is used.
    """

    commands: list[list[Word]] = field(default_factory=list)
    writes: str = ""
    volatile: bool = False


def parse_command_line(text: str) -> CommandLine:
    """Takes a command line apart.

    Raises:
        UnclearError: Substitutions, sub-shells, here-documents, background jobs, unbalanced quotes.
    """
    return _Lexer(text).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = CommandLine()
        self._words: list[Word] = []
        self._redirection = ""  # the operator that waits for its target

    def run(self) -> CommandLine:
        while self._at < len(self._text):
            self._step()
        self._end_command()
        return self._line

    def _step(self) -> None:
        text, at = self._text, self._at
        character = text[at]
        if character in " \t":
            self._at += 1
        elif text.startswith("\\\n", at):
            self._at += 2
        elif character == "#":
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif character in "()":
            raise UnclearError("a sub-shell or function")
        elif character not in "<>&|;\n":
            self._word()
        elif operator := next((one for one in _REDIRECTIONS if text.startswith(one, at)), ""):
            self._redirect(operator)
        elif operator := next((one for one in _SEPARATORS if text.startswith(one, at)), ""):
            self._end_command()
            self._at += len(operator)
            if text.startswith(";", self._at) and operator == ";":
                raise UnclearError("a case statement")
        else:
            raise UnclearError("a background job")

    def _redirect(self, operator: str) -> None:
        if self._redirection:
            raise UnclearError("a redirection without a target")
        if operator in {"<<", "<<<"}:
            raise UnclearError("a here-document")
        self._redirection = operator
        self._at += len(operator)
        if self._text.startswith("(", self._at):
            raise UnclearError("a process substitution")

    def _end_command(self) -> None:
        if self._redirection:
            raise UnclearError("a redirection without a target")
        if self._words:
            self._line.commands.append(self._words)
            self._words = []

    def _word(self) -> None:
        """Reads one word; it becomes an argument, the target of a redirection, or the descriptor before one."""
        parts: list[str] = []
        expands = globs = quoted = brace = False
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\n;|&<>()":
                break
            if character == "\\":
                quoted = True
                parts.append(self._escaped())
            elif character == "'":
                quoted = True
                parts.append(self._single_quoted())
            elif character == '"':
                quoted = True
                part, expanded = self._double_quoted()
                parts.append(part)
                expands = expands or expanded
            elif character == "$":
                part, expanded = self._dollar(quotes="'\"")
                parts.append(part)
                expands = expands or expanded
            elif character == "`":
                raise UnclearError("a command substitution")
            elif character in "\0\r":
                raise UnclearError("a control character")
            else:
                globs = globs or (character in "*?[" and not any(parts))
                run = _ORDINARY.match(self._text, self._at)
                part = run[0] if run else character
                brace = brace or part == "{"
                expands = expands or (brace and ("," in part or ".." in part))
                parts.append(part)
                self._at += len(part)
        text = "".join(parts)
        self._take(Word(text, expands, globs and text != "["), quoted=quoted)  # a lone bracket is the test command

    def _take(self, word: Word, *, quoted: bool) -> None:
        if self._redirection:
            self._check_target(self._redirection, word)
            self._redirection = ""
        elif word.text.isdigit() and not quoted and self._text[self._at : self._at + 1] in {"<", ">"}:
            pass  # the descriptor of the redirection that follows
        else:
            self._words.append(word)

    def _check_target(self, operator: str, word: Word) -> None:
        if word.expands or word.globs:
            raise UnclearError("a redirection to an expanded name")
        if operator in {">&", "<&"} and (word.text.isdigit() or word.text == "-"):
            return
        if operator == "<":
            # The shell itself opens network connections under /dev/tcp and /dev/udp.
            if word.text.startswith("/dev/") and word.text not in {"/dev/null", "/dev/stdin"}:
                raise UnclearError("input from a device")
            return
        if word.text != "/dev/null" or operator in {"<>", "<&"}:
            self._line.writes = f"{operator} {word.text[:100]}"

    def _escaped(self) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise UnclearError("a backslash at the end")
        self._at += 2
        return "" if following == "\n" else following

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise UnclearError("an unbalanced quote")
        part = self._text[self._at + 1 : end]
        self._at = end + 1
        return part

    def _double_quoted(self) -> tuple[str, bool]:
        parts: list[str] = []
        expands = False
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == '"':
                self._at += 1
                return "".join(parts), expands
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in {*_DOUBLE_QUOTE_ESCAPES, "\n"}:
                parts.append(self._escaped())
            elif character == "$":
                part, expanded = self._dollar(quotes="")
                parts.append(part)
                expands = expands or expanded
            elif character == "`":
                raise UnclearError("a command substitution")
            else:
                parts.append(character)
                self._at += 1
        raise UnclearError("an unbalanced quote")

    def _dollar(self, *, quotes: str) -> tuple[str, bool]:
        """Reads what begins with a dollar: a plain variable, or a dollar that means itself.

        Args:
            quotes: Quotes that would begin a string with escapes; none inside of double quotes.
        """
        match = _VARIABLE.match(self._text, self._at)
        if match:
            self._at = match.end()
            self._line.volatile = self._line.volatile or (match[1] or match[2] or match[3]) in _VOLATILE_VARIABLES
            return match[0], True
        following = self._text[self._at + 1 : self._at + 2]
        if following and following in "({[" + quotes:
            raise UnclearError("a substitution")
        self._at += 1
        return "$", False
