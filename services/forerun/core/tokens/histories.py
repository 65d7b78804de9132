"""All histories of a process: never across tenants, bounded, erased with the tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.tokens.history import History

_ALL_AGENTS: Final = ""


@dataclass(frozen=True, slots=True, order=True)
class HistoryKey:
    """Whose history it is.

    Attributes:
        tenant: Nothing of one tenant is ever proposed to another one.
        model: Digest of the vocabulary.
        agent: Empty for all agents of the tenant together.
    """

    tenant: str
    model: str
    agent: str


class Histories:
    """The histories in memory, least recently used first.

    An agent's own outputs are better evidence than those of the tenant's other agents, so they have a history of their
    own; the tenant's holds the outputs of all of them, which costs them a second time. Outputs of no agent are in the
    tenant's alone.

    Args:
        tokens_each: Bound of one history.
        most: Histories that are kept; the least recently used one is forgotten.
    """

    def __init__(self, *, tokens_each: int, most: int) -> None:
        self._tokens_each = tokens_each
        self._most = max(2, most)
        self._kept: OrderedDict[HistoryKey, History] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: HistoryKey) -> History | None:
        """One of them, without using it."""
        return self._kept.get(key)

    def __iter__(self) -> Iterator[tuple[HistoryKey, History]]:
        return iter(list(self._kept.items()))

    def of(self, tenant: str, agent: str, model: str) -> list[History]:
        """Where drafts for a text of this agent may come from: its own history, then the tenant's."""
        keys = {HistoryKey(tenant, model, agent): None}
        if any(
            (key.tenant, key.model) == (tenant, model) and key.agent not in {agent, _ALL_AGENTS} for key in self._kept
        ):
            keys[HistoryKey(tenant, model, _ALL_AGENTS)] = None
        found = []
        for key in keys:
            if key in self._kept:
                self._kept.move_to_end(key)
                found.append(self._kept[key])
        return found

    def append(
        self, tenant: str, agent: str, model: str, context: Sequence[int], output: Sequence[int]
    ) -> list[HistoryKey]:
        """An output of the model for an agent, with what stood before it.

        Returns:
            Those that were forgotten for it, whose persisted copies are to be deleted as well.
        """
        for whose in dict.fromkeys((agent, _ALL_AGENTS)):
            self._open(HistoryKey(tenant, model, whose)).append(context, output)
        return self._forget()

    def restore(self, key: HistoryKey, history: History) -> None:
        """A history that was persisted. One that has grown here meanwhile is kept instead."""
        if key not in self._kept and history.model == key.model:
            self._kept[key] = history
            self._forget()

    def erase(self, tenant: str) -> list[HistoryKey]:
        """Forgets everything of a tenant; the keys, whose persisted copies are to be deleted as well."""
        keys = [key for key in self._kept if key.tenant == tenant]
        for key in keys:
            del self._kept[key]
        return keys

    def _open(self, key: HistoryKey) -> History:
        history = self._kept.get(key)
        if history is None:
            history = self._kept[key] = History(key.model, self._tokens_each)
        self._kept.move_to_end(key)
        return history

    def _forget(self) -> list[HistoryKey]:
        return [self._kept.popitem(last=False)[0] for _ in range(len(self._kept) - self._most)]
