"""What goes wrong with a model request, as typed errors that say what it means for providers and for a repetition."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.core.race_replicas import Failed, Fault
from forerun.runtime.errors import (
    DeadlineExceeded,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)


class ModelError(Exception):
    """A request to a provider has failed.

    Args:
        error: What its caller is told. Holds nothing of the conversation and nothing that the provider wrote.
        fault: What it says of the provider.
    """

    def __init__(self, error: ForerunError, fault: Fault) -> None:
        super().__init__(error.message)
        self.error = error
        self.failed = Failed(fault, error.retry_after_seconds)


def no_connection(provider: str) -> ModelError:
    """Nothing has left this process."""
    return ModelError(
        Unavailable(ErrorReason.MODEL_UNAVAILABLE, f"no connection to the model provider {provider}",
                    metadata={"provider": provider}),
        Fault.AWAY,
    )  # fmt: skip


def broken(provider: str, what: str) -> ModelError:
    """It failed on the way."""
    return ModelError(
        Unavailable(ErrorReason.MODEL_UNAVAILABLE, f"the model provider {provider} {what}",
                    metadata={"provider": provider}),
        Fault.BROKEN,
    )  # fmt: skip


def not_understood(provider: str, what: str) -> ModelError:
    """It sent something that is no chat completion."""
    return ModelError(
        Unavailable(ErrorReason.MODEL_PROTOCOL, f"the model provider {provider} sent {what}",
                    metadata={"provider": provider}),
        Fault.BROKEN,
    )  # fmt: skip


def no_place(provider: str, which: str, seconds: float) -> ModelError:
    """Its places were taken for so long: nothing was sent, and nothing has to be paid."""
    return ModelError(
        DeadlineExceeded(
            ErrorReason.MODEL_TIMEOUT,
            f"the model provider {provider} had no place for {seconds:g} s ({which}); its `concurrency` in the policy "
            "is how many requests it gets at once",
            metadata={"provider": provider, "limit": which, "seconds": f"{seconds:g}"},
        ),
        Fault.FULL,
    )  # fmt: skip


def too_slow(provider: str, which: str, seconds: float) -> ModelError:
    """One of its deadlines has passed; `which` is the field of the policy that holds it."""
    return ModelError(
        DeadlineExceeded(
            ErrorReason.MODEL_TIMEOUT,
            f"the model provider {provider} took longer than {seconds:g} s ({which}); raise it in the policy, or ask "
            "for fewer tokens",
            metadata={"provider": provider, "limit": which, "seconds": f"{seconds:g}"},
        ),
        Fault.SLOW,
    )  # fmt: skip


def too_large(provider: str, limit_bytes: int) -> ModelError:
    """Its response is longer than the policy allows. It would be so again."""
    return ModelError(
        ResourceExhausted(
            ErrorReason.RESULT_TOO_LARGE,
            f"the response of the model provider {provider} is longer than {limit_bytes} bytes (max_response_bytes)",
            metadata={"provider": provider, "limit": "max_response_bytes", "limit_bytes": str(limit_bytes)},
        ),
        Fault.REFUSED,
    )  # fmt: skip


def from_status(
    provider: str, status: int, code: str, retry_after_seconds: float | None, *, secret: str = ""
) -> ModelError:
    """The provider has answered with an HTTP status that is no success.

    Args:
        provider: Its name.
        status: The HTTP status.
        code: The provider's own word for it; empty where there is none.
        retry_after_seconds: When to come back.
        secret: Name of the secret that was sent.
    """
    metadata = {"provider": provider, "http_status": str(status)} | ({"code": code} if code else {})
    said = f"{status} ({code})" if code else str(status)
    if status == 429:
        return ModelError(
            ResourceExhausted(
                ErrorReason.RATE_LIMITED, f"the model provider {provider} limits its rate: {said}", metadata=metadata,
                retry_after_seconds=retry_after_seconds,
            ),
            Fault.BUSY,
        )  # fmt: skip
    if status in (401, 403):
        name = f"the secret {secret}" if secret else "requests without a secret"
        return ModelError(
            FailedPrecondition(
                ErrorReason.MODEL_UNAUTHORIZED, f"the model provider {provider} refuses {name}: {said}",
                metadata=metadata,
            ),
            Fault.REFUSED,
        )  # fmt: skip
    if status in (408, 409, 425) or status >= 500:
        return ModelError(
            Unavailable(
                ErrorReason.MODEL_UNAVAILABLE, f"the model provider {provider} answered {said}", metadata=metadata,
                retry_after_seconds=retry_after_seconds,
            ),
            # 503 and 529 say that it has not begun; of other statuses nobody knows.
            Fault.BUSY if status in (503, 529) else Fault.BROKEN,
        )  # fmt: skip
    return ModelError(_refused(provider, said, metadata), Fault.REFUSED)


def _refused(provider: str, said: str, metadata: Mapping[str, str]) -> ForerunError:
    return InvalidArgument(
        ErrorReason.MODEL_REFUSED,
        f"the model provider {provider} refused the request: {said}; its address, model name and the request's "
        "parameters have to fit it",
        metadata=metadata,
    )
