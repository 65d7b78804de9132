"""Resource keys: placeholders, normalised paths and conflicts (case A15)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.contracts import EVERYTHING, Contract, Effect, ResourceTemplate, Scope, unknown
from forerun.core.resources import (
    ROOT,
    Footprint,
    ancestors,
    conflict,
    conflicts,
    footprint,
    normalised_path,
    resolve,
    template_problems,
)


def key(text: str, arguments: JsonValue, workspace_root: str | None = None) -> str:
    return resolve(ResourceTemplate(text), arguments, workspace_root=workspace_root)


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        ("*", {}, ROOT),
        ("ws", {}, "ws"),
        ("orders/*", {}, "orders"),
        ("orders/{id}", {"id": "W1"}, "orders/W1"),
        ("orders/{id}", {"id": 7}, "orders/7"),
        ("orders/{id}", {"id": Decimal("7.0")}, "orders/7"),
        ("orders/{id}", {"id": Decimal("-0.0")}, "orders/0"),
        ("orders/{id}", {"id": Decimal("-0")}, "orders/0"),
        ("orders/{id}", {"id": Decimal("0E-7")}, "orders/0"),
        ("orders/{id}", {"id": Decimal("-0E+99")}, "orders/0"),
        ("orders/{id}", {"id": Decimal("7.5")}, "orders/7.5"),
        ("orders/{id}", {"id": True}, "orders/true"),
        ("orders/{id}/lines/{line}", {"id": "a", "line": 2}, "orders/a/lines/2"),
        ("orders/{order.id}", {"order": {"id": "a"}}, "orders/a"),
        ("orders/{order.id}", {"order.id": "b", "order": {"id": "a"}}, "orders/b"),
        # A value cannot make levels of its own or reach another resource.
        ("orders/{id}", {"id": "a/b"}, "orders/a%2Fb"),
        ("orders/{id}", {"id": "../users/1"}, "orders/..%2Fusers%2F1"),
        ("orders/{id}", {"id": "*"}, "orders/%2A"),
        ("{id}", {"id": "*"}, "%2A"),
        ("orders/{id}", {"id": "é%"}, "orders/%C3%A9%25"),
        # What is not known is the prefix before it.
        ("orders/{id}", {}, "orders"),
        ("orders/{id}", {"id": None}, "orders"),
        ("orders/{id}", {"id": ""}, "orders"),
        ("orders/{id}", {"id": ["a"]}, "orders"),
        ("orders/{id}", {"id": {"x": 1}}, "orders"),
        ("orders/{id}", [1], "orders"),
        ("orders/{a.b.c}", {"a": {"b": 1}}, "orders"),
        ("orders/{region}-{id}", {"region": "eu"}, "orders"),
        ("{id}", {}, ROOT),
        ("orders/{id}/lines/{line}", {"line": 2}, "orders"),
    ],
)
def test_placeholders(template: str, arguments: JsonValue, expected: str) -> None:
    assert key(template, arguments) == expected


@pytest.mark.parametrize(
    "path",
    ["n.txt", "./n.txt", "a/../n.txt", "n.txt/", ".//n.txt", "./a/./b/../../n.txt", "/space/n.txt", "//space/./n.txt"],
)
def test_spellings_of_one_path_meet(path: str) -> None:
    assert key("files/{path:path}", {"path": path}, workspace_root="/space") == "files/n.txt"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "~/x", "", ".", "a/..", "x\0y"])
def test_a_path_that_cannot_be_placed_is_the_whole_tree(path: str) -> None:
    assert key("files/{path:path}", {"path": path}) == "files"


def test_paths_outside_of_the_root_stay_apart_and_below_the_tree() -> None:
    outside = key("files/{path:path}", {"path": "/etc/passwd"}, workspace_root="/space")
    climbed = key("files/{path:path}", {"path": "../etc/passwd"}, workspace_root="/space")
    inside = key("files/{path:path}", {"path": "etc/passwd"}, workspace_root="/space")
    assert outside == climbed
    assert not conflict(outside, inside)
    assert conflict(outside, "files")
    assert key("files/{path:path}", {"path": "/../../space/a"}, workspace_root="/space") == "files/a"


def test_case_rules_are_declared() -> None:
    assert key("files/{path:path}", {"path": "A.txt"}) != key("files/{path:path}", {"path": "a.txt"})
    assert key("files/{path:path_ci}", {"path": "CR\u00c8ME/A.txt"}) == key(
        "files/{path:path_ci}", {"path": "cre\u0300me/a.TXT"}
    )


def test_links_are_followed() -> None:
    template = ResourceTemplate("files/{path:path}")
    links = {"current": "releases/7", "releases/7/data": "shared/data", "loop": "loop/again"}
    assert resolve(template, {"path": "current/data/x"}, links=links) == "files/shared/data/x"
    assert resolve(template, {"path": "currently"}, links=links) == "files/currently"
    assert resolve(template, {"path": "loop/x"}, links=links) == "files"


def test_keys_are_bounded_by_conflicting_with_more() -> None:
    long = key("orders/{id}", {"id": "x" * (limits.RESOURCE_KEY_CHARS + 1)})
    assert long == "orders"
    deep = key("files/{path:path}", {"path": "/".join("d" * 100)})
    assert deep.count("/") == limits.RESOURCE_KEY_SEGMENTS - 1
    assert conflict(deep, key("files/{path:path}", {"path": "/".join("d" * 90)}))


def test_normalised_paths() -> None:
    assert normalised_path("a//b/./c/..") == ["a", "b"]
    assert normalised_path("..", workspace_root="/w/x") == ["", "w"]
    assert normalised_path("/w/x", workspace_root="/w/x/") == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a/b/c", "a", True),
        (ROOT, "a/b", True),
        ("a", ROOT, True),
        ("a", "ab", False),
        ("a/b", "a/c", False),
        ("a/b", "a/bc", False),
        ("a/b", "b", False),
    ],
)
def test_conflicts(one: str, other: str, expected: bool) -> None:
    assert conflict(one, other) is expected
    assert conflict(other, one) is expected
    assert conflicts(("z", one), ("y", other)) is expected


def test_ancestors() -> None:
    assert ancestors("a/b/c") == ("a/b", "a", ROOT)
    assert ancestors("a") == (ROOT,)
    assert ancestors(ROOT) == ()


def test_footprint_of_a_call() -> None:
    contract = Contract(
        "move",
        "crm",
        Effect.WRITE,
        reads=(ResourceTemplate("users/{id}", Scope.SHARED), ResourceTemplate("ws")),
        writes=(ResourceTemplate("ws"), ResourceTemplate("orders/{order}", Scope.SHARED)),
    )
    arguments: JsonValue = {"id": 1, "order": 2}
    assert footprint(contract, arguments) == Footprint(("users/1", "ws"), ("ws", "orders/2"))
    assert footprint(contract, arguments).depends == ("users/1", "ws", "orders/2")
    assert footprint(contract, arguments, scope=Scope.SHARED) == Footprint(("users/1",), ("orders/2",))
    assert footprint(unknown("x", "y"), arguments) == Footprint((), (ROOT,))
    assert footprint(Contract("r", "s", Effect.READ), {}).reads == (ROOT,)
    assert len(EVERYTHING) == 2  # one root for each scope, which are the same key


@pytest.mark.parametrize(
    "text",
    ["", "/a", "a/", "a//b", "a/{", "a/{x:y}", "a/}b", "{p:path}/x", "a{p:path}", "a/*/b", "a*", "a/{x y}"],
)
def test_bad_templates_are_named(text: str) -> None:
    assert template_problems(ResourceTemplate(text))


@pytest.mark.parametrize("text", ["*", "a", "a/*", "a/{b}", "a/{b.c}-{d}/e", "a/{p:path}", "{p:path_ci}"])
def test_good_templates(text: str) -> None:
    assert template_problems(ResourceTemplate(text)) == []
