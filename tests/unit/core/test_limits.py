"""Bounds that have to fit together."""

from __future__ import annotations

from forerun.core import limits


def test_every_bound_is_positive() -> None:
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(bounds) > 50
    assert all(isinstance(value, (int, float)) and value > 0 for value in bounds.values())


def test_what_travels_inside_something_fits_into_it() -> None:
    assert limits.INLINE_OBSERVATION_BYTES < limits.BUS_MESSAGE_BYTES
    assert limits.ARGUMENTS_BYTES <= limits.CHUNK_BYTES < limits.MESSAGE_BYTES < limits.RESULT_BYTES
    assert limits.CALLS_IN_FLIGHT_PER_MESSAGE < limits.CALLS_PER_MESSAGE == limits.ARGUMENT_PIECES
    assert limits.CALLS_PER_MESSAGE < limits.SESSION_INBOX_EVENTS
    assert limits.DEADLINE_DEFAULT_SECONDS < limits.DEADLINE_MAX_SECONDS
    assert limits.RETRY_BACKOFF_INITIAL_SECONDS < limits.RETRY_BACKOFF_MAX_SECONDS
    assert limits.NUMBER_DIGITS > 5_000
