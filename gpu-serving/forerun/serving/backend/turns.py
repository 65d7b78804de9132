"""Texts are decoded by threads of their own, one at a time but for the passes that they wait for.

A thread asks for its passes itself: with an event loop between it and the server, waking each other, the objects of
tasks and the interpreter's lock cost as much again as the call. What texts share (weights of evidence, histories, the
depth controller) changes only in a turn, so it is as safe as in one thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

from forerun.serving.backend.loop import Step

T = TypeVar("T")


class Turns:
    """Whose turn it is; as a context, a turn.

    Args:
        texts: Decoded at the same time, at most.
    """

    def __init__(self, texts: int) -> None:
        self._turn = threading.Lock()
        self._threads = ThreadPoolExecutor(texts, thread_name_prefix="text")

    def __enter__(self) -> None:
        """Waits for a turn."""
        self._turn.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self._turn.release()

    def away(self, wait: Callable[[], T]) -> T:
        """What `wait` gives. Called in a turn, which ends while this waits: others have theirs meanwhile."""
        self._turn.release()
        try:
            return wait()
        finally:
            self._turn.acquire()

    async def steps(self, passes: Generator[Step, None, None]) -> AsyncGenerator[Step, None]:
        """What `passes` gives, while a thread is ahead with the next pass, and with no other one.

        So what it takes to tell a client of a step is hidden behind a pass, and no text runs away from its client. Who
        closes this early waits for that pass.
        """
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Step | None] = asyncio.Queue()  # two steps at most
        handled: SimpleQueue[None] = SimpleQueue()
        handled.put(None)
        left = threading.Event()

        def decode() -> None:
            try:
                with self, closing(passes):
                    for step in passes:
                        loop.call_soon_threadsafe(told.put_nowait, step)
                        self.away(handled.get)  # that of the step before
                        if left.is_set():
                            return
            finally:
                loop.call_soon_threadsafe(told.put_nowait, None)

        decoding = loop.run_in_executor(self._threads, decode)
        try:
            while (step := await told.get()) is not None:
                yield step
                handled.put(None)
        finally:
            left.set()
            handled.put(None)
            await asyncio.wait([decoding])
            failure = None if decoding.cancelled() else decoding.exception()
        if failure is not None:  # who has left early does not want to hear how the pass ended
            raise failure

    def end(self) -> None:
        """No further text is decoded."""
        self._threads.shutdown(wait=False, cancel_futures=True)
