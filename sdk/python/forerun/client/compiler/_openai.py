"""Models behind an OpenAI-compatible endpoint: `POST {base_url}/chat/completions`, streamed."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from forerun.client._errors import InvalidRequest
from forerun.client.compiler._http import HttpError, Response, post, url_of
from forerun.client.compiler._model import ModelError, ModelPiece, ModelRequest, Usage
from forerun.client.compiler._retry_after import retry_after_seconds
from forerun.client.compiler._sse import SseError, SseReader

_ERROR_BYTES: Final = 2_000
_ANSWER_BYTES: Final = 4 * 1024 * 1024
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DONE: Final = "[DONE]"
_RATE_LIMITED: Final = 429
# Conflict, too early and time-outs pass like an overload does.
_TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class OpenAiModel:
    """A model of an OpenAI-compatible server. Repeats nothing: whoever asks decides that.

    Args:
        base_url: Such as `https://api.openai.com/v1`, or `http://127.0.0.1:8000/v1`.
        model: Name of the model.
        api_key: Sent as a bearer token.
        headers: Sent as well.
        options: Further fields of the request, such as `{"temperature": 0}`. A server that knows no `max_tokens` gets
            what it wants instead by `{"max_tokens": None, "max_completion_tokens": 800}`: None leaves a field out.
        tls: For `https`. None: certificates as the system trusts them.
        connect_timeout_seconds: Longest time to connect. The rest of the time is the caller's to bound.
        wall: Seconds since the epoch, for a `Retry-After` that is a date.

    Raises:
        InvalidRequest: the address is none, or a header cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout_seconds: float = 10.0,
        wall: Callable[[], float] = time.time,  # noqa: TID251  (the edge)
    ) -> None:
        self._url = url_of(base_url.rstrip("/") + "/chat/completions")
        self._model = model
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._headers = {"content-type": "application/json", "accept": "text/event-stream"} | dict(headers or {}) | key
        self._options = dict(options or {})
        self._tls = tls
        self._connect_timeout_seconds = connect_timeout_seconds
        self._wall = wall
        if any(not _sendable(text) for header in self._headers.items() for text in header):
            raise InvalidRequest("ARGUMENT_INVALID", "a header or the api_key has characters that no header may have")

    async def __call__(self, request: ModelRequest) -> AsyncGenerator[ModelPiece, None]:
        """Streams the answer; see `Model`.

        Raises:
            ModelError: with the reason of its kind.
        """
        body = json.dumps(self._body(request), ensure_ascii=True, allow_nan=False).encode("ascii")
        try:
            async with post(
                self._url,
                self._headers,
                body,
                tls=self._tls,
                connect_timeout_seconds=self._connect_timeout_seconds,
            ) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                whole = kind == "application/json"
                async with aclosing(_whole(response) if whole else _streamed(response)) as pieces:
                    async for piece in pieces:
                        yield piece
        except HttpError as error:
            reason = "MODEL_BROKEN_OFF" if error.sent else "MODEL_UNAVAILABLE"
            raise ModelError(reason, str(error), transient=True, billed=error.sent) from error

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": one.role, "content": one.content} for one in request.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": request.max_tokens,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        return {name: value for name, value in (body | self._options).items() if value is not None}

    async def _refusal(self, response: Response) -> ModelError:
        """What an error status means."""
        said = (await response.head(_ERROR_BYTES)).decode("utf-8", "replace")
        reason = "MODEL_REFUSED"
        if response.status == _RATE_LIMITED:
            reason = "MODEL_RATE_LIMITED"
        elif response.status in _TRANSIENT:
            reason = "MODEL_UNAVAILABLE"
        return ModelError(
            reason,
            f"the model's server answered {response.status}{_code(said)}",
            transient=response.status in _TRANSIENT,
            billed=False,
            retry_after_seconds=retry_after_seconds(response.headers, self._wall()),
            said=said,
        )


async def _streamed(response: Response) -> AsyncGenerator[ModelPiece, None]:
    reader = SseReader()
    finished = False
    try:
        async for piece in response.pieces():
            for data in reader.feed(piece):
                if data == _DONE:
                    return
                found = _piece(_object(data))
                finished = finished or bool(found.finish_reason)
                yield found
    except SseError as error:
        raise _garbage(str(error)) from error
    if not finished:
        raise ModelError("MODEL_BROKEN_OFF", "the stream ended before the answer did", transient=True)


async def _whole(response: Response) -> AsyncGenerator[ModelPiece, None]:
    """The answer of a server that does not stream."""
    content = await response.head(_ANSWER_BYTES + 1)
    if len(content) > _ANSWER_BYTES:
        raise _garbage(f"an answer of more than {_ANSWER_BYTES} bytes")
    yield _piece(_object(content.decode("utf-8", "replace")))


def _piece(chunk: dict[str, Any]) -> ModelPiece:
    if chunk.get("error") is not None:
        said = json.dumps(chunk)
        raise ModelError("MODEL_BROKEN_OFF", f"the model's server broke off{_code(said)}", transient=True, said=said)
    usage = chunk.get("usage")
    found = _bill(usage) if isinstance(usage, dict) else None
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise _garbage("a chunk without choices")
    if not choices:
        return ModelPiece(usage=found)
    choice = choices[0] if isinstance(choices[0], dict) else {}
    delta = choice.get("delta") or choice.get("message") or {}
    text = delta.get("content") if isinstance(delta, dict) else None
    reason = choice.get("finish_reason")
    return ModelPiece(text if isinstance(text, str) else "", reason if isinstance(reason, str) else "", found)


def _bill(usage: dict[str, Any]) -> Usage | None:
    """What is counted; None where it is no count. Less than none would make room in the bound on a run's tokens."""
    prompt, completion = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    if type(prompt) is not int or type(completion) is not int or min(prompt, completion) < 0:
        return None
    return Usage(prompt, completion)


def _object(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _garbage("something that is no JSON") from error
    if not isinstance(value, dict):
        raise _garbage("something that is no JSON object")
    return value


def _garbage(what: str) -> ModelError:
    return ModelError("MODEL_PROTOCOL", f"the model's server sent {what}", transient=True)


def _code(said: str) -> str:
    """The provider's code of an error, where it has one: a word, unlike its message, repeats no conversation."""
    try:
        error = json.loads(said).get("error")
    except (ValueError, AttributeError):
        return ""
    about = error if isinstance(error, dict) else {}
    words = [one for one in (about.get("code"), about.get("type")) if isinstance(one, str) and _WORD.fullmatch(one)]
    return f" ({words[0]})" if words else ""


def _sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()
