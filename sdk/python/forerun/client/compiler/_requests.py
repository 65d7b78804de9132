"""Model requests of one run: bounded, repeated in this one place, and each written down with what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from forerun.client._results import Failure
from forerun.client.compiler._model import Model, ModelError, ModelPiece, ModelRequest, Usage
from forerun.client.compiler._results import (
    Basis,
    Bounds,
    Purpose,
    RequestEnd,
    RequestRecord,
    estimated_tokens,
    spent,
)

_BACKOFF_INITIAL_SECONDS: Final = 0.25
_BACKOFF_MAX_SECONDS: Final = 8.0
_CUT: Final = frozenset({"length", "content_filter"})

Take = Callable[[str], Awaitable[None]]


class Unusable(Exception):
    """An answer is not what was asked for.

    Attributes:
        failure: What is wrong with it.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class TokensSpent(Exception):
    """The run has no tokens left for another request."""


@dataclass(slots=True)
class _Attempt:
    """What is known of a request while it runs."""

    number: int
    began_at: float
    first_at: float | None = None
    pieces: int = 0
    chars: int = 0
    finish_reason: str = ""
    usage: Usage | None = None
    billed: bool = True

    def cost(self, request: ModelRequest) -> tuple[Usage, Basis]:
        """Tokens, as far as they can be known."""
        if self.usage is not None:
            return self.usage, Basis.EXACT
        if not self.billed:
            return Usage(0, 0), Basis.EXACT
        prompt = estimated_tokens(sum(len(one.content) for one in request.messages))
        if self.first_at is None:
            return Usage(prompt, 0), Basis.UNKNOWN
        # A provider streams one token or more in each piece.
        return Usage(prompt, max(self.pieces, estimated_tokens(self.chars))), Basis.ESTIMATED


class Requests:
    """Asks models for one run.

    Args:
        bounds: Time, tokens, and how often a request may be repeated.
        deadline_at: Loop time by which the run has to end, or None.
        fraction: Draws from [0, 1), for jitter.
        ended: Told of each attempt at its end.

    Attributes:
        records: The attempts so far.
    """

    def __init__(
        self,
        bounds: Bounds,
        deadline_at: float | None,
        fraction: Callable[[], float],
        ended: Callable[[RequestRecord], None],
    ) -> None:
        self.records: list[RequestRecord] = []
        self._bounds = bounds
        self._deadline_at = deadline_at
        self._fraction = fraction
        self._ended = ended
        self._repeats_left = bounds.repeats

    async def send(
        self,
        model: Model,
        request: ModelRequest,
        *,
        purpose: Purpose,
        round_: int,
        take: Take,
        over: Take,
        restart: Callable[[], bool],
    ) -> None:
        """Asks, and asks again where that may help and nothing of the answer was used.

        Args:
            model: Whom.
            request: What.
            purpose: For the record.
            round_: For the record.
            take: Gets the pieces of the text. What it raises stops the model; `Unusable` is passed on.
            over: Called with the reason for which the answer ended, when it is whole.
            restart: Drops what was taken; False where that is not possible any more.

        Raises:
            ModelError: there is no answer, or only a part of it that was used already.
            Unusable: what `take` or `over` say.
            TokensSpent: the bound on tokens is reached.
        """
        pause, number = _BACKOFF_INITIAL_SECONDS, 0
        while True:
            number += 1
            if spent(self.records).tokens >= self._bounds.tokens:
                raise TokensSpent
            try:
                await self._attempt(model, request, purpose, round_, number, take, over)
                return
            except ModelError as error:
                wait = self._wait(error, pause)
                if wait is None or not restart():
                    raise
                self._repeats_left -= 1
                await asyncio.sleep(wait)
                pause = min(pause * 2, _BACKOFF_MAX_SECONDS)

    def _wait(self, error: ModelError, pause: float) -> float | None:
        """Seconds until the next try, or None where there is none."""
        if not error.transient or not self._repeats_left:
            return None
        wait = max(error.retry_after_seconds or 0.0, pause * (0.5 + self._fraction() / 2))
        now = asyncio.get_running_loop().time()
        return None if self._deadline_at is not None and now + wait >= self._deadline_at else wait

    async def _attempt(
        self, model: Model, request: ModelRequest, purpose: Purpose, round_: int, number: int, take: Take, over: Take
    ) -> None:
        loop = asyncio.get_running_loop()
        attempt = _Attempt(number, loop.time())
        end, reason = RequestEnd.CANCELLED, "cancelled"
        try:
            await self._read(model, request, attempt, take)
            await over(attempt.finish_reason)
            end, reason = RequestEnd.USED, ""
        except Unusable as error:
            end, reason = RequestEnd.UNUSABLE, error.failure.reason
            raise
        except ModelError as error:
            attempt.billed = error.billed
            end, reason = RequestEnd.FAILED, error.reason
            raise
        finally:
            usage, basis = attempt.cost(request)
            record = RequestRecord(
                purpose=purpose,
                round=round_,
                attempt=number,
                end=end,
                reason=reason,
                usage=usage,
                basis=basis,
                seconds=loop.time() - attempt.began_at,
                first_token_seconds=None if attempt.first_at is None else attempt.first_at - attempt.began_at,
            )
            self.records.append(record)
            self._ended(record)

    async def _read(self, model: Model, request: ModelRequest, attempt: _Attempt, take: Take) -> None:
        bounds, loop = self._bounds, asyncio.get_running_loop()
        async with _answer(model, request) as pieces:
            while True:
                silence = bounds.first_token_seconds if attempt.first_at is None else bounds.idle_seconds
                left = attempt.began_at + bounds.request_seconds - loop.time()
                piece = await _next(pieces, min(silence, left), whole=left < silence)
                if piece is None:
                    break
                attempt.usage = piece.usage or attempt.usage
                attempt.finish_reason = piece.finish_reason or attempt.finish_reason
                if piece.text:
                    attempt.first_at = loop.time() if attempt.first_at is None else attempt.first_at
                    attempt.pieces += 1
                    attempt.chars += len(piece.text)
                    await take(piece.text)
        if attempt.finish_reason in _CUT:
            message = f"the answer is cut off: the model stopped early ({attempt.finish_reason})"
            raise Unusable(Failure("MODEL_CUT_OFF", message))


@asynccontextmanager
async def _answer(model: Model, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece | str]]:
    """The pieces of an answer; the model is stopped when nobody reads on."""
    pieces: Any = model(request)
    if hasattr(pieces, "aclose"):
        async with aclosing(pieces):
            yield pieces
    else:
        yield pieces


async def _next(pieces: AsyncIterator[ModelPiece | str], seconds: float, *, whole: bool) -> ModelPiece | None:
    """The next piece, or None at the end.

    Raises:
        ModelError: there is none in time, or the model failed.
    """
    timer = asyncio.timeout(max(0.0, seconds))
    try:
        async with timer:
            piece = await anext(pieces, None)
    except ModelError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and timer.expired():
            what = "the model's answer takes too long" if whole else f"the model was silent for {seconds:g} s"
            raise ModelError("MODEL_TIMEOUT", what, transient=True) from error
        # A callable of the user's: what it raises is its failure, and nothing says that it passes.
        raise ModelError("MODEL_FAILED", f"the model failed: {type(error).__name__}", transient=False) from error
    return ModelPiece(piece) if isinstance(piece, str) else piece
