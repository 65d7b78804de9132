"""A level is available only after it has run a real command on this machine."""

from __future__ import annotations

import tempfile
import time

from forerun.sandbox.isolation.launch import Launch, SetupFailed, read_some
from forerun.sandbox.isolation.levels import Isolation
from forerun.sandbox.isolation.rootfs import base_environment


async def tried(isolation: Isolation) -> tuple[str | None, float]:
    """Runs `true`. None, or why it did not work; and the seconds that it took."""
    began = time.perf_counter()  # noqa: TID251  (a measurement, of this machine)
    with tempfile.TemporaryDirectory(prefix="forerun-trial-") as scratch:
        launch = Launch(
            argv=("true",), environment=base_environment(), workspace=None, scratch=scratch, stdin=None,
            file_bytes=1 << 20, cpu_seconds=10, pids=64, memory_bytes=64 << 20,
        )  # fmt: skip
        try:
            child = await isolation.start(launch)
        except SetupFailed as error:
            return str(error), 0.0
        try:
            await child.ended()
            code = await child.settle()
            said = (await read_some(child.stderr)).decode("utf-8", "replace").strip()
        finally:
            await child.close()
    if code == 0:
        return None, time.perf_counter() - began  # noqa: TID251
    return f"the trial command failed: {said or f'it ended with code {code}'}", 0.0
