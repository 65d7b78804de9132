"""The shipped corpus: a small invented ferry company. Search ranks are a pure function of the text."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Final

from forerun.core.canonical import JsonValue

_WORD: Final = re.compile(r"[A-Za-z0-9-]{2,}")
_HITS: Final = 5
# A document that is what was asked for stands above all that mention it.
_OWN_ID_SCORE: Final = 100


@dataclass(frozen=True)
class Document:
    """One document. `refs` names other documents by role: an id, or a list of ids."""

    id: str
    kind: str
    title: str
    text: str
    refs: dict[str, JsonValue]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of title and text, in lower case."""
        return tuple(word.lower() for word in _WORD.findall(f"{self.title} {self.text}"))

    def as_json(self) -> dict[str, JsonValue]:
        """The document as the fetch service answers it."""
        return {"id": self.id, "kind": self.kind, "title": self.title, "text": self.text, "refs": self.refs}


@dataclass(frozen=True)
class Library:
    """All documents, by id."""

    documents: dict[str, Document]

    def search(self, query: str) -> list[JsonValue]:
        """The best documents for a query, best first, equal scores by id. At most five."""
        wanted = [word.lower() for word in _WORD.findall(query)]
        scored = [(self._score(document, wanted), document) for document in self.documents.values()]
        best = sorted((pair for pair in scored if pair[0]), key=lambda pair: (-pair[0], pair[1].id))[:_HITS]
        return [{"id": document.id, "title": document.title, "score": score} for score, document in best]

    def related(self, entity: str) -> list[JsonValue]:
        """Documents that refer to an entity, with the role that it plays there, by id and role."""
        found: list[JsonValue] = []
        for document in self.documents.values():
            for role, value in sorted(document.refs.items()):
                if entity in (value if isinstance(value, list) else [value]):
                    found.append({"id": document.id, "kind": document.kind, "role": role})
        return found

    @staticmethod
    def _score(document: Document, wanted: Sequence[str]) -> int:
        own = _OWN_ID_SCORE if document.id.lower() in wanted else 0
        return own + sum(document.words.count(word) for word in wanted)


def load_library() -> Library:
    """Reads the shipped corpus.

    Raises:
        ValueError: The file does not hold one document a line.
    """
    text = (files("forerun.cli.demo") / "assets" / "corpus.jsonl").read_text(encoding="utf-8")
    documents = [Document(**json.loads(line)) for line in text.splitlines()]
    return Library({document.id: document for document in documents})
