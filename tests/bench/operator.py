"""`make bench-operator`: 500 policies on a real API server and a real broker; time until all are in force, memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from forerun.operator.crds.kinds import POLICY
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.reflector import Reflector
from forerun.runtime.clock import SystemClock
from tests.bench.results import Row, write
from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane
from tests.cluster.operator_stage import Stage, install_definitions, manifest, stage

POLICIES = 500
TOOLS = 20
EDITS = 20
_LONGEST_SECONDS = 300.0


def policy(number: int) -> dict[str, Any]:
    """A policy with contracts as a platform team writes them."""
    tools = [
        {
            "tool": f"agent{number}_tool{tool}", "effect": "EFFECT_READ", "speculate": True,
            "reads": [{"template": f"things{tool}/{{id}}", "scope": "RESOURCE_SCOPE_SHARED"}],
        }
        for tool in range(TOOLS)
    ]  # fmt: skip
    return {"mode": "MODE_EXACT", "agents": [f"agent{number}"], "tools": tools}


def memory_bytes(pid: int, name: str) -> int:
    """A figure of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def in_force(followed: Reflector) -> int:
    """Policies whose status says that they are in force."""
    return sum(
        any(
            one["type"] == "Ready" and one["reason"] == "InForce"
            for one in found.get("status", {}).get("conditions", ())
        )
        for found in followed.objects.values()
    )


async def until_all(followed: Reflector, began: float) -> float:
    """Seconds since `began` when all were in force."""
    async with asyncio.timeout(_LONGEST_SECONDS):
        while in_force(followed) < POLICIES:  # noqa: ASYNC110  (another process gives no event)
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def measure(plane: ControlPlane, directory: Path) -> list[Row]:
    """The figures."""
    async with stage(plane, directory, "bench") as st:
        objects = [manifest(POLICY, f"policy-{number}", policy(number), st.namespace) for number in range(POLICIES)]
        plane.kubectl(
            "create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )
        path = paths.custom(POLICY, st.namespace)
        followed = Reflector(st.client, path, SystemClock(), lambda: None)
        following = asyncio.create_task(followed.run())
        began, server_before = time.monotonic(), cpu_seconds(plane.api_server_pid)
        pid = st.operator()
        all_at_start = await until_all(followed, began)
        used, served = cpu_seconds(pid), cpu_seconds(plane.api_server_pid) - server_before
        following.cancel()
        edits = [await edit(st, number) for number in range(EDITS)]
        resident, peak = memory_bytes(pid, "VmRSS"), memory_bytes(pid, "VmHWM")
        mib = 1024 * 1024
        return [
            Row(name=f"{POLICIES} policies of {TOOLS} tools, from start to all in force", value=all_at_start, unit="s"),
            Row(
                name=f"an edit beside {POLICIES} policies, until the broker has it", value=sorted(edits)[EDITS // 2],
                unit="s", n=EDITS, spread=(min(edits), max(edits)),
            ),
            Row(name="processor time of the operator until then", value=used, unit="s"),
            Row(name="processor time of the API server meanwhile", value=served, unit="s"),
            Row(name="machine's load meanwhile", value=os.getloadavg()[0], unit="processes"),
            Row(name="resident memory", value=resident / mib, unit="MiB"),
            Row(name="resident memory, peak", value=peak / mib, unit="MiB"),
        ]  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def edit(st: Stage, number: int) -> float:
    """Seconds from an edit's acknowledgement to its arrival in the store."""
    path = f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/{POLICY.plural}/policy-{number}"
    await st.client.merge(path, {"spec": {"priority": 7}})
    began = time.monotonic()
    async with asyncio.timeout(_LONGEST_SECONDS):
        while True:
            found = await st.published(POLICY, f"policy-{number}")
            if found is not None and found.policies[0].priority == 7:
                return time.monotonic() - began
            await asyncio.sleep(0.01)


def main() -> int:
    """Prints and writes the figures; 1 where one is missed."""
    with tempfile.TemporaryDirectory() as scratch, control_plane(Path(scratch) / "plane") as plane:
        install_definitions(plane)
        (Path(scratch) / "stage").mkdir()
        rows = asyncio.run(measure(plane, Path(scratch) / "stage"))
    for row in rows:
        print(f"{row.name:70s} {row.value:.2f} {row.unit}" + (f" {row.spread}" if row.spread else ""))
    print(write("operator", rows))
    seconds, edited, *_, peak = (row.value or 0.0 for row in rows)
    return 0 if seconds <= 60.0 and edited <= 1.0 and peak <= 150.0 else 1


if __name__ == "__main__":
    sys.exit(main())
