"""What may be sent to an open destination ahead of time (case K8)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forerun.core.canonical import JsonValue
from forerun.core.schema import parse_schema
from forerun.core.taint import TrustedText, tainted

FETCH = parse_schema(
    b"""{"type":"object","properties":{
        "url":{"type":"string"}, "n":{"type":"number"}, "deep":{"type":"boolean"},
        "mode":{"enum":["fast","slow"]}, "kind":{"const":"web"},
        "tags":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}}}}}}"""
)


def trusted(*texts: str) -> TrustedText:
    known = TrustedText()
    for text in texts:
        known.add(text)
    return known


USER = trusted(
    "My api_key=sk-123. Please read (https://example.com:8443/docs/a,b?page=2&full=) and order #W123,",
    "also see http://other.example.org/x. 7 items, 2.50 each",
)


def check(value: JsonValue) -> bool:
    return tainted({"url": value}, USER, schema=FETCH) == []


def test_a_beacon_in_a_document_is_not_followed() -> None:
    assert tainted({"url": "http://collector.test/?d=sk-123"}, USER, schema=FETCH) == ["$.url"]


@pytest.mark.parametrize(
    "value",
    [
        "sk-123",
        "#W123",
        "W123",
        "https://example.com:8443/docs/a,b?page=2&full=",
        "https://example.com:8443/docs",
        "https://example.com:8443",
        "https://EXAMPLE.com:8443/docs/",
        "https://other.example.org/x?page=2",
        7,
        2,
        Decimal("2.50"),
        Decimal("7.0"),
        "",
        True,
        None,
        ["sk-123", None],
        {},
    ],
)
def test_what_trusted_people_said_may_be_sent(value: JsonValue) -> None:
    assert check(value)


@pytest.mark.parametrize(
    "value",
    [
        "sk-12",
        "k",
        "sk",
        "Please read",
        "secret",
        8,
        25,
        Decimal("2.51"),
        "https://example.com:8443/secret",
        "https://example.com:8444/docs",
        "https://example.com:8443//docs",
        "https://example.com:8443///",
        "https://example.com:8443/docs?page=3",
        "https://example.com:8443/docs?secret=2",
        "https://example.com:8443/docs?page=2&&",
        "https://example.com:8443/docs#secret",
        "https://secret@example.com:8443/docs",
        "https://secret.example.com:8443/docs",
        "ftp://example.com:8443/docs",
        "https://example.com:99999/docs",
        "https://example.com:8443\\@evil.test/",
        "https://example.com:8443/docs\n",
        "https://[::1",
        " https://example.com:8443/docs",
        ["sk-123", "y"],
        {"secret": True},
    ],
)
def test_everything_else_is_tainted(value: JsonValue) -> None:
    assert not check(value)


def test_paths_name_every_tainted_leaf() -> None:
    arguments: JsonValue = {"url": "v", "tags": [{"name": "y"}, {"name": "#W123", "z": 1}], "n": 9}
    assert tainted(arguments, USER, schema=FETCH) == ["$.url", "$.tags[0].name", "$.tags[1].z", "$.n"]


def test_values_that_the_schema_fixes_are_fine() -> None:
    assert tainted({"mode": "fast", "kind": "web", "deep": True}, TrustedText(), schema=FETCH) == []
    assert tainted({"mode": "warp"}, TrustedText(), schema=FETCH) == ["$.mode"]


def test_keys_are_data_unless_they_are_declared_or_trusted() -> None:
    assert tainted({"sk-999": True}, USER, schema=FETCH) == ["$.sk-999"]
    assert tainted({"url": True}, USER) == ["$.url"]
    known = trusted()
    known.add_value({"url": "https://example.com/a?b=1", "n": [1, Decimal("1e3")], "ok": False})
    assert tainted({"url": "https://example.com/a", "n": 1000}, known) == []


def test_percent_encoding_is_seen_through() -> None:
    known = trusted("https://example.com/a%20b", "q", "c d")
    assert tainted({"url": "https://example.com/a%20b?q=c+d"}, known, schema=FETCH) == []
    assert tainted({"url": "https://example.com/a%20b?q=c+e"}, known, schema=FETCH) == ["$.url"]
    assert tainted({"url": "https://example.com/a%252520b"}, known, schema=FETCH) == ["$.url"]


def test_the_index_is_bounded_and_then_trusts_nothing_new() -> None:
    known = TrustedText(max_bytes=1_000)
    known.add("first")
    known.add(" ".join(f"token{number}" for number in range(10_000)))
    assert known.full
    assert len(known) < 20
    known.add("late")
    assert "late" not in known
    assert "first" in known


def test_a_long_text_is_trusted_by_its_tokens() -> None:
    text = "word " * 5_000 + "needle"
    known = trusted(text)
    assert "needle" in known
    assert text not in known
