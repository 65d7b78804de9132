"""What is on disk must be readable by every later release: these bytes never change."""

from forerun.snapshots.engine.history import new_version, parse_record
from forerun.snapshots.engine.nodes import Index, Inner, Leaf, Ref, decode, decode_index, encode, encode_index
from forerun.snapshots.engine.values import Inline, Stored

LEAF = Leaf({"b": Stored("11" * 32, 5_000, blob=False), "a": Inline(b"\x00v"), "é": Stored("22" * 32, 7, blob=True)})
LEAF_FORM = bytes.fromhex(
    "010000000003"
    "0001" "00" "0000000000000002" "61" "0076"
    "0001" "01" "0000000000001388" "62" + "11" * 32 +
    "0002" "02" "0000000000000007" "c3a9" + "22" * 32
)  # fmt: skip
INNER = Inner({15: Ref("33" * 32, 70), 0: Ref("44" * 32, 1)})
INNER_FORM = bytes.fromhex(
    "010100000002"
    "00" "0000000000000001" + "44" * 32 +
    "0f" "0000000000000046" + "33" * 32
)  # fmt: skip
INDEX = Index(70_000, ("55" * 32, "66" * 32))
INDEX_FORM = bytes.fromhex("010200000002" "0000000000011170" + "55" * 32 + "66" * 32)  # fmt: skip
RECORD = (
    b"6188c03325bf811081de4f4fe928189dbb9986c8f4ada954b1ea71224a6ef96f "
    b'{"format":1,"line":"l","branch":"b\\u00e9","parent":"","root":["777777777777777777777777777777777777777777777777'
    b'7777777777777777",3],"at_seconds":1.5,"added_bytes":9}\n'
)


def test_nodes() -> None:
    assert encode(LEAF) == LEAF_FORM
    assert decode(LEAF_FORM) == LEAF
    assert encode(INNER) == INNER_FORM
    assert decode(INNER_FORM) == INNER


def test_index() -> None:
    assert encode_index(INDEX) == INDEX_FORM
    assert decode_index(INDEX_FORM) == INDEX


def test_records_of_the_log() -> None:
    version, record = new_version(
        line="l", branch="bé", parent="", root=Ref("77" * 32, 3), at_seconds=1.5, added_bytes=9
    )
    assert record == RECORD
    assert version.id == "sha256:" + RECORD[:64].decode()
    assert parse_record(RECORD[:-1]) == version
