"""A provider that speaks OpenAI-compatible chat completions over HTTP, streamed as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx

from forerun.core.race_replicas import Fault
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.errors import (
    ModelError,
    broken,
    from_status,
    no_connection,
    not_understood,
    too_large,
    too_slow,
)
from forerun.runtime.models.port import Deadlines, FinishReason, ModelEvent, ModelRequest
from forerun.runtime.models.sse import EventReader, EventTooLarge
from forerun.runtime.models.wire import Completion, NotACompletion, error_code, request_body
from forerun.runtime.retry_after import retry_after_seconds
from forerun.runtime.secrets import REFERENCE, named_secret

_CONNECT_SECONDS: Final = 10.0
_ERROR_BYTES: Final = 64 * 1024
_DRAIN_SECONDS: Final = 0.005
_DONE: Final = "[DONE]"
_NO_CONNECTION: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

_T = TypeVar("_T")


@dataclass(slots=True)
class _Until:
    """The deadlines of one request, on the loop's clock.

    Between tokens only waiting counts: time that the reader of the answer takes is not the provider's.
    """

    deadlines: Deadlines
    provider: str
    began_at: float
    started: bool = False
    _waited: float = 0.0

    def token(self) -> None:
        """Something was generated."""
        self.started, self._waited = True, 0.0

    async def wait(self, awaited: Awaitable[_T]) -> _T:
        """Waits until the next deadline; what is waited for is cancelled there.

        Raises:
            ModelError: it has passed.
        """
        loop = asyncio.get_running_loop()
        given, now = self.deadlines, loop.time()
        step, which = (
            (given.between_tokens, "between_tokens_seconds")
            if self.started
            else (given.first_token, "first_token_seconds")
        )
        total = self.began_at + given.total
        try:
            async with asyncio.timeout_at(min(total, now + step - self._waited)):
                return await awaited
        except TimeoutError:
            if loop.time() >= total:
                step, which = given.total, "timeout_seconds"
            raise too_slow(self.provider, which, step) from None
        finally:
            self._waited += loop.time() - now


class ChatCompletions:
    """One provider. Its connection is closed when a request is cancelled, which is how the provider hears of it.

    Redirects are not followed, nothing of the environment is used. The secret is read for each request.

    Args:
        provider: Where and how.
        transport: Makes the connections.
        secrets: Directory of secrets.
        clock: For `Retry-After` dates.
    """

    def __init__(
        self, provider: Provider, transport: httpx.AsyncBaseTransport, secrets: Path | None, clock: Clock
    ) -> None:
        self.provider = provider
        self._transport = transport
        self._secrets = secrets
        self._clock = clock

    async def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        """Sends a request; see the port.

        Raises:
            ModelError: it failed.
        """
        name = self.provider.name
        now = asyncio.get_running_loop().time()
        until = _Until(deadlines, name, now)
        sent = self._request(request)
        try:
            response = await until.wait(self._transport.handle_async_request(sent))
            try:
                if not response.is_success:
                    raise await self._refusal(response, until)
                async with contextlib.aclosing(self._read(request, response, until)) as events:
                    async for event in events:
                        yield event
            finally:
                await response.aclose()
        except _NO_CONNECTION as error:
            raise no_connection(name) from error
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
            raise broken(name, "closed the connection before its answer was complete") from error
        except NotACompletion as error:
            raise not_understood(name, str(error)) from None
        except EventTooLarge:
            raise too_large(name, self.provider.max_response_bytes) from None

    async def close(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()

    # ------------------------------------------------------------ sending

    def _request(self, request: ModelRequest) -> httpx.Request:
        headers = {"content-type": "application/json", "accept": "text/event-stream", "user-agent": "forerun"}
        for name, value in self.provider.headers:
            headers[name] = self._secret(value.removeprefix(REFERENCE)) if value.startswith(REFERENCE) else value
        if self.provider.secret:
            headers["authorization"] = f"Bearer {self._secret(self.provider.secret)}"
        return httpx.Request(
            "POST",
            f"{self.provider.url}/chat/completions",
            headers=headers,
            content=request_body(request, self.provider),
            extensions={"timeout": {"connect": _CONNECT_SECONDS}},
        )

    def _secret(self, name: str) -> str:
        secret = named_secret(self._secrets, name)
        if secret is None:
            raise self._unusable(name, "is not in secrets_directory")
        if not (secret.isascii() and secret.isprintable()):
            # The HTTP library would refuse it later, and say what it is.
            raise self._unusable(name, "has characters that no header may have, such as a line end inside")
        return secret

    def _unusable(self, name: str, why: str) -> ModelError:
        return ModelError(
            FailedPrecondition(
                ErrorReason.SETTING_INVALID,
                f"the secret {name} of the model provider {self.provider.name} {why}",
                metadata={"provider": self.provider.name, "secret": name},
            ),
            Fault.REFUSED,
        )

    # ------------------------------------------------------------ reading

    async def _refusal(self, response: httpx.Response, until: _Until) -> ModelError:
        body = bytearray()
        with contextlib.suppress(httpx.TransportError, ModelError):
            async for part in _parts(response, until):
                body += part
                if len(body) > _ERROR_BYTES:
                    break
        code = ""
        with contextlib.suppress(ValueError, RecursionError):
            code = error_code(json.loads(bytes(body)))
        wait = retry_after_seconds(response.headers, self._clock.now())
        return from_status(self.provider.name, response.status_code, code, wait, secret=self.provider.secret)

    async def _read(
        self, request: ModelRequest, response: httpx.Response, until: _Until
    ) -> AsyncGenerator[ModelEvent, None]:
        streams = "text/event-stream" in response.headers.get("content-type", "")
        completion = Completion(request.size_bytes)
        most = self.provider.most_output(request.max_output_tokens)
        texts = self._events(response, until) if streams else self._whole(response, until)
        take: Callable[[str], list[ModelEvent]] = completion.chunk if streams else completion.whole
        async with contextlib.aclosing(texts):
            async for text in texts:
                events = take(text)
                if completion.deltas > most and completion.ended is None:
                    # Each delta is a token or more: the provider does not keep to its own bound, so it is stopped.
                    completion.ended = FinishReason.LENGTH
                    break
                for event in events:
                    until.token()
                    yield event
        if completion.ended is None:
            raise broken(self.provider.name, "ended its answer without an end")
        yield completion.finished()

    async def _events(self, response: httpx.Response, until: _Until) -> AsyncGenerator[str, None]:
        reader = EventReader(self.provider.max_response_bytes)
        size = 0
        async for part in _parts(response, until):
            size += len(part)
            if size > self.provider.max_response_bytes:
                raise too_large(self.provider.name, self.provider.max_response_bytes)
            for data in reader.feed(part):
                if data == _DONE:
                    await _drain(response)
                    return
                yield data

    async def _whole(self, response: httpx.Response, until: _Until) -> AsyncGenerator[str, None]:
        body = bytearray()
        async for part in _parts(response, until):
            body += part
            if len(body) > self.provider.max_response_bytes:
                raise too_large(self.provider.name, self.provider.max_response_bytes)
        yield body.decode("utf-8", "replace")


async def _parts(response: httpx.Response, until: _Until) -> AsyncGenerator[bytes, None]:
    """The body as it comes, each part within the deadlines."""
    body = response.aiter_bytes()
    while True:
        try:
            part = await until.wait(anext(body))
        except StopAsyncIteration:
            return
        yield part


async def _drain(response: httpx.Response) -> None:
    """Reads the end of the body, which nearly always is there already, so that the connection can be used again."""
    with contextlib.suppress(TimeoutError, httpx.TransportError, httpx.StreamError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in response.stream:  # type: ignore[union-attr]
                return
