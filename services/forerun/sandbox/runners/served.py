"""The gRPC face of a runner: who has it, and the commands that run in it."""

from __future__ import annotations

import asyncio
import errno
import hmac
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc.aio

from forerun.runtime.errors import (
    AlreadyExists,
    ErrorReason,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from forerun.sandbox.commands.runner import CommandResult, CommandRunner, GuardLost
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.isolation.trial import tried
from forerun.sandbox.runners.host import end_strays
from forerun.sandbox.runners.messages import SETUP_FAILURE_CHARACTERS, ended_message, output_messages, plan_of
from forerun.sandbox.runners.tree import Mark, TreeWriter, WrongTree, marks, packed
from forerun.sandbox.workspaces.disk import in_thread, remove
from forerun.sandbox.workspaces.trees import Budget, names, opened, remove_entry
from forerun.v1 import runner_pb2, runner_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]
_Requests = AsyncIterator[runner_pb2.RunRequest]

_CLAIM_BYTES: Final = 16
# More commands of one session at once than any worker has slots for by default.
_MOST_COMMANDS: Final = 256


class RunnerServicer(runner_pb2_grpc.RunnerServiceServicer):
    """Serves `RunnerService`. Who calls has proven by its certificate that it is a worker.

    Args:
        runner: Runs commands at the strongest level that works in here.
        trees: Directory of the workspaces.
        emptied: Directories that commands can write to, beside their own.
        taken: Told when a session has taken the runner.
        ended: Told when that session has let go of it: the process has nothing more to do.
    """

    def __init__(
        self, runner: CommandRunner, trees: Path, *, emptied: Sequence[Path], taken: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self._runner = runner
        self._trees = trees
        self._emptied = tuple(emptied)
        self._taken = taken
        self._ended = ended
        self._claim: bytes | None = None
        self._over = False
        """No command is accepted any more."""
        self._broken = False
        """None is begun any more, also of those that were accepted."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._let_go = asyncio.Event()
        self._running: dict[asyncio.Task[CommandResult], None] = {}
        self._places: set[int] = set()
        self._gate = asyncio.Lock()

    async def Try(  # noqa: N802
        self, request: runner_pb2.TryRequest, context: _Context
    ) -> runner_pb2.TryResponse:
        """Runs `true`."""
        isolation = self._runner.isolation
        async with self._place():
            why, seconds = await tried(isolation)
        if why is not None:
            raise FailedPrecondition(ErrorReason.ISOLATION_UNAVAILABLE, f"no command runs in this runner: {why}")
        return runner_pb2.TryResponse(isolation=isolation.name.value, gives=isolation.gives, seconds=seconds)

    async def Take(  # noqa: N802
        self, request: runner_pb2.TakeRequest, context: _Context
    ) -> AsyncGenerator[runner_pb2.TakeResponse, None]:
        """Gives the runner to the first who asks, for as long as the stream is open."""
        if len(request.claim) < _CLAIM_BYTES:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the claim is too short", metadata={"field": "claim"})
        if self._claim is not None:
            raise AlreadyExists(ErrorReason.ALREADY_EXISTS, "another session has taken this runner")
        self._claim = request.claim
        try:
            await self._taken()
            yield runner_pb2.TakeResponse()
            await self._let_go.wait()
        finally:
            await to_the_end(self._end())

    async def drain(self, grace_seconds: float) -> None:
        """Takes no more commands, waits for those that run, and lets go of the session."""
        self._over = True
        try:
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            pass  # what still runs is killed with the session
        self._let_go.set()

    async def Run(  # noqa: N802
        self, request_iterator: _Requests, context: _Context
    ) -> AsyncGenerator[runner_pb2.RunResponse, None]:
        """Runs a command."""
        requests = aiter(request_iterator)
        announced = (await anext(requests)).command
        if self._claim is None or not hmac.compare_digest(announced.claim, self._claim):
            raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, "this runner belongs to another session")
        ended = None
        async with self._place() as number:
            tree = self._trees / str(number)
            yield runner_pb2.RunResponse(accepted=runner_pb2.RunAccepted())
            try:
                async with aclosing(self._received_and_run(requests, tree, announced.has_workspace)) as responses:
                    async for response in responses:
                        if response.HasField("ended"):
                            ended = response
                        else:
                            yield response
            finally:
                await in_thread(remove, tree)
        if ended is not None:  # said last: nothing of the command is alive, and its place is free
            yield ended

    async def _received_and_run(
        self, requests: _Requests, tree: Path, has_workspace: bool
    ) -> AsyncGenerator[runner_pb2.RunResponse, None]:
        try:
            received = await self._receive(requests, tree, wanted=has_workspace)
        except SetupFailed as error:
            yield _not_set_up(error)
            return
        if received is None:
            yield runner_pb2.RunResponse(ended=runner_pb2.RunEnded())
            return
        command, before = received
        async with aclosing(self._run(command, requests, tree, before)) as responses:
            async for response in responses:
                yield response

    async def _receive(
        self, requests: _Requests, tree: Path, *, wanted: bool
    ) -> tuple[runner_pb2.RunCommand, dict[bytes, Mark]] | None:
        """Writes the workspace; the command and what is there, or None where the caller takes the command back.

        One that cannot be written is heard to its end: a call that ends while its caller still writes hides why.

        Raises:
            SetupFailed: It cannot be written here.
        """
        if wanted:
            await in_thread(lambda: tree.mkdir(mode=0o755))
        # Workers bound what a workspace holds, and the pod what its disk does.
        writer, refused = TreeWriter(str(tree), Budget(sys.maxsize, sys.maxsize)), ""
        command: runner_pb2.RunCommand | None = None
        try:
            async for request in requests:
                match request.WhichOneof("part"):
                    case "workspace" if wanted:
                        refused = refused or await in_thread(_refused, partial(writer.write, request.workspace))
                    case "command" if command is None:
                        command = request.command
                    case "begin" if command is not None:
                        refused = refused or await in_thread(_refused, writer.finish)
                        if refused:
                            raise SetupFailed(f"the runner cannot hold the workspace: {refused}")
                        return command, await in_thread(marks, str(tree)) if wanted else {}
                    case _:
                        return None
            return None
        finally:
            writer.close()

    async def _run(
        self, command: runner_pb2.RunCommand, requests: _Requests, tree: Path, before: dict[bytes, Mark]
    ) -> AsyncGenerator[runner_pb2.RunResponse, None]:
        if self._broken:
            raise _over()
        plan = plan_of(command, str(tree) if command.has_workspace else None)
        plan = replace(plan, watched=(*plan.watched, *map(str, self._emptied)))
        task = asyncio.ensure_future(self._runner.run(plan))
        self._running[task] = None
        try:
            try:
                result = await _unless_stopped(task, requests)
            finally:
                del self._running[task]
        except SetupFailed as error:
            yield _not_set_up(error)
            return
        except GuardLost:
            await self._break_up()
            yield runner_pb2.RunResponse(ended=runner_pb2.RunEnded(guard_lost=True))
            return
        if result is None:
            yield runner_pb2.RunResponse(ended=runner_pb2.RunEnded())
            return
        for response in output_messages(result):
            yield response
        if command.has_workspace and not command.read_only and result.limit is None:
            parts = packed(str(tree), before)
            while (part := await in_thread(next, parts, None)) is not None:
                yield runner_pb2.RunResponse(changes=part)
        yield ended_message(result)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[int]:
        """The place of one command; when the last one leaves, nothing that any has started is alive.

        The lowest that is free, so that commands one after the other find themselves at the same one.
        """
        async with self._gate:  # never while strays are being ended
            if self._over:
                raise _over()
            number = next((number for number in range(_MOST_COMMANDS) if number not in self._places), None)
            if number is None:
                raise ResourceExhausted(ErrorReason.QUEUE_FULL, f"{_MOST_COMMANDS} commands run in this runner already")
            self._places.add(number)
            self._idle.clear()
        try:
            yield number
        finally:
            await to_the_end(self._leave(number))

    async def _leave(self, number: int) -> None:
        async with self._gate:
            self._places.discard(number)
            if not self._places:
                await end_strays()
                for directory in self._emptied:
                    await in_thread(_empty, directory)
                self._idle.set()

    async def _break_up(self) -> None:
        """A command has killed its guard: what else it did in here nobody knows, so the session gets another runner."""
        self._over = self._broken = True
        await self._end_commands()
        await end_strays()
        self._let_go.set()

    async def _end(self) -> None:
        """The session is over: so is everything that runs, and then this process."""
        self._over = self._broken = True
        await self._end_commands()
        self._ended()

    async def _end_commands(self) -> None:
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running))


def _over() -> Unavailable:
    return Unavailable(ErrorReason.SHUTTING_DOWN, "this runner has ended with its session")


def _refused(work: Callable[[], None]) -> str:
    """Why a step of writing a workspace cannot be done; empty where it was."""
    try:
        work()
    except WrongTree as error:
        return str(error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return f"its disk is full ({error.strerror}); see runners.scratchSize of the chart"
    return ""


def _not_set_up(error: SetupFailed) -> runner_pb2.RunResponse:
    return runner_pb2.RunResponse(ended=runner_pb2.RunEnded(setup_failure=str(error)[:SETUP_FAILURE_CHARACTERS]))


def _empty(directory: Path) -> None:
    with opened(str(directory)) as found:
        for name in names(found):
            remove_entry(found, name)


async def _unless_stopped(task: asyncio.Task[CommandResult], requests: _Requests) -> CommandResult | None:
    """The result of a command; None where its caller stopped it. Nothing of it is alive then."""
    stop = asyncio.ensure_future(_stopped(requests))
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return None if task.cancelled() else task.result()
        return None
    finally:
        stop.cancel()
        if not task.done():
            task.cancel()
            await to_the_end(asyncio.wait([task]))


async def _stopped(requests: _Requests) -> None:
    """Returns when the caller says stop, or nothing more. Before that comes only what it has said already."""
    async for request in requests:
        if request.WhichOneof("part") == "stop":
            return
    # The caller has said all that it will say, and listens.
    await asyncio.get_running_loop().create_future()
