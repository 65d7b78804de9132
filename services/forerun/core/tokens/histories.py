"""All histories of a process: never across tenants, bounded, shared fairly, erased with the tenant."""

from __future__ import annotations

from collections import Counter, OrderedDict
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

    Where there is no room, whoever holds most gives up what it has not used for longest: a tenant with many agents
    crowds out itself and never one with few.

    Args:
        tokens_each: Bound of one history.
        most: Histories that are kept.
        most_of_tenant: Histories of one tenant that are kept.
    """

    def __init__(self, *, tokens_each: int, most: int, most_of_tenant: int) -> None:
        self._tokens_each = tokens_each
        self._most = max(2, most)
        self._most_of_tenant = max(2, most_of_tenant)
        self._kept: OrderedDict[HistoryKey, History] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._erasures: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: HistoryKey) -> History | None:
        """One of them, without using it."""
        return self._kept.get(key)

    def __iter__(self) -> Iterator[tuple[HistoryKey, History]]:
        return iter(list(self._kept.items()))

    def of(self, tenant: str, agent: str, model: str) -> list[History]:
        """Where drafts for a text of this agent may come from: its own history, then the tenant's."""
        own = HistoryKey(tenant, model, agent)
        keys = {own: None}
        if own not in self._kept or any(
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

    def restore(self, key: HistoryKey, history: History) -> list[HistoryKey]:
        """A history that was persisted. One that has grown here meanwhile is kept instead.

        Returns:
            Those whose persisted copies are to be deleted: this one, where its tenant was erased since it began, and
            those that were forgotten for it.
        """
        if self._erasures.get(key.tenant, history.erasure) != history.erasure:
            return [key]
        if key in self._kept or history.model != key.model:
            return []
        self._keep(key, history)
        return self._forget()

    def erase(self, tenant: str, erasure: str = "") -> dict[HistoryKey, int]:
        """Forgets what was said for a tenant before an erasure. Texts that are decoded draft from it no longer.

        Args:
            tenant: Whose it is.
            erasure: Names the erasure. What began after it stays when it is heard of again. Empty: everything goes.

        Returns:
            What is gone, with its tokens; persisted copies are to be deleted as well.
        """
        if erasure:
            self._erasures[tenant] = erasure
        gone = {
            key: len(history)
            for key, history in self._kept.items()
            if key.tenant == tenant and (not erasure or history.erasure != erasure)
        }
        for key in gone:
            self._kept[key].clear()
            self._drop(key)
        return gone

    def erasure(self, tenant: str) -> str:
        """The last erasure of a tenant that was heard of; empty: none."""
        return self._erasures.get(tenant, "")

    def _open(self, key: HistoryKey) -> History:
        history = self._kept.get(key)
        if history is None:
            history = History(key.model, self._tokens_each, self.erasure(key.tenant))
            self._keep(key, history)
        self._kept.move_to_end(key)
        return history

    def _keep(self, key: HistoryKey, history: History) -> None:
        self._kept[key] = history
        self._held[key.tenant] += 1

    def _drop(self, key: HistoryKey) -> None:
        del self._kept[key]
        self._held[key.tenant] -= 1
        if not self._held[key.tenant]:
            del self._held[key.tenant]

    def _forget(self) -> list[HistoryKey]:
        gone = []
        while (key := self._too_many()) is not None:
            self._drop(key)
            gone.append(key)
        return gone

    def _too_many(self) -> HistoryKey | None:
        """What has to go first; None where there is room for all."""
        largest = max(self._held.values(), default=0)
        if largest <= self._most_of_tenant and len(self._kept) <= self._most:
            return None
        return next(key for key in self._kept if self._held[key.tenant] == largest)
