"""Objects and log on a real folder: what a crash or damage leaves, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.snapshots.engine.history import Version, new_version
from forerun.snapshots.engine.nodes import Index
from forerun.snapshots.engine.values import PIECE_BYTES, Inline, Stored, digest_of
from forerun.snapshots.log import CommitLog
from forerun.snapshots.objects import DataLoss, Objects, index_object, placed


def put(objects: Objects, data: bytes, now: float = 0.0) -> Stored:
    held: dict[str, bytes] = {}
    value = placed(Inline(data), held)
    assert isinstance(value, Stored)
    objects.put(held, now)
    return value


def versions(count: int) -> tuple[list[Version], list[bytes]]:
    made = [
        new_version(line="l", branch=f"b{n}", parent="", root=None, at_seconds=float(n), added_bytes=0)
        for n in range(count)
    ]
    return [version for version, _ in made], [record for _, record in made]


def test_contents_come_back_as_they_were(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    for size in (300, PIECE_BYTES, PIECE_BYTES + 1, 10 * PIECE_BYTES):
        data = bytes(index % 241 for index in range(size))
        content = put(objects, data)
        assert objects.content(content) == data
        found = objects.find(content.digest)
        assert found == Stored(content.digest, size, blob=True)
    assert objects.find("00" * 32) is None


def test_what_is_there_is_not_stored_again(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    body = bytes(index % 241 for index in range(100_000))
    put(objects, body)
    before = objects.size_bytes
    put(objects, body)
    assert objects.size_bytes == before
    put(objects, body + b"more")
    assert objects.size_bytes - before < 2 * PIECE_BYTES
    assert objects.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert Objects(tmp_path).size_bytes == objects.size_bytes


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_is_told_and_storing_again_heals_it(tmp_path: Path, damage: str) -> None:
    objects = Objects(tmp_path)
    body = bytes(index % 241 for index in range(100_000))
    content = put(objects, body)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 5
    for name in names:
        path = tmp_path / name
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] if damage == "cut" else whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
        with pytest.raises(DataLoss):
            objects.content(content)
        with pytest.raises(DataLoss):
            objects.verify(content)
        put(objects, body)
        assert objects.content(content) == body


def test_an_index_that_names_other_pieces_is_damage(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    piece = b"x" * PIECE_BYTES
    claimed = "ab" * 32
    objects.put({digest_of(piece): piece} | index_object(claimed, Index(2 * PIECE_BYTES, (digest_of(piece),) * 2)), 0.0)
    with pytest.raises(DataLoss):
        objects.verify(Stored(claimed, 2 * PIECE_BYTES, blob=True))


def test_a_large_piece_of_another_content_is_no_content(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    piece = b"x" * (PIECE_BYTES + 1)
    objects.put({digest_of(piece): piece}, 0.0)
    assert objects.find(digest_of(piece)) is None


def test_what_a_crash_left_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / ".new-1").write_bytes(b"half")
    objects = Objects(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert objects.size_bytes == 0


def test_removal_spares_what_was_touched(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    used, unused = put(objects, b"u" * 300, now=100.0), put(objects, b"v" * 300, now=100.0)
    listed = objects.list()
    assert objects.touch(used, 200.0)
    assert objects.remove(listed, untouched_since=150.0) == (1, 300)
    assert objects.content(used) == b"u" * 300
    assert objects.find(unused.digest) is None
    assert not objects.touch(unused, 200.0)
    assert objects.size_bytes == 300


def test_a_log_cut_at_any_byte_keeps_every_whole_record_and_goes_on(tmp_path: Path) -> None:
    made, records = versions(3)
    whole = b"".join(records)
    path = tmp_path / "commits.log"
    extra, extra_record = new_version(line="l", branch="x", parent="", root=None, at_seconds=9.0, added_bytes=0)
    for length in (0, 1, len(records[0]) - 1, *range(len(records[0] + records[1]) - 1, len(whole) + 1, 3)):
        path.write_bytes(whole[:length])
        log = CommitLog(tmp_path)
        expected = made[: whole[:length].count(b"\n")]
        assert log.load() == expected
        log.append(extra_record)
        assert log.load() == [*expected, extra]


def test_zeros_where_the_last_record_should_be_are_an_unfinished_one(tmp_path: Path) -> None:
    made, records = versions(2)
    path = tmp_path / "commits.log"
    for tail in (b"\0" * 500, records[1][:40] + b"\0" * 200 + b"}\n"):
        path.write_bytes(records[0] + tail)
        assert CommitLog(tmp_path).load() == made[:1]
        assert path.read_bytes() == records[0]


def test_a_damaged_record_is_told_and_nothing_is_cut_off(tmp_path: Path) -> None:
    _, records = versions(3)
    whole = b"".join(records)
    path = tmp_path / "commits.log"
    for position in (3, 64, 70, len(records[0]) + 80, len(whole) - 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataLoss):
            CommitLog(tmp_path).load()
        assert path.read_bytes() == damaged


def test_a_rewritten_log_holds_what_remains_byte_for_byte(tmp_path: Path) -> None:
    made, records = versions(3)
    log = CommitLog(tmp_path)
    assert log.load() == []
    for record in records:
        log.append(record)
    log.rewrite(made[1:])
    assert (tmp_path / "commits.log").read_bytes() == records[1] + records[2]
    assert log.load() == made[1:]
