"""What a receiver sees of the headers of a message."""

from __future__ import annotations

import pytest

from forerun.runtime import bus_headers


def test_a_receiver_sees_what_the_sender_set_and_nothing_of_the_broker() -> None:
    block = bus_headers.append_headers({"Forerun-Type": "opened", "X": "a: b"}, "id-1", 7)
    assert bus_headers.parse(block)[bus_headers.MESSAGE_ID] == "id-1"
    assert bus_headers.callers_own(block) == {"Forerun-Type": "opened", "X": "a: b"}
    assert bus_headers.callers_own(b"NATS/1.0\r\nnAtS-Anything: 1\r\nNats-: 2\r\nnatsby: 3\r\n\r\n") == {"natsby": "3"}
    assert bus_headers.callers_own(None) == bus_headers.callers_own(b"") == {}


@pytest.mark.parametrize("lines", ["", " 503", " 408 Request Timeout"])
@pytest.mark.parametrize(
    "headers", [b"", b"A:  1 \r\n", b"Nats-Pending-Bytes: 0\r\nA: \xff\r\n", b"no colon\r\nB:\r\n"]
)
def test_it_is_what_all_headers_are_less_those_of_the_broker(lines: str, headers: bytes) -> None:
    block = f"NATS/1.0{lines}\r\n".encode() + headers + b"\r\n"
    everything = bus_headers.parse(block)
    assert bus_headers.callers_own(block) == {k: v for k, v in everything.items() if not k.startswith("Nats-")}
