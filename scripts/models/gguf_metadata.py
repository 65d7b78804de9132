"""The metadata of a GGUF file, which is all that a tokenizer needs: no tensor is read, no package is needed.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING, _ARRAY = 8, 9
# Type numbers of the format, and how `struct` names them.
_SCALARS: Final = dict(enumerate("B b H h I i f ?".split())) | {10: "Q", 11: "q", 12: "d"}
# Beyond this a length is a damaged file, not a vocabulary.
_MAX_ITEMS: Final = 10_000_000


class DamagedFile(ValueError):
    """The file is no GGUF file, or ends inside its metadata."""


def read_metadata(file: BinaryIO) -> dict[str, Value]:
    """All keys and values of a GGUF file, of which the part behind the metadata may be missing.

    Raises:
        DamagedFile: Wrong magic or version, an unknown type, or the end of the file in the middle.
    """
    if file.read(4) != _MAGIC:
        raise DamagedFile("no GGUF file: it does not begin with the letters GGUF")
    version = _number(file, "I")
    if version not in _VERSIONS:
        raise DamagedFile(f"GGUF version {version} is not one of {_VERSIONS}")
    _number(file, "Q")  # tensors
    found: dict[str, Value] = {}
    for _ in range(_length(file)):
        name = _string(file)
        found[name] = _value(file, int(_number(file, "I")))
    return found


def _value(file: BinaryIO, kind: int) -> Value:
    if kind != _ARRAY:
        return _scalar(file, kind)
    of = int(_number(file, "I"))
    return [_scalar(file, of) for _ in range(_length(file))]


def _scalar(file: BinaryIO, kind: int) -> Scalar:
    if kind == _STRING:
        return _string(file)
    if kind not in _SCALARS:
        raise DamagedFile(f"unknown type {kind} in the metadata")
    return _number(file, _SCALARS[kind])


def _string(file: BinaryIO) -> str:
    return _bytes(file, _length(file)).decode()


def _length(file: BinaryIO) -> int:
    length = int(_number(file, "Q"))
    if length > _MAX_ITEMS:
        raise DamagedFile(f"a length of {length} in the metadata")
    return length


def _number(file: BinaryIO, form: str) -> int | float | bool:
    value: int | float | bool = struct.unpack(f"<{form}", _bytes(file, struct.calcsize(f"<{form}")))[0]
    return value


def _bytes(file: BinaryIO, count: int) -> bytes:
    read = file.read(count)
    if len(read) != count:
        raise DamagedFile("the file ends inside its metadata")
    return read
