"""The tool server of a replay: an HTTP server that answers by position, takes its time, and keeps a log of its own.

`POST /{session}/{tool}` with the arguments as JSON body. `session` is the label of a session in an arm, so that every
arm has a world of its own. An answer that was recorded as a failure comes as HTTP 422. Waiting follows the running
loop: real under uvicorn, virtual under a virtual loop with an in-process transport.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.cli.replay.positions import Durations, Epochs, Recording, World, touch

_TOOL_ERROR = 422
_NO_SUCH_SESSION = 404


@dataclass(frozen=True, slots=True)
class Execution:
    """One line of the log.

    Attributes:
        session: Label of the session in its arm.
        tool: The tool.
        arguments: The body that came.
        epochs: The position at which it arrived.
        digest: Digest of the answer.
        started_at: Loop time of the arrival, in seconds.
        ended_at: Loop time of the answer; None where the caller went away before.
        wrote: It moved a position on.
    """

    session: str
    tool: str
    arguments: bytes
    epochs: Epochs
    digest: str
    started_at: float
    ended_at: float | None
    wrote: bool


def label_of(arm: str, number: int) -> str:
    """The label under which the platform and the tool server know a session of an arm."""
    return f"{arm}.{number}"


class ToolServer:
    """The recorded worlds of all arms behind one ASGI application."""

    def __init__(self, recordings: Mapping[int, Recording], durations: Durations) -> None:
        self._recordings = recordings
        self._durations = durations
        self._worlds: dict[str, World] = defaultdict(World)
        self.log: dict[str, list[Execution]] = defaultdict(list)
        self.app = Starlette(routes=[Route("/{session}/{tool}", self._handle, methods=["POST"])])

    async def _handle(self, request: Request) -> Response:
        session, tool = request.path_params["session"], request.path_params["tool"]
        recording = self._recording(session)
        if recording is None:
            return Response(b"no such session", _NO_SUCH_SESSION, media_type="text/plain")
        arguments = await request.body()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        touched = touch(recording.rules, tool, arguments)
        epochs = self._worlds[session].arrive(touched)
        answer = recording.answer(
            tool, arguments, epochs, self._durations.draw(recording.session.name, tool, arguments)
        )
        ended_at: float | None = None
        try:
            await asyncio.sleep(answer.seconds)
            ended_at = loop.time()
        finally:
            self.log[session].append(
                Execution(
                    session=session,
                    tool=tool,
                    arguments=arguments,
                    epochs=epochs,
                    digest=digest(answer.body),
                    started_at=started_at,
                    ended_at=ended_at,
                    wrote=bool(touched.writes),
                )
            )
        return Response(answer.body, _TOOL_ERROR if answer.error else 200, media_type="application/json")

    def _recording(self, label: str) -> Recording | None:
        number = label.rpartition(".")[2]
        return self._recordings.get(int(number)) if number.isdigit() else None

    def logs(self, number: int, *arms: str) -> list[Sequence[Execution]]:
        """What was executed for a session, in each of these arms."""
        return [self.log.get(label_of(arm, number), []) for arm in arms]

    def executions(self, arm: str) -> int:
        """Tool executions of an arm, of every kind."""
        return sum(len(lines) for label, lines in self.log.items() if label.startswith(f"{arm}."))


def digest(body: bytes) -> str:
    """Digest of an answer, as the log keeps it."""
    return hashlib.sha256(body).hexdigest()
