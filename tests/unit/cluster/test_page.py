"""A page of the docs, run as it stands there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.installation import merged
from tests.cluster.page import Block, BlockFailedError, Reader, blocks

PAGE = """# Title

## One

```yaml
image: REGISTRY/a
```

```sh
export WHERE=REGISTRY/a
printf '%s' "$WHERE"
```

## Two

```sh
printf '%s' "again $WHERE"
```

```sh
false
true
```
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return Reader(page, tmp_path, dict(os.environ), {"REGISTRY": "here"})


def test_blocks_are_found_below_their_headings() -> None:
    assert [(one.section, one.language) for one in blocks(PAGE)] == [
        ("One", "yaml"), ("One", "sh"), ("Two", "sh"), ("Two", "sh"),
    ]  # fmt: skip
    assert next(blocks(PAGE)) == Block("One", "yaml", "image: REGISTRY/a\n")


def test_what_a_block_exports_the_next_one_has(reader: Reader) -> None:
    assert reader.text_of("One", "yaml") == "image: here/a\n"
    assert reader.run("One") == "here/a"
    assert reader.run("Two") == "again here/a"
    assert reader.variables()["WHERE"] == "here/a"
    assert reader.unread == ["Two"]


def test_each_block_runs_where_it_is_told_to(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.md").write_text("## A\n\n```sh\npwd\n```\n\n```sh\nprintf '%s' \"$PWD\"\n```\n")
    walker = Reader(tmp_path / "page.md", tmp_path, dict(os.environ), {})
    assert walker.run("A", folder=tmp_path / "elsewhere") == f"{tmp_path / 'elsewhere'}\n"
    assert walker.run("A") == str(tmp_path)


def test_a_command_that_fails_fails_its_block(reader: Reader) -> None:
    reader.run("One")
    reader.run("Two")
    with pytest.raises(BlockFailedError, match="false"):
        reader.run("Two")


def test_blocks_are_run_in_their_order(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="'One'"):
        reader.run("Two")


def test_values_on_top_win_and_leave_the_rest() -> None:
    assert merged("a: {b: 1, c: 2}", "a: {b: 3}", "d: [1]") == "a:\n  b: 3\n  c: 2\nd:\n- 1\n"
