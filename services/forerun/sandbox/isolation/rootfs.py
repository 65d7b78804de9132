"""What of the host a command finds inside a sandbox, and at which places."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forerun.sandbox.isolation.launch import Bind, Overlay

WORKSPACE: Final = "/workspace"
USER_ID: Final = 1000
# What programs need of /etc to start: the loader's cache, names, certificates. Nothing that holds a secret of the host.
_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ca-certificates", "localtime",
               "mime.types", "nsswitch.conf", "services", "protocols")  # fmt: skip
FILES: Final[Mapping[str, bytes]] = {
    "/etc/passwd": b"root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/tmp:/bin/sh\n",
    "/etc/group": b"root:x:0:\nsandbox:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
}
"""Files that are the same in every sandbox, whatever the host has."""


def system_mounts(at: str = "") -> list[str]:
    """The system directories, read only, as options of bwrap.

    Where /bin and friends are links into /usr (as on Debian), so are they inside.

    Args:
        at: Directory that is the sandbox's root; empty is bwrap's own.
    """
    options = ["--ro-bind", "/usr", f"{at}/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), f"{at}{path}"]
        elif path.is_dir():
            options += ["--ro-bind", str(path), f"{at}{path}"]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"{at}/etc/{name}"]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        options += ["--ro-bind", sys.base_prefix, f"{at}{sys.base_prefix}"]
    return [*options, "--dir", f"{at}/run", "--dir", f"{at}/var"]


def workspace_mount(workspace: Bind | Overlay | None, at: str = "") -> list[str]:
    """The workspace, as options of bwrap."""
    target = f"{at}{WORKSPACE}"
    match workspace:
        case Bind(path, read_only):
            return ["--ro-bind" if read_only else "--bind", path, target]
        case Overlay(lower, upper, work):
            below = [option for directory in lower for option in ("--overlay-src", directory)]
            return [*below, "--overlay", upper, work, target]
        case None:
            return []


def directory_of(workspace: Bind | Overlay | None) -> str:
    """Where a command starts."""
    return "/tmp" if workspace is None else WORKSPACE


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
