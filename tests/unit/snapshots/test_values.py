from forerun.snapshots.engine.values import (
    LARGE_PIECE_BYTES,
    PIECE_BYTES,
    SMALL_PIECES_BYTES,
    Cutter,
    digest_of,
    piece_end,
    pieces_of,
)


def test_a_content_of_one_piece_is_itself() -> None:
    assert list(pieces_of(b"")) == [b""]
    assert list(pieces_of(b"x" * PIECE_BYTES)) == [b"x" * PIECE_BYTES]


def test_pieces_end_at_fixed_positions_and_grow_beyond_the_first_megabytes() -> None:
    assert piece_end(0) == PIECE_BYTES
    assert piece_end(PIECE_BYTES) == 2 * PIECE_BYTES
    assert piece_end(SMALL_PIECES_BYTES - 1) == SMALL_PIECES_BYTES
    assert piece_end(SMALL_PIECES_BYTES) == SMALL_PIECES_BYTES + LARGE_PIECE_BYTES
    data = bytes(SMALL_PIECES_BYTES + LARGE_PIECE_BYTES + 1)
    assert [len(piece) for piece in pieces_of(data)] == [PIECE_BYTES] * (SMALL_PIECES_BYTES // PIECE_BYTES) + [
        LARGE_PIECE_BYTES,
        1,
    ]


def test_a_content_that_grows_keeps_its_pieces() -> None:
    short = bytes(range(256)) * 600
    assert list(pieces_of(short + b"more"))[:-1] == list(pieces_of(short))[:-1]


def test_cutting_bit_by_bit_gives_the_same_pieces_as_cutting_the_whole() -> None:
    data = bytes(index * 7 % 251 for index in range(3 * PIECE_BYTES))
    for length in (len(data), len(data) - 1, 5, 0):
        for step in (1 if length < 10 else 997, PIECE_BYTES, 2 * PIECE_BYTES + 1):
            cutter = Cutter()
            pieces: list[bytes] = []
            for start in range(0, length, step):
                pieces += cutter.feed(data[start : min(start + step, length)])
            last, digest = cutter.finish()
            assert [*pieces, last] == list(pieces_of(data[:length]))
            assert digest == digest_of(data[:length])
            assert cutter.size_bytes == length
