"""Bounds of the pure decisions, at the last thing that is taken and the first that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core import limits
from forerun.core.canonical import CanonicalError
from forerun.core.contracts import Contract, Effect, ResourceTemplate, problems
from forerun.core.freshness import Recorded
from forerun.core.identity import Identity
from forerun.core.outcomes import CallStatus
from forerun.core.schema import digest_of, parse_schema
from forerun.core.session.memo import Memo, Remembered
from forerun.core.session.model import ExecutionResult
from tests.unit.session.driver import prepared


def identity(number: int) -> Identity:
    return prepared("get", id=number).identity


def remembered(size: int) -> Remembered:
    result = ExecutionResult(status=CallStatus.OK, content=b"x" * size, digest="sha256:x")
    return Remembered(result, Recorded({}), {}, 0.0)


def test_the_memo_forgets_what_was_not_used_for_longest() -> None:
    memo = Memo()
    for number in range(limits.MEMO_ENTRIES_PER_SESSION):
        memo.put(identity(number), remembered(1))
    assert memo.get(identity(0)) is not None  # used just now
    memo.put(identity(-1), remembered(1))
    assert memo.get(identity(1)) is None
    assert memo.get(identity(0)) is not None and memo.get(identity(-1)) is not None


def test_the_memo_is_bounded_in_bytes_and_takes_nothing_that_is_larger_than_all_of_it() -> None:
    memo, half = Memo(), limits.MEMO_BYTES_PER_SESSION // 2
    for number in range(3):
        memo.put(identity(number), remembered(half))
    assert [memo.get(identity(number)) is not None for number in range(3)] == [False, True, True]
    memo.put(identity(3), remembered(limits.MEMO_BYTES_PER_SESSION + 1))
    assert memo.get(identity(3)) is None and memo.get(identity(2)) is not None


def schema_of(size: int) -> bytes:
    text = b'{"description":""}'
    return text[:-2] + b"x" * (size - len(text)) + text[-2:]


def test_a_schema_is_bounded() -> None:
    parse_schema(schema_of(limits.SCHEMA_BYTES))
    for refuse in (parse_schema, lambda data: digest_of(data, "")):
        with pytest.raises(CanonicalError) as caught:
            refuse(schema_of(limits.SCHEMA_BYTES + 1))
        assert caught.value.reason == "too_large"
        assert str(limits.SCHEMA_BYTES) in str(caught.value)


def chain_of(hops: int) -> bytes:
    """A schema whose property refers to its default through so many references."""
    definitions = [f'"d{n}":{{"$ref":"#/$defs/d{n + 1}"}}' for n in range(hops - 1)]
    definitions.append(f'"d{hops - 1}":{{"default":7}}')
    return ('{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{' + ",".join(definitions) + "}}").encode()


def test_a_chain_of_references_is_followed_so_far() -> None:
    # The last look finds that there is no further reference.
    assert parse_schema(chain_of(limits.SCHEMA_REFERENCES - 1)).normalised({}) == {"a": 7}
    assert parse_schema(chain_of(limits.SCHEMA_REFERENCES)).normalised({}) == {}


def test_resource_templates_of_a_contract_are_bounded() -> None:
    templates = tuple(ResourceTemplate(f"r{number}") for number in range(limits.RESOURCE_TEMPLATES + 1))
    contract = Contract("t", "s", Effect.READ, reads=templates[:-1])
    assert problems(contract) == []
    assert [problem for problem in problems(replace(contract, reads=templates)) if "RESOURCE_TEMPLATES" in problem]


@pytest.mark.parametrize(
    ("wrong", "bound"),
    [
        ({"tool": "t" * (limits.NAME_CHARS + 1)}, "NAME_CHARS"),
        ({"server": "s" * (limits.NAME_CHARS + 1)}, "NAME_CHARS"),
        ({"timeout_seconds": limits.DEADLINE_MAX_SECONDS + 1}, "DEADLINE_MAX_SECONDS"),
        ({"output_cap_bytes": limits.RESULT_BYTES + 1}, "RESULT_BYTES"),
    ],
)
def test_a_contract_that_breaks_a_bound_is_told_which(wrong: dict[str, object], bound: str) -> None:
    contract = Contract("t", "s", Effect.PURE)
    assert problems(contract) == []
    found = problems(replace(contract, **wrong))  # type: ignore[arg-type]
    assert len(found) == 1 and bound in found[0]
