"""Session ids."""

from __future__ import annotations

from uuid import UUID

from forerun.client import SystemIds


def test_ids_are_uuid7_of_the_time() -> None:
    ids = SystemIds(now=lambda: 1_700_000_000.123)
    made = [UUID(ids.uuid7()) for _ in range(100)]
    assert {(one.version, one.variant, one.int >> 80) for one in made} == {
        (7, "specified in RFC 4122", 1_700_000_000_123)
    }
    assert len(set(made)) == 100
    assert all(0 <= ids.fraction() < 1 for _ in range(100))
