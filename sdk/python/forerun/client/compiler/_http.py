"""One HTTP request over asyncio streams.

The client's distribution depends on gRPC and protobuf only, and a streamed POST needs little: so there is this module
and no HTTP library. It speaks HTTP/1.1, one request a connection, follows no redirects, and knows no proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from forerun.client._errors import InvalidRequest

HEADER_BYTES: Final = 64 * 1024
"""Most bytes of one line of a response's head."""
HEADERS: Final = 200
"""Most lines of a response's head."""
_PIECE_BYTES: Final = 16 * 1024


class HttpError(Exception):
    """A peer that cannot be reached, broke off, or speaks no HTTP.

    Attributes:
        sent: The request may have reached it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Url:
    """Where to send a request.

    Attributes:
        host, port: Of the server.
        encrypted: By TLS.
        path: With a query, as it stands in the request.
    """

    host: str
    port: int
    encrypted: bool
    path: str

    @property
    def authority(self) -> str:
        """Host and port as the server's name."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.encrypted else 80
        return host if self.port == usual else f"{host}:{self.port}"


def url_of(text: str) -> Url:
    """Reads an address.

    Raises:
        InvalidRequest: it is no http or https address.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or not text.isascii():
        raise InvalidRequest(
            "ARGUMENT_INVALID", "the address of a model is http://... or https://..., without user and password"
        )
    if any(ord(char) <= ord(" ") for char in text):
        raise InvalidRequest("ARGUMENT_INVALID", "the address of a model has no spaces or line ends")
    encrypted = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.hostname, port or (443 if encrypted else 80), encrypted, path)


class Response:
    """The answer to a request.

    Attributes:
        status: Its code.
        headers: By name in lower case.
    """

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            HttpError: it is cut off.
        """
        try:
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                async for piece in self._chunked():
                    yield piece
            elif (length := self.headers.get("content-length")) is not None:
                async for piece in self._counted(_number(length, 10)):
                    yield piece
            else:
                while piece := await self._reader.read(_PIECE_BYTES):
                    yield piece
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise HttpError(f"the answer broke off ({type(error).__name__})", sent=True) from error

    async def head(self, most: int) -> bytes:
        """The first bytes of the body, for an error that it describes."""
        found = b""
        async for piece in self.pieces():
            found += piece
            if len(found) >= most:
                break
        return found[:most]

    async def _counted(self, left: int) -> AsyncIterator[bytes]:
        while left:
            piece = await self._reader.read(min(left, _PIECE_BYTES))
            if not piece:
                raise EOFError
            left -= len(piece)
            yield piece

    async def _chunked(self) -> AsyncIterator[bytes]:
        while True:
            size = _number((await _line(self._reader)).partition(";")[0].strip(), 16)
            if size == 0:
                while await _line(self._reader):
                    pass  # trailers
                return
            async for piece in self._counted(size):
                yield piece
            if await _line(self._reader):
                raise HttpError("a chunk is longer than it says", sent=True)


@asynccontextmanager
async def post(
    url: Url, headers: Mapping[str, str], body: bytes, *, tls: ssl.SSLContext | None, connect_timeout_seconds: float
) -> AsyncIterator[Response]:
    """Sends a request and gives the answer's head. Leaving the block breaks the connection, so that the peer stops.

    Args:
        url: Where to.
        headers: Beside those that say how the body is sent.
        body: The content.
        tls: For `https`. None: certificates as the system trusts them.
        connect_timeout_seconds: Longest time to connect.

    Raises:
        HttpError: the peer cannot be reached, or its answer is none.
    """
    context = (tls or ssl.create_default_context()) if url.encrypted else None
    try:
        async with asyncio.timeout(connect_timeout_seconds):
            reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context, limit=HEADER_BYTES)
    except (OSError, TimeoutError) as error:
        raise HttpError(f"{url.authority} cannot be reached ({type(error).__name__})", sent=False) from error
    try:
        yield await _exchange(reader, writer, url, headers, body)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: Url, headers: Mapping[str, str], body: bytes
) -> Response:
    fixed = {"host": url.authority, "content-length": str(len(body)), "connection": "close"}
    lines = [f"POST {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in (dict(headers) | fixed).items())]
    try:
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await writer.drain()
        version, _, rest = (await _line(reader)).partition(" ")
        if not version.startswith("HTTP/1."):
            raise HttpError(f"{url.authority} does not speak HTTP/1.1", sent=True)
        return Response(_number(rest[:3], 10), await _headers(reader), reader)
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        raise HttpError(f"{url.authority} broke off ({type(error).__name__})", sent=True) from error


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    while line := await _line(reader):
        name, colon, value = line.partition(":")
        if not colon or len(found) == HEADERS:
            raise HttpError("the head of the answer is no HTTP", sent=True)
        found[name.strip().lower()] = value.strip()
    return found


async def _line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")


def _number(text: str, base: int) -> int:
    digits = "0123456789abcdef"[:base]
    if not text or len(text) > 16 or any(char not in digits for char in text.lower()):
        raise HttpError("a number of the answer's head is none", sent=True)
    return int(text, base)
