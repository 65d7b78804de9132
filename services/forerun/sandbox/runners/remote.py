"""A runner as its worker sees it: taken for one session, commands in it, and its end.

What comes from a runner is taken for what a command says: a command may have become its runner.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ForerunError, ResourceExhausted, Unavailable
from forerun.runtime.network import NetworkOptions, rpc_errors
from forerun.runtime.network_grpc import channel_options
from forerun.runtime.tls import Tls
from forerun.sandbox.commands.runner import CommandPlan, CommandResult, GuardLost
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.isolation.launch import Bind, Overlay, SetupFailed
from forerun.sandbox.isolation.limits import LimitReason
from forerun.sandbox.runners.messages import (
    LIMITS,
    SETUP_FAILURE_CHARACTERS,
    WrongEnd,
    announcement,
    command_message,
    result_of,
)
from forerun.sandbox.runners.tree import TreeWriter, WrongTree, packed
from forerun.sandbox.workspaces.disk import in_thread
from forerun.sandbox.workspaces.trees import Budget
from forerun.v1 import runner_pb2, runner_pb2_grpc

_TAKE_SECONDS: Final = 5.0
# From "stop" to the word that nothing of a command is alive; longer than a runner waits for the kernel.
_STOP_SECONDS: Final = 15.0
_MARGIN_SECONDS: Final = 60.0
# Marks of what was left out, and characters that are longer than the bytes they stand for.
_OUTPUT_FACTOR: Final = 3
_SPARE_BYTES: Final = 1024 * 1024


class Lost(Exception):
    """The runner is gone, or answers nonsense.

    Attributes:
        begun: It was told the command, which may have run, whatever it says.
    """

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Denied(SetupFailed):
    """The runner, which was told the command, says that it did not start."""


async def tried(address: str, tls: Tls) -> runner_pb2.TryResponse:
    """Has a runner run `true`. It stays free.

    Raises:
        ForerunError: It cannot be reached, or cannot run commands.
    """
    channel = _channel(address, tls)
    try:
        with rpc_errors():
            answer: runner_pb2.TryResponse = await runner_pb2_grpc.RunnerServiceStub(channel).Try(
                runner_pb2.TryRequest(), timeout=_TAKE_SECONDS
            )
            return answer
    finally:
        await channel.close()


class Remote:
    """A runner that is taken.

    Attributes:
        address: Where it is.
        lost: It is over: it has ended, was let go of, or cannot be reached.
    """

    def __init__(self, address: str, channel: grpc.aio.Channel, claim: bytes, held: Any) -> None:
        self.address = address
        self.lost = asyncio.Event()
        self._channel = channel
        self._claim = claim
        self._held = held
        self._watching = asyncio.ensure_future(self._watch())

    @classmethod
    async def take(cls, address: str, tls: Tls, claim: bytes) -> Remote:
        """Takes a runner.

        Raises:
            ForerunError: It cannot be reached, or somebody else has taken it.
        """
        channel = _channel(address, tls)
        try:
            held = runner_pb2_grpc.RunnerServiceStub(channel).Take(runner_pb2.TakeRequest(claim=claim))
            try:
                with rpc_errors():
                    async with asyncio.timeout(_TAKE_SECONDS):
                        first = await held.read()
            except TimeoutError as error:
                raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "the runner does not answer") from error
            if not isinstance(first, runner_pb2.TakeResponse):
                raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "the runner has ended")
        except BaseException:
            await to_the_end(channel.close())
            raise
        return cls(address, channel, claim, held)

    async def run(self, plan: CommandPlan) -> CommandResult:
        """Runs a command. When this returns or raises, nothing of it is alive, or it is cut off from everything.

        Raises:
            Lost: The runner went away meanwhile.
            SetupFailed: Commands of this kind cannot be sent to it; this one has certainly not started.
            Denied: No command can be isolated in it, as it says.
            GuardLost: It ran, and killed what watched over it.
        """
        if isinstance(plan.workspace, Overlay):
            raise SetupFailed("overlay workspaces are mounted on this worker, and runners are elsewhere")
        if self.lost.is_set():
            raise Lost("the runner has ended", begun=False)
        attended = _Attended(runner_pb2_grpc.RunnerServiceStub(self._channel), plan, self._claim)
        # A task of its own: cancelling a read or a write of a call cancels the call, and nobody says how it ended.
        task = asyncio.ensure_future(attended.attend())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not await to_the_end(attended.stopped(task)):
                await to_the_end(self.end())
            raise

    async def end(self) -> None:
        """Lets go of it; what runs in it is killed, and it serves nobody any more. Idempotent."""
        self.lost.set()
        self._held.cancel()
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._channel.close()

    async def _watch(self) -> None:
        try:
            with suppress(grpc.aio.AioRpcError):
                await self._held.read()
        finally:
            self.lost.set()  # however it ends: nobody would look any more


class _Attended:
    """One command on its way."""

    def __init__(self, stub: Any, plan: CommandPlan, claim: bytes) -> None:
        self._plan = plan
        self._claim = claim
        self._call = stub.Run(timeout=plan.limits.wall_seconds + _MARGIN_SECONDS)
        self._stopping = False
        self._sending = True
        self._begun = False
        self._sent_bytes = 0
        self._output = {False: bytearray(), True: bytearray()}

    async def attend(self) -> CommandResult:
        try:
            with rpc_errors():
                await self._send()
                return await self._receive()
        except ForerunError as error:
            raise Lost(f"the runner was lost: {error.message}", begun=self._begun) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Lost("the runner was let go of", begun=self._begun) from error  # its channel was closed
        except (WrongTree, WrongEnd) as error:
            raise Lost(f"the runner was lost: {error}", begun=self._begun) from error
        finally:
            self._call.cancel()  # no more than a formality where it has ended

    async def stopped(self, task: asyncio.Future[CommandResult]) -> bool:
        """Stops the command; False where nobody says that it has ended."""
        self._stopping = True
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if not self._sending and not task.done():
                    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await self._call.write(runner_pb2.RunRequest(stop=runner_pb2.RunStop()))
                await asyncio.wait([task])
        except TimeoutError:
            task.cancel()
            await asyncio.wait([task])
            return False
        return not isinstance(task.exception(), Lost)

    async def _send(self) -> None:
        call = self._call
        await call.write(runner_pb2.RunRequest(command=announcement(self._plan, self._claim)))
        # A write to a call that was refused hides why. So nothing more is said before this is heard.
        accepted = await call.read()
        if not isinstance(accepted, runner_pb2.RunResponse) or not accepted.HasField("accepted"):
            raise Lost("the runner does not accept commands", begun=False)
        if isinstance(self._plan.workspace, Bind):
            parts = packed(self._plan.workspace.path)
            while not self._stopping and (part := await in_thread(next, parts, None)) is not None:
                self._sent_bytes += part.ByteSize()
                await call.write(runner_pb2.RunRequest(workspace=part))
        if not self._stopping:
            # Not earlier: a runner that has no room, or is stopping, says so before it knows what there is to run.
            self._begun = True
            await call.write(runner_pb2.RunRequest(command=command_message(self._plan, self._claim)))
            await call.write(runner_pb2.RunRequest(begin=runner_pb2.RunBegin()))
        self._sending = False
        if self._stopping:
            await call.write(runner_pb2.RunRequest(stop=runner_pb2.RunStop()))

    async def _receive(self) -> CommandResult:
        writer = self._writer()
        try:
            while True:
                response = await self._call.read()
                if not isinstance(response, runner_pb2.RunResponse):
                    raise Lost("the runner ended before its command", begun=self._begun)
                match response.WhichOneof("step"):
                    case "output":
                        if self._too_much(response.output):
                            return self._over(LimitReason.OUTPUT)
                    case "changes" if writer is not None and not self._stopping:
                        await in_thread(writer.write, response.changes)
                    case "ended":
                        return await self._ended(response.ended, writer)
                    case _ if not self._stopping:
                        raise Lost("the runner answers what it was not asked", begun=self._begun)
        except ResourceExhausted:
            return self._over(LimitReason.DISK)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return self._over(LimitReason.DISK)
        finally:
            if writer is not None:
                writer.close()

    def _writer(self) -> TreeWriter | None:
        """Takes the changes; as many as an honest command could have made."""
        workspace = self._plan.workspace
        if not isinstance(workspace, Bind) or workspace.read_only:
            return None
        most = self._plan.limits.disk_bytes + self._sent_bytes + _SPARE_BYTES
        return TreeWriter(workspace.path, Budget(limits.WORKSPACE_FILES * 2, most))

    async def _ended(self, ended: runner_pb2.RunEnded, writer: TreeWriter | None) -> CommandResult:
        if ended.setup_failure:
            raise Denied(ended.setup_failure[:SETUP_FAILURE_CHARACTERS])
        if ended.guard_lost:
            raise GuardLost("the process that watches over the command was killed")
        result = result_of(ended, bytes(self._output[False]), bytes(self._output[True]))
        if result.exit_code is None and result.limit is None and not self._stopping:
            raise Lost("the runner gave its command no end", begun=self._begun)
        if writer is not None and result.limit is None and not self._stopping:
            await in_thread(writer.finish)
        return result

    def _too_much(self, output: runner_pb2.RunOutput) -> bool:
        self._output[output.error] += output.data
        held = sum(len(stream) for stream in self._output.values())
        return held > _OUTPUT_FACTOR * self._plan.limits.output_total_bytes + _SPARE_BYTES

    def _over(self, limit: LimitReason) -> CommandResult:
        return result_of(runner_pb2.RunEnded(limit=LIMITS[limit]), b"", b"")


def _channel(address: str, tls: Tls) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        address, tls.channel_credentials(), options=[*channel_options(NetworkOptions()), *tls.channel_options()]
    )
