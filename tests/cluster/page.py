"""docs/install.md as a program: its shell blocks, run as they stand there, by a person at one shell."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences.

    Attributes:
        section: The heading above it.
        language: The word after the first fence.
        text: Its lines.
    """

    section: str
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """All blocks of a page in Markdown, in their order."""
    for part in re.split(r"^## ", page, flags=re.MULTILINE):
        section = part.partition("\n")[0].strip()
        for language, text in _FENCE.findall(part):
            yield Block(section, language, text)


class BlockFailedError(Exception):
    """A block ended with an error."""


@dataclass(slots=True)
class Reader:
    """Follows a page from its first shell block to its last.

    Attributes:
        page: The page.
        folder: Where it works, and where its shell's variables are kept.
        environment: Of the shell, at the beginning.
        words: What a reader replaces by something of his own.
    """

    page: Path
    folder: Path
    environment: Mapping[str, str]
    words: Mapping[str, str]
    _left: list[Block] = field(init=False)

    def __post_init__(self) -> None:
        self._left = [one for one in blocks(self.page.read_text()) if one.language == "sh"]

    def text_of(self, section: str, language: str) -> str:
        """A block that is no command, with words replaced."""
        (text,) = [
            one.text for one in blocks(self.page.read_text()) if one.section == section and one.language == language
        ]
        return self._with_own_words(text)

    def run(self, section: str, *, folder: Path | None = None, seconds: float = _BLOCK_SECONDS) -> str:
        """Runs the next block, which has to be one of that section; what it printed.

        Args:
            section: The heading above the block.
            folder: Where it runs, if not in the reader's.
            seconds: It is ended after this.

        Raises:
            BlockFailedError: a command of it failed; holds what it said.
        """
        block = self._left.pop(0)
        assert block.section == section, f"the next block of {self.page.name} is one of {block.section!r}"
        variables = self.folder / "variables"
        variables.touch(mode=0o600)
        keep = f"export -p | grep -v '^declare -x \\(OLD\\)\\?PWD' >{variables}"
        script = f"set -euo pipefail\n. {variables}\n{self._with_own_words(block.text)}\n{keep}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder or self.folder, env=dict(self.environment), capture_output=True,
            text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise BlockFailedError(f"{self.page.name}, {section}:\n{block.text}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def variables(self) -> dict[str, str]:
        """What the shell exports by now."""
        printed = subprocess.run(
            ["bash", "-c", f". {self.folder / 'variables'}; env -0"], env=dict(self.environment), capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        pairs = (entry.partition("=") for entry in printed.stdout.split("\0") if entry)
        return {name: value for name, _, value in pairs}

    @property
    def unread(self) -> list[str]:
        """Sections of the blocks that were not run."""
        return [one.section for one in self._left]

    def _with_own_words(self, text: str) -> str:
        for word, own in self.words.items():
            text = re.sub(rf"\b{word}\b", own, text)
        return text
