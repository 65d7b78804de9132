"""Tools that are commands in a sandbox, in the session's workspace.

The observation is what the command printed: its standard output; where it also wrote to standard error, that follows
under a line `[stderr]`. A non-zero exit is an answer too: it marks the observation as the tool's own error, is named in
the media type (`exit=1`), and is told in a last line `[exit code 1]` unless the output is JSON alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from forerun.core.canonical import JsonValue
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.sandbox.commands.runner import CommandPlan, CommandResult, CommandRunner, GuardLost
from forerun.sandbox.connectors.port import Ended, Invocation, Result, Sink, ToolFault, text_media_type
from forerun.sandbox.connectors.templates import fill_argv, session_text, text_of
from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.isolation.levels import Isolation, Ladder, LevelName
from forerun.sandbox.isolation.limits import ERROR_REASONS, CommandLimits, LimitReason
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.remote import Denied
from forerun.sandbox.tools import CommandEndpoint, Server
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.workspace import View, Workspace

_LONGEST_SECONDS: Final = 24 * 3600.0


class Runner(Protocol):
    """Runs commands at one isolation level."""

    async def run(self, plan: CommandPlan) -> CommandResult:
        """Runs a command; when this returns or raises, nothing of it is alive."""
        ...


MakeRunner = Callable[[Isolation, str], Runner]


class Pods(Runner, Protocol):
    """Runs commands of each session in a place of its own, which is not on this machine."""

    async def close_session(self, owner: Owner) -> None:
        """Ends the place of a session. Idempotent."""
        ...

    async def close(self) -> None:
        """Ends them all."""
        ...


class CommandConnector:
    """Runs tools as commands.

    Args:
        ladder: Isolation of this machine.
        workspaces: Where they work.
        scratch_root: Directory for the commands' /tmp.
        max_bytes: Longest output of both streams together.
        make_runner: Makes what runs commands at one level, in a scratch directory.
        pods: What runs commands at level `pod`, where that is on the ladder.
        reach_out: Commands at level `pod` may reach something over the network.
        trusted: Servers whose commands may run at level `process`, whatever is in use.
    """

    def __init__(
        self,
        ladder: Ladder,
        workspaces: Workspaces,
        scratch_root: str,
        *,
        max_bytes: int,
        make_runner: MakeRunner = CommandRunner,
        pods: Pods | None = None,
        reach_out: bool = False,
        trusted: Collection[str] = (),
    ) -> None:
        self._ladder = ladder
        self._workspaces = workspaces
        here = ladder.without(LevelName.POD).usable
        self._runners = {name: make_runner(isolation, scratch_root) for name, isolation in here.items()}
        self._pods = pods
        if pods is not None:
            self._runners[LevelName.POD] = pods
        self._reach_out = reach_out
        self._trusted = frozenset(trusted)
        self._max_bytes = max_bytes

    async def call(self, invocation: Invocation, sink: Sink) -> Result:
        """Runs a tool in the fork of the invocation, or reading the workspace.

        Raises:
            ToolFault: A limit ended it, or the sandbox did not come up.
            FailedPrecondition: `min_isolation` cannot be met.
            NotFound: The fork does not exist.
        """
        endpoint = invocation.tool.endpoint
        assert isinstance(endpoint, CommandEndpoint)
        server = invocation.tool.server
        level = self._level(server)
        argv = fill_argv(tuple(endpoint.argv), invocation)
        workspace = await self._workspaces.of(
            invocation.owner, Path(server.workspace_seed) if server.workspace_seed else None,
            expected=invocation.expects_state,
        )  # fmt: skip
        limits = replace(
            endpoint.limits,
            output_bytes=invocation.output_cap_bytes,
            output_total_bytes=self._max_bytes,
            # The worker ends a call at its deadline, which a promotion may move; no limit in here may be earlier.
            wall_seconds=_LONGEST_SECONDS,
            cpu_seconds=_LONGEST_SECONDS if endpoint.cpu_follows_timeout else endpoint.limits.cpu_seconds,
        )
        environment = {
            "FORERUN_SESSION": invocation.session_label or invocation.session,
            **{name: session_text(value, invocation) for name, value in endpoint.environment.items()},
        }
        async with _view(workspace, invocation) as view:
            plan = CommandPlan(
                argv=argv, environment=environment, workspace=view.mount, watched=view.watched,
                stdin=_stdin(endpoint, invocation), limits=limits, owner=invocation.owner,
                demand=invocation.demand,
            )  # fmt: skip
            try:
                result = await self._runners[level].run(plan)
            except SetupFailed as error:
                raise ToolFault(
                    Ended.UNAVAILABLE,
                    ErrorReason.TOOL_FAILED,
                    f"the sandbox did not come up: {error}",
                    # A runner may lie: then the command has run, and only what it could not reach is untouched.
                    not_started=not (isinstance(error, Denied) and self._reach_out),
                ) from error
            except GuardLost as error:
                raise ToolFault(Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"{error}: it may have run") from error
        if result.limit is not None:
            raise _over_limit(result.limit, limits, invocation)
        return _observation(result)

    def ends_with_call(self, invocation: Invocation) -> bool:
        """Whether killing it is the end: where it could change its fork only, or had no network to ask others over."""
        try:
            level = self._level(invocation.tool.server)
        except FailedPrecondition:
            return True  # nothing ran
        if level is LevelName.POD:
            return not self._reach_out
        return bool(invocation.fork) or level is not LevelName.PROCESS

    async def close_session(self, owner: Owner) -> None:
        """Drops the session's workspace, and ends its pod."""
        if self._pods is not None:
            await self._pods.close_session(owner)
        await self._workspaces.close(owner)

    async def close(self) -> None:
        """Ends all pods; nothing else is kept between calls."""
        if self._pods is not None:
            await self._pods.close()

    def _level(self, server: Server) -> LevelName:
        """Where commands of a server run.

        Raises:
            FailedPrecondition: Nothing here is as strong as it asks for.
        """
        trusted = server.name in self._trusted and server.min_isolation is LevelName.PROCESS
        return LevelName.PROCESS if trusted else self._ladder.choose(server.min_isolation).name


def _view(workspace: Workspace, invocation: Invocation) -> AbstractAsyncContextManager[View]:
    return workspace.use(invocation.fork) if invocation.fork else workspace.read()


def _stdin(endpoint: CommandEndpoint, invocation: Invocation) -> bytes | None:
    missing: JsonValue = None
    if not endpoint.stdin_argument:
        return None
    value = invocation.arguments.get(endpoint.stdin_argument, missing)
    return None if value is None else text_of(value).encode()


def _over_limit(limit: LimitReason, limits: CommandLimits, invocation: Invocation) -> ToolFault:
    allowed = {
        LimitReason.MEMORY: f"{limits.memory_bytes} bytes of memory",
        LimitReason.PIDS: f"{limits.pids} processes",
        LimitReason.CPU: f"{limits.cpu_seconds:g} CPU seconds",
        LimitReason.DISK: f"{limits.disk_bytes} bytes on disk",
        LimitReason.OUTPUT: f"{limits.output_total_bytes} bytes of output",
        LimitReason.TIME: f"{limits.wall_seconds:g} s",
    }[limit]
    # Of a call without a fork nothing is known: what it did elsewhere stays.
    dropped = " and its changes to the workspace were dropped" if invocation.fork else ""
    return ToolFault(
        Ended.TIMEOUT if limit is LimitReason.TIME else Ended.REJECTED, ERROR_REASONS[limit],
        f"{limit.value}: {invocation.tool.name} may use {allowed}; it was ended{dropped}",
        metadata={"limit": limit.value, "tool": invocation.tool.name},
    )  # fmt: skip


def _observation(result: CommandResult) -> Result:
    out, err, code = result.stdout.text, result.stderr.text, result.exit_code
    content = out.encode()
    media_type = text_media_type(content)
    if err or media_type != "application/json":
        media_type = "text/plain; charset=utf-8"
        text = out
        if err:
            text = _on_new_line(text) + f"[stderr]\n{err}"
        if code != 0:
            text = _on_new_line(text) + f"[exit code {code}]\n"
        content = text.encode()
    replaced = result.stdout.replaced_bytes + result.stderr.replaced_bytes
    if replaced:
        media_type += f"; replaced={replaced}"
    if code != 0:
        media_type += f"; exit={code}"
    return Result(content, media_type, tool_error=code != 0, cpu_seconds=result.cpu_seconds, capped=True)


def _on_new_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
