"""Tools behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any, Final

import httpx

from forerun.core.canonical import JsonValue
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason
from forerun.runtime.retry_after import retry_after_seconds
from forerun.sandbox.connectors.egress import EGRESS_EXTENSION, SECONDS_EXTENSION, Egress
from forerun.sandbox.connectors.port import Ended, Invocation, Result, Sink, ToolFault, rejected, text_media_type
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.connectors.templates import fill_url, placeholders, text_of
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import HttpEndpoint

_CONNECT_SECONDS: Final = 10.0
_HEADERS: Final = {"user-agent": "forerun", "accept": "*/*", "accept-encoding": "gzip, deflate"}
_WITH_CONTENT: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests say that their content is empty."""
_TOO_MANY_REQUESTS: Final = 429
_NO_END: Final = frozenset({202, 408, 502, 503, 504})
"""Accepted, and what gateways say when the tool behind them has not answered: the work may go on."""


class HttpConnector:
    """Calls tools by HTTP. A cancelled call closes its connection, which is how a server hears of it.

    The observation is the body of the answer, byte for byte, whatever the status; a status other than 2xx marks it as
    the tool's own error and is named in the media type (`status=404`). Redirects are answers, not followed. 429 is no
    answer: nothing took effect, and the fault says when to come back.

    Args:
        transport: Makes the connections.
        secrets: Resolves `secret:NAME` in headers.
        clock: For `Retry-After` dates.
        max_bytes: Longest answer.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, secrets: Secrets, clock: Clock, *, max_bytes: int) -> None:
        # Without httpx's client around it: redirects, cookies, proxies and defaults of the environment are not wanted.
        self._transport = transport
        self._secrets = secrets
        self._clock = clock
        self._max_bytes = max_bytes

    async def call(self, invocation: Invocation, sink: Sink) -> Result:
        """Calls a tool.

        Raises:
            ToolFault: There is no answer.
        """
        request = self._request(invocation)
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise ToolFault(
                Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"no connection to the host of {invocation.tool.name}",
                not_started=True,
            ) from error  # fmt: skip
        except httpx.LocalProtocolError as error:
            raise rejected(
                ErrorReason.ARGUMENTS_REFUSED, f"the arguments make no valid request for {invocation.tool.name}",
                tool=invocation.tool.name,
            ) from error  # fmt: skip
        except httpx.TransportError as error:
            raise _broken(invocation) from error
        try:
            return await self._answer(invocation, response, sink)
        except httpx.TransportError as error:
            raise _broken(invocation) from error
        finally:
            await response.aclose()

    def ends_with_call(self, invocation: Invocation) -> bool:
        """No: a server may work on after its client has hung up."""
        return False

    async def close_session(self, owner: Owner) -> None:
        """Nothing is kept for a session."""

    async def close(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()

    def _request(self, invocation: Invocation) -> httpx.Request:
        endpoint = invocation.tool.endpoint
        assert isinstance(endpoint, HttpEndpoint)
        headers = self._secrets.resolve(endpoint.headers)
        if endpoint.idempotency_header and invocation.idempotency_key:
            headers[endpoint.idempotency_header] = invocation.idempotency_key
        address = endpoint.address(invocation.provider)
        url = fill_url(address, invocation)
        content: bytes | None = None
        parameters: list[tuple[str, str]] = []
        if endpoint.json_body:
            content = invocation.raw
            headers = {"content-type": "application/json", **headers}
        else:
            named = set(placeholders(address))
            for name, value in invocation.arguments.items():
                if name not in named:
                    parameters += _query(name, value)
        try:
            request = _made(endpoint.method or "GET", _url(url), headers, content)
            if request.url.userinfo and "authorization" not in request.headers:
                next(httpx.BasicAuth(request.url.username, request.url.password).auth_flow(request))
            if parameters:
                request.url = request.url.copy_merge_params(httpx.QueryParams(tuple(parameters)))
        except (httpx.InvalidURL, ValueError) as error:
            raise rejected(
                ErrorReason.ARGUMENTS_REFUSED, f"the arguments make no valid address for {invocation.tool.name}",
                tool=invocation.tool.name,
            ) from error  # fmt: skip
        egress = _egress(invocation.tool.server.egress, address)
        if not egress.allows_name(request.url.host):
            raise rejected(
                ErrorReason.EGRESS_DENIED, f"{invocation.tool.name} may not connect there; see `egress` of its server",
                tool=invocation.tool.name,
            )  # fmt: skip
        request.extensions = {
            "timeout": {"connect": _CONNECT_SECONDS},
            EGRESS_EXTENSION: egress,
            SECONDS_EXTENSION: invocation.timeout_seconds,
        }
        return request

    async def _answer(self, invocation: Invocation, response: httpx.Response, sink: Sink) -> Result:
        if response.status_code == _TOO_MANY_REQUESTS:
            raise ToolFault(
                Ended.UNAVAILABLE, ErrorReason.RATE_LIMITED, f"the provider of {invocation.tool.name} limits its rate",
                not_started=True, retry_after_seconds=retry_after_seconds(response.headers, self._clock.now()),
            )  # fmt: skip
        ok = response.is_success
        body = bytearray()
        async for chunk in _decoded(response):
            body += chunk
            if len(body) > self._max_bytes:
                raise ToolFault(
                    Ended.REJECTED, ErrorReason.LIMIT_OUTPUT,
                    f"the answer of {invocation.tool.name} is longer than {self._max_bytes} bytes; set "
                    "output_cap_bytes in its contract, or max_observation_bytes of the sandbox service",
                    metadata={
                        "limit": "RESULT_BYTES", "limit_bytes": str(self._max_bytes),
                        "setting": "FORERUN_SANDBOX_MAX_OBSERVATION_BYTES",
                    },
                )  # fmt: skip
            sink(chunk)
        content = bytes(body)
        media_type = response.headers.get("content-type", "")
        if "json" in media_type or not media_type:
            media_type = text_media_type(content)
        return Result(
            content, media_type if ok else f"{media_type}; status={response.status_code}", tool_error=not ok,
            may_continue=response.status_code in _NO_END,
        )  # fmt: skip


def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body; straight from the connection where it is not compressed, as most are."""
    stream = response.stream
    if "content-encoding" in response.headers or not isinstance(stream, httpx.AsyncByteStream):
        return response.aiter_bytes()
    return aiter(stream)


@lru_cache(maxsize=1_024)
def _url(text: str) -> httpx.URL:
    return httpx.URL(text)


@lru_cache(maxsize=1_024)
def _egress(entries: tuple[str, ...], url: str) -> Egress:
    return Egress.of(entries, [url])


def _made(method: str, url: httpx.URL, given: Mapping[str, str], content: bytes | None) -> httpx.Request:
    """A request as httpx would make it, without the copies of its headers on the way."""
    named: dict[str, tuple[str, str | bytes]] = {"host": ("Host", url.netloc)}
    named |= {name: (name, value) for name, value in _HEADERS.items()}
    if content or method.upper() in _WITH_CONTENT:
        named["content-length"] = ("Content-Length", str(len(content or b"")))
    for name, value in given.items():
        named[name.lower()] = (name, value)
    headers: Any = list(named.values())  # names are text and values text or bytes, which the types of httpx do not say
    request = httpx.Request(method, url, headers=headers, stream=httpx.ByteStream(content or b""))
    request.read()  # so that every transport finds its content, as where httpx makes the stream
    return request


def _query(name: str, value: JsonValue) -> list[tuple[str, str]]:
    if isinstance(value, list):
        return [(name, text_of(item)) for item in value]
    return [(name, text_of(value))]


def _broken(invocation: Invocation) -> ToolFault:
    return ToolFault(
        Ended.OUTCOME_UNKNOWN, ErrorReason.TOOL_FAILED,
        f"the connection to {invocation.tool.name} broke after the call was sent",
        metadata={"tool": invocation.tool.name},
    )  # fmt: skip
