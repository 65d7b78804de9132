"""What the model has said before, for later drafts: in memory and on disk, never across tenants, erased with one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forerun.core.errors import CoreError
from forerun.core.tokens.histories import Histories, HistoryKey
from forerun.core.tokens.history import History, SortedRun, merge

_SAVE_EVERY: Final = 16
"""Outputs of a history between two savings. So many are lost where the process is killed."""

_NOBODY: Final = "-"
"""Agent of texts whose agent is not known; an empty name means all of a tenant's agents together."""

_KEY_BYTES: Final = 4_096


class Memory:
    """The histories of one served model.

    Args:
        model: Digest of its vocabulary.
        tokens_each: Bound of one history; 0 keeps none.
        most: Histories that are kept.
        folder: Where they survive the process; None: nowhere.
    """

    def __init__(self, model: str, *, tokens_each: int, most: int, folder: Path | None) -> None:
        self._model = model
        self._keeps = tokens_each > 0
        self._folder = folder
        self._histories = Histories(tokens_each=max(64, tokens_each), most=most)
        self._unsaved: dict[HistoryKey, int] = {}
        self._touched: dict[HistoryKey, None] = {}
        self._busy: set[HistoryKey] = set()
        # Files are written in other threads: what is erased meanwhile must not come back.
        self._disk = threading.Lock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._restore(folder, most)

    def of(self, tenant: str, agent: str) -> list[History]:
        """Where drafts for a text of this agent may come from."""
        return self._histories.of(tenant, agent or _NOBODY, self._model) if tenant else []

    def append(self, tenant: str, agent: str, context: Sequence[int], output: Sequence[int]) -> None:
        """An output. It drafts from now on; sorting and saving, where they are due, are left to `tend`."""
        if not (self._keeps and tenant and output):
            return
        agent = agent or _NOBODY
        for key in self._histories.append(tenant, agent, self._model, context, output):
            self._forget(key)
        for key in (HistoryKey(tenant, self._model, agent), HistoryKey(tenant, self._model, "")):
            self._touched[key] = None
            self._unsaved[key] = self._unsaved.get(key, 0) + 1

    async def tend(self) -> None:
        """Sorts and saves what is due, beside the decoding. Takes seconds: nobody's answer waits for it."""
        for key in [one for one in self._touched if one not in self._busy]:
            self._touched.pop(key, None)
            history = self._histories.get(key)
            if history is not None and key not in self._busy:
                await self._tend(key, history)

    def erase(self, tenant: str) -> None:
        """Forgets a tenant, on disk too."""
        for key in self._histories.erase(tenant):
            self._unsaved.pop(key, None)
            self._touched.pop(key, None)
        if self._folder is not None:
            with self._disk:
                shutil.rmtree(self._folder / _digest(tenant), ignore_errors=True)

    def save(self) -> None:
        """Saves everything that is not saved yet."""
        for key, history in self._histories:
            if self._unsaved.get(key):
                self._write(key, history, history.to_bytes())

    def _forget(self, key: HistoryKey) -> None:
        """There is no room for it: neither here nor on disk, where it would otherwise stay for ever."""
        self._unsaved.pop(key, None)
        self._touched.pop(key, None)
        if self._folder is not None:
            with self._disk:
                self._file(self._folder, key).unlink(missing_ok=True)

    async def _tend(self, key: HistoryKey, history: History) -> None:
        self._busy.add(key)
        try:
            if history.merge_is_due:
                run, fresh, limit = history.to_merge()
                merged: SortedRun = await asyncio.to_thread(merge, run, fresh, limit)
                history.install(merged, len(fresh))
            if self._folder is not None and self._unsaved.get(key, 0) >= _SAVE_EVERY:
                await asyncio.to_thread(self._write, key, history, history.to_bytes())
        finally:
            self._busy.discard(key)

    def _write(self, key: HistoryKey, history: History, content: bytes) -> None:
        if self._folder is None:
            return
        head = json.dumps({"tenant": key.tenant, "model": key.model, "agent": key.agent}).encode()
        with self._disk:
            if self._histories.get(key) is not history:
                return  # erased or forgotten meanwhile
            file = self._file(self._folder, key)
            file.parent.mkdir(exist_ok=True, mode=0o700)
            fresh = file.with_suffix(".new")
            fresh.write_bytes(len(head).to_bytes(4, "little") + head + content)
            os.replace(fresh, file)
            self._unsaved[key] = 0

    def _file(self, folder: Path, key: HistoryKey) -> Path:
        return folder / _digest(key.tenant) / _digest(f"{key.model}\n{key.agent}")

    def _restore(self, folder: Path, most: int) -> None:
        """Takes up what was saved, the newest last, so that it goes last where there is too much."""
        files = sorted(folder.glob("*/*"), key=lambda one: one.stat().st_mtime_ns)
        whole = [one for one in files if not one.suffix]
        for file in whole[:-most]:
            file.unlink(missing_ok=True)
        for file in whole[-most:]:
            try:
                content = file.read_bytes()
                size = int.from_bytes(content[:4], "little")
                head = json.loads(content[4 : 4 + min(size, _KEY_BYTES)])
                key = HistoryKey(head["tenant"], head["model"], head["agent"])
                if key.model == self._model:
                    self._histories.restore(key, History.from_bytes(content[4 + size :], self._model))
            except (OSError, ValueError, KeyError, TypeError, CoreError) as error:
                sys.stderr.write(f"history {file.name} is left out: {error}\n")


def _digest(text: str) -> str:
    """A name that is a file's, whatever the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]
