"""What a command in gVisor uses, as the kernel that it runs on counts it.

From outside only that kernel's own processes are seen, and a file in memory that holds all of the command's. runsc's
control socket answers the question that `runsc events` asks in 0.2 ms, without a process.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Final

from forerun.sandbox.isolation.usage import Usage

STATE: Final = "/run"
"""Where runsc keeps its state and its control socket, inside its namespace."""
CONTAINER: Final = "c"
"""Its name for the one container of that namespace."""
_REQUEST: Final = json.dumps({"method": "containerManager.Event", "arg": CONTAINER}).encode()
_ANSWER_SECONDS: Final = 2.0
_ANSWER_BYTES: Final = 64 * 1024
_NANOSECONDS: Final = 1e9
_NOTHING: Final = Usage(0, 0.0, 0)


class SentryMeter:
    """Asks the kernel of one sandbox. Before it has come up, and when it does not answer, nothing is known."""

    async def look(self, root_pid: int, *, most: int) -> Usage:
        """What its guest uses; `root_pid` is a process that sees the control socket."""
        # Hangs up after each answer: a sandbox waits for its callers before it ends.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    # Through the namespace's own root, where no other process can put a link in the way.
                    connection.connect(f"/proc/{root_pid}/root{STATE}/runsc-{CONTAINER}.sock")
                    return _usage(await _answer(connection))
            except (OSError, ValueError, KeyError, TypeError, TimeoutError):
                return _NOTHING


async def _answer(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, _REQUEST)
    answer = b""
    while chunk := await loop.sock_recv(connection, _ANSWER_BYTES):
        answer += chunk
        # The connection stays open after an answer, and nothing says where it ends but its outermost bracket.
        if answer.count(b"{") == answer.count(b"}") or len(answer) > _ANSWER_BYTES:
            return answer
    return answer


def _usage(answer: bytes) -> Usage:
    result = json.loads(answer)["result"]
    return Usage(
        tasks=int(result["event"]["data"]["pids"].get("current", 0)),
        cpu_seconds=sum(result["containerUsage"].values()) / _NANOSECONDS,
        memory_bytes=int(result["event"]["data"]["memory"]["usage"].get("usage", 0)),
    )
