"""What a model has put out before for one agent, sorted by context, so that the longest equal contexts lie together."""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from forerun.core.errors import CoreError
from forerun.core.tokens.context import SEPARATOR, ContextIndex, Occurrence

_DEPTH: Final = 16  # tokens of context by which places are sorted
_WORD: Final = 4  # bytes of a token
_KEY_BYTES: Final = _DEPTH * _WORD
_WINDOW: Final = 8  # places looked at on either side
_WEAKER: Final = 4  # places with less than a quarter of the longest equal context would be outvoted anyway
_LEAD: Final = 4  # tokens before an output that are kept, so that its beginning has a context
_FRESH_LEAST: Final = 4_096
_FRESH_SHARE: Final = 8  # of the sorted part: more would cost memory, less would sort too often
_LITTLE_ENDIAN: Final = array("H", [1]).tobytes() == b"\x01\x00"  # of this machine
_UNBOUNDED: Final = 2**63 - 1  # the history itself bounds what is new
_MAGIC: Final = b"FORERUNH"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHI")


class SortedRun:
    """Tokens and their places sorted by the context before them, nearest token first. Never changes.

    A token costs 13 bytes: itself, its place in the order, its bytes in reverse for comparisons, and how many tokens of
    context it shares with its neighbour. Each different token costs an entry in a table of where its places lie, which
    saves the first half of each search.

    Args:
        tokens: Texts with separators between them.
        order: Places in an order that is nearly right, which makes sorting nearly linear.
    """

    __slots__ = ("_after", "_key", "_order", "_shared", "tokens")

    def __init__(self, tokens: array[int], order: Sequence[int] | None = None) -> None:
        self.tokens = tokens
        backwards = array("I", reversed(tokens))
        if _LITTLE_ENDIAN:
            backwards.byteswap()  # so that bytes compare like numbers
        self._key = _context_key(backwards.tobytes(), len(tokens))
        places = range(1, len(tokens)) if order is None else order
        self._order = array("I", sorted(places, key=self._key))
        self._shared = array("B", self._neighbours())
        self._after: dict[int, tuple[int, int]] = {}  # token: where the places that follow it begin and end
        start = 0
        for at in range(1, len(self._order) + 1):
            if at == len(self._order) or not self._shared[at]:
                if at > start:
                    self._after[tokens[self._order[start] - 1]] = start, at
                start = at

    def _neighbours(self) -> Iterator[int]:
        """Tokens of context that each place shares with the one before it in the order.

        Separators count as tokens here: no tail has one, so no search ever reaches behind them.
        """
        before = 0
        for number, place in enumerate(self._order):
            context = int.from_bytes(self._key(place).ljust(_KEY_BYTES, b"\xff"), "big")
            equal_bits = 8 * _KEY_BYTES - (context ^ before).bit_length()
            yield equal_bits // (8 * _WORD) if number else 0
            before = context

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def order(self) -> Sequence[int]:
        """All places, by context."""
        return self._order

    def _common(self, place: int, other: Sequence[int], end: int) -> int:
        tokens, most, count = self.tokens, min(_DEPTH, place, end), 0
        while count < most and tokens[place - 1 - count] == other[end - 1 - count] != SEPARATOR:
            count += 1
        return count

    def find(self, tail: Sequence[int], kind: int, found: list[Occurrence]) -> None:
        """Adds to `found` the places whose contexts are most like the end of `tail`."""
        size = len(tail)
        bounds = self._after.get(tail[size - 1]) if size else None
        if bounds is None:
            return
        tokens, order, shared = self.tokens, self._order, self._shared
        nearest = array("I", tail[-_DEPTH:])
        nearest.reverse()
        if _LITTLE_ENDIAN:
            nearest.byteswap()
        least = 0
        above = bisect_left(order, nearest.tobytes(), *bounds, key=self._key)
        if above < bounds[1]:
            common = self._common(order[above], tail, size)
            least = common // _WEAKER
            found.append((kind, common, order[above], tokens))
            for at in range(above + 1, min(above + _WINDOW, bounds[1])):
                if shared[at] < common:
                    common = shared[at]
                    if common < least:
                        break
                found.append((kind, common, order[at], tokens))
        if above > bounds[0]:
            common = self._common(order[above - 1], tail, size)
            least = max(least, common // _WEAKER)
            for at in range(above - 1, max(above - 1 - _WINDOW, bounds[0] - 1), -1):
                if common < least:
                    break
                found.append((kind, common, order[at], tokens))
                if shared[at] < common:  # noqa: PLR1730 - as above
                    common = shared[at]


def _context_key(backwards: bytes, size: int) -> Callable[[int], bytes]:
    """The context before a place as bytes that sort like it. A closure: it is most of what a search costs."""
    last = _WORD * size

    def key(place: int) -> bytes:
        start = last - _WORD * place
        return backwards[start : start + _KEY_BYTES]

    return key


class History:
    """Outputs of one model for one agent (or for all agents of a tenant). Bounded: the oldest go first.

    New outputs are searchable at once by a small index. Once it has grown to an eighth of the sorted part, it is due to
    be merged into it, which takes seconds for a million tokens: whoever owns the history does that beside the decoding,
    in three steps: `to_merge`, `merge` (pure, in another thread or process) and `install`.

    Args:
        model: Digest of the model's vocabulary. Tokens of another one mean something else.
        limit: Tokens that are kept.
        erasure: The last erasure of its tenant before it began; empty: none was known.
    """

    def __init__(self, model: str, limit: int, erasure: str = "") -> None:
        self.model = model
        self.limit = max(2 * _LEAD, limit)
        self.erasure = erasure
        self._sorted: SortedRun | None = None
        self._fresh = ContextIndex(_UNBOUNDED)

    def __len__(self) -> int:
        return (len(self._sorted) if self._sorted else 0) + len(self._fresh)

    def append(self, context: Sequence[int], output: Sequence[int]) -> None:
        """An output, with what stood before it. Of an output beyond the bound the end is kept."""
        room = self.limit - _LEAD - 1
        self._fresh.extend((SEPARATOR, *context[max(0, len(context) - _LEAD) :], *output[max(0, len(output) - room) :]))
        if len(self._fresh) > self.limit:
            # Nobody merges: what is not sorted must not grow for ever.
            self.install(merge(*self.to_merge()), len(self._fresh))

    def clear(self) -> None:
        """Forgets everything: whoever still drafts from it finds nothing."""
        self._sorted, self._fresh = None, ContextIndex(_UNBOUNDED)

    def find(self, tail: Sequence[int], kind: int, found: list[Occurrence]) -> None:
        """Adds to `found` where the end of `tail` stands in it."""
        if self._sorted is not None:
            self._sorted.find(tail, kind, found)
        if len(self._fresh):
            self._fresh.find(tail, kind, found)

    @property
    def merge_is_due(self) -> bool:
        """The index of new outputs has become large beside the sorted part."""
        size = len(self._sorted) if self._sorted else 0
        return len(self._fresh) >= max(_FRESH_LEAST, size // _FRESH_SHARE)

    def to_merge(self) -> tuple[SortedRun | None, array[int], int]:
        """What `merge` takes: the sorted part, the new tokens, and the bound."""
        return self._sorted, self._fresh.tokens[:], self.limit

    def install(self, merged: SortedRun, taken: int) -> None:
        """Takes over what `merge` made of the first `taken` new tokens."""
        rest = self._fresh.tokens[taken:]
        self._sorted, self._fresh = merged, ContextIndex(_UNBOUNDED)
        self._fresh.extend(rest)

    def to_bytes(self) -> bytes:
        """For persistence: a versioned header and all tokens, 4 bytes each."""
        header = json.dumps({"model": self.model, "limit": self.limit, "tokens": len(self)}).encode()
        tokens = array("i", self._sorted.tokens if self._sorted else ())
        tokens.extend(self._fresh.tokens)
        if not _LITTLE_ENDIAN:
            tokens.byteswap()
        return _HEADER.pack(_MAGIC, _VERSION, len(header)) + header + tokens.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, model: str, erasure: str = "") -> History:
        """The history that was made into `data`; sorting it takes seconds for a million tokens.

        Raises:
            CoreError: `invalid_history` where it is none, is cut off, or has a version that is not known;
                `other_model` where its tokens are another vocabulary's.
        """
        try:
            magic, version, length = _HEADER.unpack_from(data)
            body = _HEADER.size + length
            header = json.loads(data[_HEADER.size : body])
            tokens = array("i", data[body:])
            stored, count, limit = str(header["model"]), int(header["tokens"]), int(header["limit"])
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise CoreError("invalid_history", f"this is no history of tokens: {error}") from error
        if magic != _MAGIC or version != _VERSION:
            raise CoreError("invalid_history", f"history of version {version}, this program reads {_VERSION}")
        if not _LITTLE_ENDIAN:
            tokens.byteswap()
        if len(tokens) != count:
            raise CoreError("invalid_history", f"history with {len(tokens)} of {count} tokens: it was cut off")
        if any(not 0 <= token <= SEPARATOR for token in tokens):
            raise CoreError("invalid_history", "history with tokens that no vocabulary has")
        if stored != model:
            raise CoreError("other_model", f"history of model {stored}, asked for was {model}")
        history = cls(model, limit, erasure)
        if count:
            history._sorted = merge(None, tokens, history.limit)
        return history


def merge(run: SortedRun | None, fresh: array[int], limit: int) -> SortedRun:
    """A sorted part with the new tokens, without the oldest texts where both are more than `limit` tokens."""
    tokens = array("i", run.tokens if run else ())
    old = len(tokens)
    tokens.extend(fresh)
    cut = 0
    if len(tokens) > limit:
        cut = len(tokens) - limit
        while cut < len(tokens) and tokens[cut] != SEPARATOR:
            cut += 1
        # One text that is longer than the bound has no separator behind the cut.
        cut = cut if cut < len(tokens) else len(tokens) - limit
        del tokens[:cut]
    # Sorted places first: sorting finds the long run that is in order already.
    kept = [place - cut for place in run.order if place > cut] if run else []
    kept += range(max(1, old - cut), len(tokens))
    return SortedRun(tokens, kept)
