"""The first process of a command at level `process`: runs it, reaps every orphan, and leaves nothing alive.

Started as a script (`python -I -S reaper.py FD`) with a plan on descriptor FD. It makes itself the reaper of all its
descendants, so that a daemon that detaches itself comes back to it; when the command ends, or when the owner closes the
gate (or dies, which closes it too), it kills what is left until there is nothing left. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_EXEC_NOT_FOUND: Final = 127
_EXEC_REFUSED: Final = 126
_KILL_PAUSE_SECONDS: Final = 0.002


def main(plan_descriptor: int) -> None:
    """Runs the plan."""
    with os.fdopen(plan_descriptor, "rb") as file:
        plan = json.load(file)
    status: int = plan["status"]
    gate: int = plan["gate"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(status, json.dumps({"child-pid": os.getpid()}).encode() + b"\n")
    if not os.read(gate, 1):
        return
    leader = os.fork()
    if leader == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _execute(plan["argv"], plan["environment"], plan["directory"], closing=(status, gate))
    # Only the command writes to these: their readers see the end when it and its children are gone.
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    code = _attend(leader, wake, gate)
    _kill_all(leader)
    if code is not None:
        os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")


def _execute(argv: list[str], environment: dict[str, str], directory: str, *, closing: tuple[int, ...]) -> None:
    for descriptor in closing:
        os.close(descriptor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.setsid()
        os.chdir(directory)
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode())
        os._exit(_EXEC_NOT_FOUND)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(_EXEC_REFUSED)


def _attend(leader: int, wake: int, gate: int) -> int | None:
    """Reaps until the leader ends; its exit code, or None where the gate closed first."""
    while True:
        ready, _, _ = select.select([wake, gate], [], [])
        if gate in ready and not os.read(gate, 1):
            return None
        if wake in ready:
            os.read(wake, 4096)
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == leader:
                code = os.waitstatus_to_exitcode(ended)
                return code if code >= 0 else 128 - code


def _kill_all(leader: int) -> None:
    """Kills and reaps until no descendant is left."""
    with contextlib.suppress(ProcessLookupError):
        # A group is killed in one step that no fork can outrun; most commands never leave their leader's group.
        os.killpg(leader, signal.SIGKILL)
    while True:
        for pid in _descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], _KILL_PAUSE_SECONDS)


def _descendants() -> list[int]:
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        pid = pending.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                pending += children
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
