"""Trees of files as entries: what arrives is what was sent, changes are the whole difference, and lies lead nowhere."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.runtime.errors import ResourceExhausted
from forerun.sandbox.runners.tree import TreeWriter, WrongTree, marks, packed
from forerun.sandbox.workspaces.trees import Budget
from forerun.v1 import runner_pb2

NAMES = st.sampled_from([b"a", b"b", b"\xff", b"c d"])
LEAVES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=20), st.sampled_from([0o600, 0o644, 0o755, 0o000])),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"/etc/passwd", b"../.."])),
    st.tuples(st.just("pipe")),
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.tuples(
        st.just("directory"), st.dictionaries(NAMES, below, max_size=3), st.sampled_from([0o700, 0o755, 0o000, 0o500])
    ),
    max_leaves=8,
)
ROOTS = st.dictionaries(NAMES, TREES, max_size=4)


def build(root: bytes, tree: dict[bytes, tuple[Any, ...]]) -> None:
    for name, node in tree.items():
        path = os.path.join(root, name)
        match node:
            case ("file", content, mode):
                Path(os.fsdecode(path)).write_bytes(content)
                os.chmod(path, mode)
            case ("link", target):
                os.symlink(target, path)
            case ("pipe",):
                os.mkfifo(path)
            case ("directory", below, mode):
                os.mkdir(path)
                build(path, below)
                os.chmod(path, mode)


def write(root: Path, parts: list[runner_pb2.TreePart]) -> None:
    writer = TreeWriter(str(root), Budget(1000, 100_000_000))
    for part in parts:
        writer.write(part)
    writer.finish()


@settings(max_examples=60, deadline=None)
@given(before=ROOTS, after=ROOTS)
def test_a_tree_and_its_changes_arrive(
    before: dict[bytes, tuple[Any, ...]],
    after: dict[bytes, tuple[Any, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    first, second, copy = (folder / name for name in ("first", "second", "copy"))
    for root, tree in ((first, before), (second, after), (copy, {})):
        root.mkdir()
        build(os.fsencode(root), tree)
    write(copy, list(packed(str(first))))
    assert marks(str(copy)) == marks(str(first))
    write(copy, list(packed(str(second), marks(str(first)))))
    assert marks(str(copy)) == marks(str(second))
    assert list(packed(str(second), marks(str(second)))) == []


def test_a_large_file_comes_in_parts(tmp_path: Path) -> None:
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    content = os.urandom(2_500_000)
    (tmp_path / "from" / "file").write_bytes(content)
    (tmp_path / "from" / "exact").write_bytes(content[: 2**20])
    parts = list(packed(str(tmp_path / "from")))
    assert max(part.ByteSize() for part in parts) < 2.2 * 2**20
    write(tmp_path / "to", parts)
    assert (tmp_path / "to" / "file").read_bytes() == content
    assert (tmp_path / "to" / "exact").read_bytes() == content[: 2**20]


def entry(
    path: bytes, kind: runner_pb2.TreeKind.ValueType = runner_pb2.TREE_KIND_FILE, **more: object
) -> runner_pb2.TreePart:
    made = runner_pb2.TreeEntry(path=path, kind=kind, mode=0o644, **more)  # type: ignore[arg-type]
    return runner_pb2.TreePart(entries=[made])


@pytest.mark.parametrize(
    "path",
    [b"../out", b"in/../../out", b"/out", b"a//b", b"./out", b"out/", b"a\0b", b"link/out", b"file/out", b"no/out"],
)
def test_names_that_lead_elsewhere_are_refused(path: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (root / "file").touch()
    with pytest.raises(WrongTree):
        write(root, [entry(path, content=b"out")])
    assert sorted(os.listdir(tmp_path)) == ["root"]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "target"
    root.mkdir()
    target.write_text("kept")
    (root / "link").symlink_to(target)
    write(root, [entry(b"link", content=b"new")])
    assert (target.read_text(), (root / "link").read_text()) == ("kept", "new")


def test_what_has_no_end_or_no_kind_is_refused(tmp_path: Path) -> None:
    for parts in (
        [entry(b"a", goes_on=True)],
        [entry(b"a", goes_on=True), entry(b"b")],
        [entry(b"a", runner_pb2.TREE_KIND_UNSPECIFIED)],
        [entry(b"")],
    ):
        writer = TreeWriter(str(tmp_path), Budget(10, 1000))
        with pytest.raises(WrongTree):
            for part in parts:
                writer.write(part)
            writer.finish()
        writer.close()


@pytest.mark.parametrize(
    "part",
    [
        entry(b"n" * 256),
        entry(b"/".join([b"d" * 200] * 30)),
        entry(b"link", runner_pb2.TREE_KIND_LINK, content=b"a\0b"),
        entry(b"link", runner_pb2.TREE_KIND_LINK, content=b""),
        entry(b"link", runner_pb2.TREE_KIND_LINK, content=b"t" * 5000),
        entry(b"endless", goes_on=True),
    ],
)
def test_what_no_disk_can_hold_is_no_tree(part: runner_pb2.TreePart, tmp_path: Path) -> None:
    writer = TreeWriter(str(tmp_path), Budget(10, 10_000))
    with pytest.raises(WrongTree):
        writer.write(part)
    writer.close()


def test_the_paths_that_are_held_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content and entries have a budget; a path is neither, and may be as long as both together."""
    monkeypatch.setattr("forerun.sandbox.runners.tree._MOST_HELD_BYTES", 500)
    writer = TreeWriter(str(tmp_path), Budget(1000, 10_000))
    with pytest.raises(WrongTree, match="too long"):
        for number in range(100, 110):
            writer.write(entry(b"%d" % number + b"d" * 100, runner_pb2.TREE_KIND_DIRECTORY))


def test_what_comes_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ResourceExhausted):
        TreeWriter(str(tmp_path), Budget(10, 5)).write(entry(b"a", content=b"123456"))
    with pytest.raises(ResourceExhausted):
        writer = TreeWriter(str(tmp_path), Budget(2, 5))
        for number in range(3):
            writer.write(entry(b"%d" % number, runner_pb2.TREE_KIND_DIRECTORY))
