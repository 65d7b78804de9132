"""What the model has said before, for later drafts: in memory and on disk, never across tenants, erased with one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.core.errors import CoreError
from forerun.core.tokens.histories import Histories, HistoryKey
from forerun.core.tokens.history import History, SortedRun, merge

_SAVE_EVERY: Final = 16
"""Outputs of a history between two savings. So many are lost where the process is killed."""

_NOBODY: Final = "-"
"""Agent of texts whose agent is not known; an empty name means all of a tenant's agents together."""

_LENGTH: Final = 4
"""Bytes that say how long the head of a file is."""

_KEY_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure took away.

    Attributes:
        histories: In memory.
        tokens: In them.
        files: On disk, of any model.
    """

    histories: int = 0
    tokens: int = 0
    files: int = 0

    def __add__(self, other: Erased) -> Erased:
        return Erased(self.histories + other.histories, self.tokens + other.tokens, self.files + other.files)


NOTHING_ERASED: Final = Erased()


class Memory:
    """The histories of one served model.

    Args:
        model: Digest of its vocabulary.
        tokens_each: Bound of one history; 0 keeps none.
        most: Histories that are kept.
        most_of_tenant: Of one tenant.
        folder: Where they survive the process; None: nowhere.
        erasures: The last erasure of each tenant that had one: what was saved before it is gone and not read. None:
            they are not known now, so nothing of what was saved is read.
    """

    def __init__(
        self,
        model: str,
        *,
        tokens_each: int,
        most: int,
        most_of_tenant: int,
        folder: Path | None,
        erasures: Mapping[str, str] | None,
    ) -> None:
        self._model = model
        self._keeps = tokens_each > 0
        self._folder = folder
        self._most = most
        self._histories = Histories(tokens_each=max(64, tokens_each), most=most, most_of_tenant=most_of_tenant)
        self._eras: Counter[str] = Counter()
        self._erased: dict[str, Erased] = {}
        self._unsaved: dict[HistoryKey, int] = {}
        self._touched: dict[HistoryKey, None] = {}
        self._busy: set[HistoryKey] = set()
        # Files are written in other threads: what is erased meanwhile must not come back.
        self._disk = threading.Lock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.hear(erasures or {})
        if folder is not None and erasures is not None:
            self._restore(folder)

    def of(self, tenant: str, agent: str) -> list[History]:
        """Where drafts for a text of this agent may come from."""
        return self._histories.of(tenant, agent or _NOBODY, self._model) if tenant else []

    def era(self, tenant: str) -> int:
        """Counts the erasures of a tenant: a text that began in an earlier one is not kept."""
        return self._eras[tenant]

    def append(self, tenant: str, agent: str, context: Sequence[int], output: Sequence[int], era: int) -> None:
        """An output. It drafts from now on; sorting and saving, where they are due, are left to `tend`.

        Args:
            tenant: Whose it is.
            agent: Of the tenant.
            context: What stood before it.
            output: Of the model.
            era: Of the tenant when the text began.
        """
        if not (self._keeps and tenant and output) or era != self.era(tenant):
            return
        agent = agent or _NOBODY
        for key in self._histories.append(tenant, agent, self._model, context, output):
            self._forget(key)
        for key in (HistoryKey(tenant, self._model, agent), HistoryKey(tenant, self._model, "")):
            self._touched[key] = None
            self._unsaved[key] = self._unsaved.get(key, 0) + 1

    async def tend(self, turn: contextlib.AbstractContextManager[object]) -> None:
        """Sorts and saves what is due, beside the decoding. Takes seconds: nobody's answer waits for it.

        Args:
            turn: As long as it is entered nobody else reads or changes what is here.
        """
        with turn:
            due = [one for one in self._touched if one not in self._busy]
        for key in due:
            with turn:
                self._touched.pop(key, None)
                history = self._histories.get(key)
            if history is not None and key not in self._busy:
                await self._tend(key, history, turn)

    def hear(self, erasures: Mapping[str, str]) -> None:
        """Forgets the tenants whose last erasure is a new one. Files that stay for now are not read."""
        for tenant, erasure in erasures.items():
            if erasure != self._histories.erasure(tenant):
                try:
                    self.erase(tenant, erasure)
                except OSError as error:
                    _complain("an erased tenant's files are still there", error)

    def erase(self, tenant: str, erasure: str = "") -> Erased:
        """Forgets what was said for a tenant, on disk too. Texts that are decoded leave nothing here.

        Args:
            tenant: Whose it is.
            erasure: Names the erasure; what began after it stays when it is heard of again. Empty: everything goes.

        Returns:
            What this erasure has taken away until now.

        Raises:
            OSError: Files of it are still there. Nothing of it is in memory, and the same erasure may be tried again.
        """
        before = NOTHING_ERASED
        if erasure and erasure == self._histories.erasure(tenant):
            before = self._erased.get(tenant, NOTHING_ERASED)
        else:
            self._eras[tenant] += 1
        gone = self._histories.erase(tenant, erasure)
        for key in gone:
            self._unsaved.pop(key, None)
            self._touched.pop(key, None)
        self._erased[tenant] = before + Erased(len(gone), sum(gone.values()))
        self._erased[tenant] += Erased(files=self._remove(tenant, erasure))
        return self._erased[tenant]

    def _remove(self, tenant: str, erasure: str) -> int:
        """Removes the files of a tenant from before an erasure; how many."""
        if self._folder is None:
            return 0
        removed, place = 0, self._folder / _digest(tenant)
        left: OSError | None = None
        with self._disk:
            for file in sorted(place.glob("*")):
                if erasure and _head(file).get("erasure") == erasure:
                    continue
                try:
                    file.unlink(missing_ok=True)
                    removed += 1
                except OSError as error:
                    left = error
            with contextlib.suppress(OSError):
                place.rmdir()  # only where it is empty
        if left is not None:
            raise left
        return removed

    def save(self) -> None:
        """Saves everything that is not saved yet, as far as the disk takes it."""
        for key, history in self._histories:
            if self._unsaved.get(key):
                self._write(key, history, history.to_bytes())

    def _forget(self, key: HistoryKey) -> None:
        """There is no room for it: neither here nor on disk, where it would otherwise stay for ever."""
        self._unsaved.pop(key, None)
        self._touched.pop(key, None)
        if self._folder is not None:
            with self._disk:
                try:
                    self._file(self._folder, key).unlink(missing_ok=True)
                except OSError as error:
                    _complain("a history that is not kept is still there", error)

    async def _tend(self, key: HistoryKey, history: History, turn: contextlib.AbstractContextManager[object]) -> None:
        self._busy.add(key)
        try:
            if history.merge_is_due:
                with turn:
                    run, fresh, limit = history.to_merge()
                merged: SortedRun = await asyncio.to_thread(merge, run, fresh, limit)
                with turn:
                    if self._histories.get(key) is not history:
                        return  # erased or forgotten meanwhile
                    history.install(merged, len(fresh))
            if self._folder is not None and self._unsaved.get(key, 0) >= _SAVE_EVERY:
                with turn:
                    content = history.to_bytes()
                await asyncio.to_thread(self._write, key, history, content)
        finally:
            self._busy.discard(key)

    def _write(self, key: HistoryKey, history: History, content: bytes) -> None:
        if self._folder is None:
            return
        whose = {"tenant": key.tenant, "model": key.model, "agent": key.agent, "erasure": history.erasure}
        head = json.dumps(whose).encode()
        with self._disk:
            if self._histories.get(key) is not history:
                return  # erased or forgotten meanwhile
            self._unsaved[key] = (
                1  # where the disk does not take it, it is tried again at the end or when more has come
            )
            file = self._file(self._folder, key)
            fresh = file.with_suffix(".new")
            try:
                file.parent.mkdir(exist_ok=True, mode=0o700)
                fresh.write_bytes(len(head).to_bytes(_LENGTH, "little") + head + content)
                os.replace(fresh, file)
                self._unsaved[key] = 0
            except OSError as error:
                _complain("a history cannot be saved, it is kept in memory only", error)

    def _file(self, folder: Path, key: HistoryKey) -> Path:
        return folder / _digest(key.tenant) / _digest(f"{key.model}\n{key.agent}")

    def _restore(self, folder: Path) -> None:
        """Takes up what was saved, the newest last, so that it goes last where there is too much."""
        files = sorted(folder.glob("*/*"), key=_written_at)
        others: list[Path] = []
        for file in files:
            if file.suffix:
                continue  # a write that was cut off; the next one replaces it
            head = _head(file)
            if head.get("model") != self._model:
                others.append(file)
                continue
            try:
                key = HistoryKey(head["tenant"], head["model"], head["agent"])
                content = file.read_bytes()
                history = History.from_bytes(
                    content[_LENGTH + _length(content) :], self._model, head.get("erasure", "")
                )
            except (OSError, KeyError, CoreError) as error:
                sys.stderr.write(f"history {file.name} is left out: {error}\n")
                continue
            for gone in self._histories.restore(key, history):
                self._forget(gone)
        for file in others[: -self._most]:
            file.unlink(missing_ok=True)


def _complain(what: str, error: OSError) -> None:
    sys.stderr.write(f"{what}: {error}\n")


def _written_at(file: Path) -> int:
    """When, in nanoseconds; 0 for one that another process has removed meanwhile."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _length(content: bytes) -> int:
    return min(int.from_bytes(content[:_LENGTH], "little"), _KEY_BYTES)


def _head(file: Path) -> dict[str, str]:
    """Whose history a file holds; empty where it cannot be read."""
    try:
        with file.open("rb") as opened:
            head = json.loads(opened.read(_length(opened.read(_LENGTH))))
    except (OSError, ValueError):
        return {}
    return {name: str(value) for name, value in head.items()} if isinstance(head, dict) else {}


def _digest(text: str) -> str:
    """A name that is a file's, whatever the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]
