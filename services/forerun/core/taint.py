"""Which arguments may be sent to an open destination before the agent itself asked for it.

A request cannot be taken back. So a guessed call may reach the open world only with values that trusted people already
said: the user's words, arguments of calls that the agent really made, constants of the policy. A value must be one of
these as a whole, or a whole token of them; being made of trusted letters is not enough, and being short is no excuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit

from forerun.core import limits
from forerun.core.canonical import JsonValue, child_path
from forerun.core.schema import ToolSchema

_SEPARATORS = re.compile(r"""[,;"'`<>()\[\]{}|]+""")
_WRAPPING = """.,;:!?*_"'`<>()[]{}|"""
_SIGILS = "#$@"  # "order #W123" means W123 as well
# What an entry costs beside its text, so that many short tokens are bounded as well as few long ones.
_ENTRY_BYTES = 64
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USUAL_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class TrustedText:
    """What trusted people said in a session, as an index of whole values and tokens that only grows.

    Bounded: when it is full nothing more becomes trusted, so that fewer calls run ahead.
    """

    __slots__ = ("_bytes_left", "_known")

    def __init__(self, *, max_bytes: int = limits.TRUSTED_TEXT_BYTES) -> None:
        self._known: set[str] = set()
        self._bytes_left = max_bytes

    def __contains__(self, text: object) -> bool:
        return text in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """True once something did not fit."""
        return self._bytes_left < 0

    def add(self, text: str) -> None:
        """Trusts a text: the whole of it, its tokens, and the components of the URLs in it."""
        self._keep(text)
        self._keep(text.strip())
        for chunk in text.split():
            if self.full:
                return
            self._keep(chunk)
            bare = chunk.strip(_WRAPPING)
            self._keep_word(bare)
            if _URL.match(bare):
                self._add_url(bare)
            else:
                self._add_tokens(bare)

    def _add_url(self, url: str) -> None:
        parts = _split(url)
        for written, meant in _components(parts) if parts is not None else ():
            self._keep(written)
            self._keep(meant)

    def _add_tokens(self, chunk: str) -> None:
        for token in _SEPARATORS.split(chunk):
            bare = token.strip(_WRAPPING)
            self._keep(token)
            self._keep_word(bare)
            if _URL.match(bare):
                self._add_url(bare)
            elif "=" in bare:
                for name_or_value in bare.split("=", 1):
                    self._keep(name_or_value)

    def add_value(self, value: JsonValue) -> None:
        """Trusts every key and leaf of a value: arguments that the agent really sent, or a constant of the policy."""
        if isinstance(value, dict):
            for key, item in value.items():
                self._keep(key)
                self.add_value(item)
        elif isinstance(value, list):
            for item in value:
                self.add_value(item)
        elif isinstance(value, str):
            self.add(value)
        elif value is not None and not isinstance(value, bool):
            self._keep(_number_text(value))

    def _keep_word(self, word: str) -> None:
        self._keep(word)
        self._keep(word.strip(_SIGILS))

    def _keep(self, text: str) -> None:
        if not text or len(text) > limits.TRUSTED_TOKEN_CHARS or text in self._known or self._bytes_left < 0:
            return
        self._bytes_left -= _ENTRY_BYTES + len(text.encode("utf-8", "surrogatepass"))
        if self._bytes_left >= 0:
            self._known.add(text)


def tainted(arguments: JsonValue, trusted: TrustedText, *, schema: ToolSchema | None = None) -> list[str]:
    """Returns the paths of everything in the arguments that nobody trusted has said; empty when they may be sent.

    Booleans and null carry next to nothing and are fine, and so are values that the schema fixes (`enum`, `const`) and
    keys that it declares. Keys that nobody declared are data like any other.

    Args:
        arguments: The parsed arguments of the guessed call.
        trusted: What trusted people said in this session.
        schema: The tool's input schema; without one, keys must be trusted too.
    """
    return list(_tainted(arguments, trusted, schema, "$", ()))


def _tainted(
    value: JsonValue, trusted: TrustedText, schema: ToolSchema | None, path: str, keys: tuple[str, ...]
) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            at = (*keys, key)
            if key not in trusted and (schema is None or not schema.declares(at)):
                yield child_path(path, key)
            else:
                yield from _tainted(item, trusted, schema, child_path(path, key), at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tainted(item, trusted, schema, child_path(path, index), keys)
    elif value is not None and not isinstance(value, bool):
        fixed = schema is not None and value in schema.fixed_values(keys)
        if not fixed and not _is_trusted(value, trusted):
            yield path


def _is_trusted(value: int | Decimal | str, trusted: TrustedText) -> bool:
    if not isinstance(value, str):
        return _number_text(value) in trusted or (isinstance(value, Decimal) and str(value) in trusted)
    if not value or value in trusted:
        return True
    if not _URL.match(value):
        return False
    parts = _split(value)
    return parts is not None and all(written in trusted or meant in trusted for written, meant in _components(parts))


def _number_text(value: int | Decimal) -> str:
    """A number as people write it: without an exponent where it is a usual one, 5.0 as 5."""
    number = Decimal(value)
    if not number or not -20 < number.adjusted() < 40:
        return str(number)
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _split(url: str) -> SplitResult | None:
    """Takes a URL apart; None for one that readers may understand differently."""
    if any(character in "\\\t\r\n " for character in url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts if parts.hostname and len(parts.path) - len(parts.path.strip("/")) <= 2 else None


def _components(parts: SplitResult) -> Iterator[tuple[str, str]]:
    """Every component by which a URL could carry something, as written and as meant (decoded once).

    Splitting is fine-grained on purpose: host, port, user, each path segment, each name and value of the query and the
    fragment have to be trusted by themselves.
    """
    scheme = parts.scheme.lower()
    host = parts.hostname or ""
    yield host, host
    others = [scheme] if scheme not in _USUAL_PORTS else []
    if parts.port is not None and parts.port != _USUAL_PORTS.get(scheme):
        others.append(str(parts.port))
    others.extend(text for text in (parts.username, parts.password) if text is not None)
    # An empty piece in the middle is a component too: the number of slashes could be a message.
    if parts.path.strip("/"):
        others.extend(parts.path.removeprefix("/").removesuffix("/").split("/"))
    if parts.fragment:
        others.append(parts.fragment)
    for written in others:
        yield written, unquote(written)
    for pair in parts.query.split("&") if parts.query else ():
        name, _, value = pair.partition("=")
        yield name, unquote_plus(name)
        if value:
            yield value, unquote_plus(value)
