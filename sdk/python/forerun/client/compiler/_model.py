"""The port to a model: any callable that takes a request and streams its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from forerun.client._errors import ForerunClientError


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """One message of a conversation with a model.

    Attributes:
        role: Who says it.
        content: What.
    """

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        messages: The conversation.
        max_tokens: Most tokens of the answer.
        stop: Texts at which the model stops; they may or may not be part of the answer.
    """

    messages: Sequence[ModelMessage]
    max_tokens: int
    stop: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a provider bills for one request.

    Attributes:
        prompt_tokens: Of the conversation.
        completion_tokens: Of the answer.
    """

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """A piece of an answer.

    Attributes:
        text: The next characters.
        finish_reason: Why the answer is over, in the last piece that has text: `stop`, `length`, or what else the
            provider says.
        usage: What it costs, where the provider says so.
    """

    text: str = ""
    finish_reason: str = ""
    usage: Usage | None = None


class Model(Protocol):
    """A model. An asynchronous generator function of your own is one, too."""

    def __call__(self, request: ModelRequest) -> AsyncIterator[ModelPiece | str]:
        """Streams the answer to a request; a plain text is a piece of it. Closing the iterator stops the model.

        Raises:
            ModelError: it does not answer, or broke off. Any other error counts as one that does not pass.
        """
        ...


class ModelError(ForerunClientError):
    """A model did not answer, or not to the end.

    Args:
        reason: `MODEL_UNAVAILABLE`, `MODEL_RATE_LIMITED`, `MODEL_REFUSED`, `MODEL_PROTOCOL`, `MODEL_BROKEN_OFF`,
            `MODEL_TIMEOUT` or `MODEL_FAILED`.
        message: What happened; no content of the conversation.
        transient: Asking again may help.
        billed: The provider may have counted tokens for it.
        retry_after_seconds: When the provider wants to be asked again.
        said: The provider's own words. They may repeat the conversation, so they are in no message and no log.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        transient: bool,
        billed: bool = True,
        retry_after_seconds: float | None = None,
        said: str = "",
    ) -> None:
        super().__init__(reason, message, retry_after_seconds=retry_after_seconds)
        self.transient = transient
        self.billed = billed
        self.said = said
