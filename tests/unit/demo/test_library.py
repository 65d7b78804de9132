"""The shipped corpus: whole, linked, and searched the same each time."""

import pytest

from forerun.cli.demo.library import Document, load_library

LIBRARY = load_library()


def references(document: Document) -> list[str]:
    values = document.refs.values()
    return [str(one) for value in values for one in (value if isinstance(value, list) else [value])]


def test_every_reference_leads_to_a_document() -> None:
    dangling = [
        (d.id, ref) for d in LIBRARY.documents.values() for ref in references(d) if ref not in LIBRARY.documents
    ]
    assert dangling == []
    assert len(LIBRARY.documents) >= 40


@pytest.mark.parametrize("identifier", ["INC-2001", "SUP-04", "VSL-03", "BUL-05"])
def test_a_search_for_an_id_finds_its_own_document_first(identifier: str) -> None:
    hits = LIBRARY.search(f"{identifier} history")
    assert isinstance(hits[0], dict)
    assert hits[0]["id"] == identifier
    assert len(hits) <= 5


def test_equal_scores_are_ordered_by_id() -> None:
    hits = [hit for hit in LIBRARY.search("pump harbour") if isinstance(hit, dict)]
    ranks = [(-int(str(hit["score"])), str(hit["id"])) for hit in hits]
    assert len(ranks) >= 3
    assert ranks == sorted(ranks)


def test_nothing_is_found_for_words_that_are_nowhere() -> None:
    assert LIBRARY.search("zeppelin") == []
    assert LIBRARY.search("") == []


def test_related_is_the_inverse_of_the_references() -> None:
    related = [entry["id"] for entry in LIBRARY.related("CMP-01") if isinstance(entry, dict)]
    assert related == [d.id for d in LIBRARY.documents.values() if "CMP-01" in references(d)]
