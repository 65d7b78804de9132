"""What is kept of a stream."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.sandbox.commands.output import Capture
from forerun.sandbox.connectors.port import cut


def captured(data: bytes, keep: int | None, pieces: int = 3) -> tuple[str, int, int]:
    capture = Capture(keep)
    step = max(1, len(data) // pieces)
    for start in range(0, len(data), step):
        capture.feed(data[start : start + step])
    made = capture.finish()
    assert made.total_bytes == len(data)
    return made.text, made.omitted_bytes, made.replaced_bytes


def test_short_output_is_kept_exactly() -> None:
    assert captured(b"abc", 10) == ("abc", 0, 0)
    assert captured(b"", 10) == ("", 0, 0)
    assert captured(b"x" * 1000, None) == ("x" * 1000, 0, 0)


def test_long_output_keeps_head_and_tail() -> None:
    assert captured(b"AAAA" + b"x" * 92 + b"ZZZZ", 8) == ("AAAA\n[... 92 bytes omitted ...]\nZZZZ", 92, 0)


def test_every_invalid_byte_is_one_mark() -> None:
    assert captured(b"a\xff\xc3b\xe2\x82", None) == ("a\ufffd\ufffdb\ufffd\ufffd", 0, 4)


@given(st.text(max_size=200), st.integers(2, 60), st.integers(1, 9))
def test_a_cut_never_splits_a_character_and_counts_every_byte(text: str, keep: int, pieces: int) -> None:
    data = text.encode()
    shown, omitted, replaced = captured(data, keep, pieces)
    assert replaced == 0
    if len(data) <= keep:
        assert (shown, omitted) == (text, 0)
        return
    head, _, rest = shown.partition(f"\n[... {omitted} bytes omitted ...]\n")
    assert text.startswith(head) and text.endswith(rest)
    assert len(head.encode()) + omitted + len(rest.encode()) == len(data)
    assert omitted >= len(data) - keep


@given(st.binary(max_size=300), st.integers(2, 60))
def test_cutting_depends_on_the_bytes_alone(data: bytes, keep: int) -> None:
    assert captured(data, keep, 1) == captured(data, keep, 7)


@given(st.text(min_size=40, max_size=100), st.integers(2, 30))
def test_a_capped_result_is_readable_text(text: str, cap: int) -> None:
    cut(text.encode(), cap).decode()
