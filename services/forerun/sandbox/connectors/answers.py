"""The answers of one HTTP/1.1 connection, one after the other, as a parser in C (llhttp) finds them in what arrives."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

# Beyond what is read at once: the head of an answer, and whatever else comes without content (interim answers, sizes of
# chunks, trailers).
_PLAIN_BYTES: Final = 64 * 1024
_INTERIM: Final = range(100, 200)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an answer, as it was sent.

    Attributes:
        status: Its status code.
        version: As in `1.1`.
        reason: The words behind the status.
        headers: Names and values, in order.
    """

    status: int
    version: str
    reason: bytes
    headers: list[tuple[bytes, bytes]]


class Answers:
    """Takes what arrives on a connection, for the answer that is expected now.

    Attributes:
        head: The answer's beginning, once it is there. Interim answers are passed over.
        parts: What has come of its content and was not taken yet.
        complete: It has ended as it should.
        reusable: It is complete, the server keeps the connection, and nothing came that nobody has asked for.
        fault: Why it will never be complete; empty while it may be.
    """

    def __init__(self) -> None:
        self.parts: deque[bytes] = deque()
        self._parser = HttpResponseParser(self)
        # What servers are known to do and a client may take: lines that end with LF alone, lengths beside chunks,
        # folded headers. No request can be smuggled by it, for a connection carries one at a time.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_chunked_length=True, lenient_headers=True
        )
        self.expect("")

    def expect(self, method: str) -> None:
        """The next answer belongs to a request of this method."""
        self.head: Head | None = None
        self.complete = self.reusable = False
        self.fault = ""
        self.parts.clear()
        self._without_content = method == "HEAD"
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._until_the_end = False
        self._plain_bytes = 0
        self._any_content = False

    def feed(self, data: bytes) -> None:
        """Takes what has arrived."""
        self._any_content = False
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._fail("the server wants to change the protocol")
        except HttpParserError as error:
            self._fail(str(error))
        self._plain_bytes = 0 if self._any_content else self._plain_bytes + len(data)
        if self._plain_bytes > _PLAIN_BYTES:
            self._fail(f"the server sent more than {_PLAIN_BYTES} bytes without content")

    def end(self) -> None:
        """Nothing more arrives. That is how content without a length ends."""
        if self.head is None:
            self._fail("the server hung up without an answer")
        elif self._until_the_end:
            self.complete = True
        else:
            self._fail("the server hung up in the middle of its answer")

    def _fail(self, why: str) -> None:
        if not self.complete:  # else the answer is whole, and what came behind it is nobody's
            self.fault = self.fault or why

    # ------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        """An answer begins: the one that is expected, or one that nobody has asked for."""
        self.reusable = False

    def on_status(self, reason: bytes) -> None:
        """The words behind the status."""
        self._reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, which nobody reads."""
        if self.head is None:
            self._headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """The beginning is there."""
        if self.head is not None:
            return
        status, headers = self._parser.get_status_code(), self._headers
        if status in _INTERIM:
            self._headers = []
            return
        named = {name.lower(): value for name, value in headers}
        coding = named.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            self._fail("the server sent its answer in a transfer coding other than chunks")
        if any(b"\0" in value for _, value in headers):
            self._fail("the server sent a header with a NUL character")
        self._until_the_end = coding is None and b"content-length" not in named
        self.head = Head(status, self._parser.get_http_version(), self._reason, headers)
        self.complete = self._without_content  # whatever its headers say of a length

    def on_body(self, content: bytes) -> None:
        """The next bytes of the content."""
        if not self.complete:
            self._any_content = True
            self.parts.append(content)

    def on_message_complete(self) -> None:
        """An answer is whole; interim ones are passed over."""
        if self.head is not None and not self.complete and not self.fault:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
