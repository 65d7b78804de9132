"""The first process of a node: `init.py PLAN`. Runs in mount and process namespaces of its own.

When it ends the kernel ends everything in the node, and its mounts go with the namespace: there is no other clean-up.
`PLAN` is a JSON file with `socket` of containerd, `logs` (a folder), `mounts` (arguments of mount), `folders` to make
and `services` (a command for each name). The service `containerd` starts first; the others start when its CRI plugin
works, and each is started again when it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.1
_PLUGIN_SECONDS = 60.0
# kubelet ends when the runtime is not ready for it, and must not use the whole processor by doing so.
_RESTART_SECONDS = 0.5


def main(plan: dict[str, Any]) -> None:
    """Mounts, starts everything, and keeps it running."""
    for arguments in plan["mounts"]:
        subprocess.run(["mount", *arguments], check=True)
    for folder in plan["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    services: dict[str, list[str]] = plan["services"]
    running = {_start("containerd", services.pop("containerd"), plan["logs"]): "containerd"}
    _wait_for_plugin(plan["socket"])
    for name, command in services.items():
        running[_start(name, command, plan["logs"])] = name
    while True:
        # Also reaps what containerd's shims leave behind.
        ended, _ = os.wait()
        if ended in running:
            again = running.pop(ended)
            if again == "containerd":
                sys.exit("containerd has ended")
            time.sleep(_RESTART_SECONDS)
            running[_start(again, services[again], plan["logs"])] = again


def _start(name: str, command: list[str], logs: str) -> int:
    with (Path(logs) / f"{name}.log").open("ab") as log:
        # Not kept as an object: `os.wait` above takes the exit status of whatever ends.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    child.returncode = 0
    return child.pid


def _wait_for_plugin(socket: str) -> None:
    deadline = time.monotonic() + _PLUGIN_SECONDS
    while time.monotonic() < deadline:
        listed = subprocess.run(["ctr", "-a", socket, "plugins", "ls"], capture_output=True, text=True, check=False)
        if any(
            line.split()[1:2] == ["cri"] and line.endswith("ok") for line in map(str.rstrip, listed.stdout.splitlines())
        ):
            return
        time.sleep(_POLL_SECONDS)
    sys.exit("containerd's CRI plugin does not come up")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
