"""What the services get of policies and tool servers, whatever people write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forerun.operator.crds.kinds import POLICY, TOOL_SERVER, Kind
from forerun.operator.engine.conditions import Reason, Status, Type
from forerun.operator.engine.publication import Plan, Publisher, store_key
from forerun.runtime.policy import policies_of
from forerun.v1 import policy_pb2

Object = dict[str, Any]


def an_object(name: str, spec: Object, *, namespace: str = "a", generation: int = 1, age: int = 0) -> Object:
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "generation": generation,
            "creationTimestamp": f"2026-01-01T00:00:{age:02d}Z",
        },
        "spec": spec,
    }  # fmt: skip


def a_server(name: str, *tools: str, **more: Any) -> Object:
    return an_object(name, {"tools": [{"name": tool, "http": {"url": "http://t/{tool}"}} for tool in tools]}, **more)


class Store:
    """What is published, changed by plans."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.publisher = Publisher()

    def look(
        self, policies: Sequence[Object] = (), servers: Sequence[Object] = (), *,
        outdated: Mapping[Kind, Sequence[str]] | None = None, owns: tuple[str, ...] | None = None,
    ) -> Plan:  # fmt: skip
        objects = {POLICY: list(policies), TOOL_SERVER: list(servers)}
        plan = self.publisher.plan(objects, self.values, outdated=outdated or {}, owns=owns)
        for key in plan.deletions:
            del self.values[key]
        for key, content in plan.writes:
            self.values[key] = content
        return plan

    def policy(self, name: str, namespace: str = "a") -> policy_pb2.SpeculationPolicy:
        (found,) = policy_pb2.PolicyFile.FromString(self.values[store_key((POLICY.plural, namespace, name))]).policies
        return found


def reasons(plan: Plan, kind: Kind, name: str, namespace: str = "a") -> dict[str, str]:
    return {one.type.value: one.reason.value for one in plan.verdicts[kind.plural, namespace, name].conditions}


def test_a_valid_policy_is_published_with_name_and_version_and_once() -> None:
    store = Store()
    policy = an_object("p", {"mode": "MODE_EXACT", "holdOut": 0.25}, generation=7)
    first, second = store.look([policy]), store.look([policy])
    assert (store.policy("p").name, store.policy("p").hold_out) == ("p", 0.25)
    assert store.policy("p").version.startswith("7-")
    assert len(first.writes) == 1
    assert (second.writes, second.deletions) == ([], [])
    verdict = first.verdicts[POLICY.plural, "a", "p"]
    assert verdict.published is not None
    assert verdict.published.version == store.policy("p").version
    assert reasons(first, POLICY, "p") == {"Ready": "InForce", "Valid": "Accepted", "Published": "InForce"}


def test_a_broken_generation_leaves_the_one_before_in_force_and_says_what_is_wrong() -> None:
    store = Store()
    good = an_object("p", {"holdOut": 0.25})
    store.look([good])
    broken = an_object("p", {"tools": [{"tool": "t", "effect": "EFFECT_PURE", "openWorld": True}]}, generation=2)
    broken["status"] = {"publishedVersion": "1-abc", "publishedGeneration": 1}
    plan = store.look([broken])
    assert store.policy("p").hold_out == 0.25
    verdict = plan.verdicts[POLICY.plural, "a", "p"]
    assert reasons(plan, POLICY, "p") == {"Ready": "Invalid", "Valid": "Invalid", "Published": "EarlierVersion"}
    assert "something pure connects to nothing" in verdict.conditions[0].message
    assert verdict.published is not None
    assert verdict.published.generation == 1


def test_a_policy_that_never_was_valid_is_not_published() -> None:
    store = Store()
    plan = store.look([an_object("p", {"mode": "MODE_NOBODY_KNOWS"})])
    assert store.values == {}
    assert reasons(plan, POLICY, "p")["Published"] == "NotPublished"


def test_what_is_gone_is_taken_back_also_when_the_operator_was_away() -> None:
    store = Store()
    store.look([an_object("p", {}), an_object("q", {})])
    other = Store()
    other.values = dict(store.values)
    plan = other.look([an_object("q", {})])
    assert plan.deletions == [store_key((POLICY.plural, "a", "p"))]


def test_keys_of_others_and_of_namespaces_that_are_not_ours_stay() -> None:
    store = Store()
    theirs = store_key((POLICY.plural, "elsewhere", "p"))
    store.values = {"file": b"x", "a/b": b"x", theirs: b"x"}
    assert store.look(owns=("a",)).deletions == []
    assert store.look(owns=("a", "elsewhere")).deletions == [theirs]


def test_a_kind_that_is_not_known_completely_loses_nothing() -> None:
    store = Store()
    store.look([an_object("p", {})], [a_server("s", "t")])
    plan = store.publisher.plan({TOOL_SERVER: []}, store.values, outdated={}, owns=None)
    assert plan.deletions == [store_key((TOOL_SERVER.plural, "a", "s"))]


def test_the_older_of_two_has_the_name_and_the_tool() -> None:
    store = Store()
    plan = store.look(
        [an_object("p", {}, namespace="b", age=1), an_object("p", {}, namespace="c", age=0)],
        [a_server("young", "t", age=5), a_server("old", "t", age=1)],
    )
    assert reasons(plan, POLICY, "p", "b")["Ready"] == Reason.NAME_TAKEN
    assert reasons(plan, POLICY, "p", "c")["Ready"] == Reason.IN_FORCE
    assert reasons(plan, TOOL_SERVER, "young")["Ready"] == Reason.TOOL_TAKEN
    assert reasons(plan, TOOL_SERVER, "old")["Ready"] == Reason.IN_FORCE


def test_what_is_in_force_keeps_its_tool_against_an_older_object_that_wants_it_later() -> None:
    store = Store()
    store.look(servers=[a_server("old", "x", age=1), a_server("young", "t", age=5)])
    plan = store.look(servers=[a_server("old", "x", "t", age=1, generation=2), a_server("young", "t", age=5)])
    assert reasons(plan, TOOL_SERVER, "old")["Ready"] == Reason.TOOL_TAKEN
    assert plan.writes == []


def test_a_tool_can_move_from_one_server_to_another() -> None:
    store = Store()
    store.look(servers=[a_server("one", "t", "x", age=1), a_server("two", "y", age=2)])
    moved = [a_server("one", "x", age=1, generation=2), a_server("two", "y", "t", age=2, generation=2)]
    plan = store.look(servers=moved)
    assert [key.rpartition("/")[2] for key, _ in plan.writes] == ["one", "two"]
    assert reasons(plan, TOOL_SERVER, "two")["Ready"] == Reason.IN_FORCE


def test_an_old_definition_switches_policies_off_and_leaves_servers_as_they_were() -> None:
    store = Store()
    policy, server = an_object("p", {"mode": "MODE_EXACT"}), a_server("s", "t")
    store.look([policy], [server])
    newer = a_server("s", "t", "u", generation=2)
    plan = store.look([policy], [newer], outdated={POLICY: ["spec.budget.concurrent"], TOOL_SERVER: ["spec.egress"]})
    assert store.policy("p").off
    verdict = plan.verdicts[POLICY.plural, "a", "p"]
    assert reasons(plan, POLICY, "p")["Ready"] == Reason.DEFINITION_TOO_OLD
    assert "spec.budget.concurrent" in verdict.conditions[0].message
    (server_left,) = policy_pb2.PolicyFile.FromString(store.values[store_key((TOOL_SERVER.plural, "a", "s"))]).servers
    assert [tool.name for tool in server_left.tools] == ["t"]
    store.look([policy], [newer])
    assert not store.policy("p").off


def test_what_does_not_fit_into_the_store_is_said_and_not_published() -> None:
    store = Store()
    schema = '{"type": "object", "description": "' + "x" * 200_000 + '"}'
    tools = [{"name": f"t{n}", "inputSchema": schema, "http": {"url": "http://t"}} for n in range(3)]
    plan = store.look(servers=[an_object("s", {"tools": tools})])
    assert reasons(plan, TOOL_SERVER, "s")["Ready"] == Reason.TOO_LARGE
    assert store.values == {}


SPECS = st.sampled_from(
    [
        {},
        {"mode": "MODE_EXACT"},
        {"holdOut": 0.5, "priority": 3},
        {"mode": "MODE_UNHEARD_OF"},
        {"tools": [{"tool": "t", "effect": "EFFECT_READ", "speculate": True}]},
        {"tools": [{"tool": "t", "effect": "EFFECT_PURE", "openWorld": True}]},
        {"tools": "no list"},
    ]
)
EDITS = st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from("ab"), st.none() | SPECS), min_size=1, max_size=25)


@given(EDITS)
def test_whatever_is_written_services_always_have_something_they_can_use(
    edits: list[tuple[str, str, Object | None]],
) -> None:
    store, objects = Store(), dict[tuple[str, str], Object]()
    for generation, (name, namespace, spec) in enumerate(edits, 1):
        if spec is None:
            objects.pop((namespace, name), None)
        else:
            objects[namespace, name] = an_object(name, spec, namespace=namespace, generation=generation)
        plan = store.look(list(objects.values()))
        published = [policy_pb2.PolicyFile.FromString(value).policies[0] for value in store.values.values()]
        policies_of(policy_pb2.PolicyFile(policies=published))
        assert len({one.name for one in published}) == len(published)
        assert {key.split("/")[1:][0] + key.split("/")[2] for key in store.values} <= {
            space + one for space, one in objects
        }
        again = store.look(list(objects.values()))
        assert (again.writes, again.deletions) == ([], [])
        for (space, one), found in objects.items():
            verdict = plan.verdicts[POLICY.plural, space, one]
            ready = next(c for c in verdict.conditions if c.type is Type.READY)
            if ready.status is Status.TRUE:
                assert store.policy(one, space).version.startswith(f"{found['metadata']['generation']}-")
