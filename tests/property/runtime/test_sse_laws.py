"""Server-sent events: whatever the pieces and line ends in which they come, the same events are read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.runtime.models.sse import EventReader, EventTooLarge

TEXTS = st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)
NOISE = st.sampled_from([": ping", "event: message", "id: 7", "retry: 10", "data", "unknown"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A stream with mixed line ends, comments and other fields, and the events in it."""
    events: list[str] = []
    lines: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        data = draw(st.lists(TEXTS, min_size=0, max_size=3))
        said = [f"data: {one}" if draw(st.booleans()) or one[:1] == " " else f"data:{one}" for one in data]
        for one in draw(st.lists(NOISE.filter(lambda line: line != "data"), max_size=2)):
            said.insert(draw(st.integers(0, len(said))), one)
        lines += [*said, ""]
        if data:
            events.append("\n".join(data))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = "".join(line + end for line in lines) + draw(st.sampled_from(["", "data: cut off"]))
    return (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode(), events


def read(data: bytes, cuts: list[int]) -> list[str]:
    reader = EventReader(10_000)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [event for a, b in itertools.pairwise(places) for event in reader.feed(data[a:b])]


@given(streams(), st.lists(st.integers(0, 1_000), max_size=12))
def test_pieces_change_nothing(stream: tuple[bytes, list[str]], cuts: list[int]) -> None:
    data, events = stream
    assert read(data, cuts) == events
    assert read(data, list(range(len(data)))) == events


def test_a_field_without_a_colon_is_an_empty_value() -> None:
    assert EventReader(100).feed(b"data\n\ndata: x\ndata\n\n") == ["", "x\n"]


def test_an_event_without_an_end_is_bounded_and_comments_are_not_held() -> None:
    reader = EventReader(50)
    for _ in range(1_000):
        assert reader.feed(b": still here\n") == []
    assert reader.feed(b"data: yes\n\n") == ["yes"]
    with pytest.raises(EventTooLarge):
        for _ in range(10):
            reader.feed(b"data: 0123456789\n")
