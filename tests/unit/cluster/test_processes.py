"""Processes that another process may have to end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.processes import Processes, wait_until


def test_another_process_ends_what_was_started(tmp_path: Path) -> None:
    first = Processes(tmp_path, tethered=False)
    pid = first.start("sleeper", ["sleep", "600"])
    later = Processes(tmp_path, tethered=False)
    assert later.pid("sleeper") == pid
    later.stop("sleeper")
    assert later.pid("sleeper") is None
    assert first.pid("sleeper") is None


def test_an_id_that_belongs_to_somebody_else_by_now_is_left_alone(tmp_path: Path) -> None:
    # As after a restart of the machine: the file names an id which now is ours.
    (tmp_path / "sleeper.pid").write_text(f"{os.getpid()} 1")
    processes = Processes(tmp_path, tethered=False)
    assert processes.pid("sleeper") is None
    processes.stop("sleeper")


def test_what_ignores_the_signal_is_ended_by_force(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tethered=True)
    processes.start("stubborn", ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    wait_until("trap", 20, lambda: "ready" in processes.log_tail("stubborn"))
    processes.stop("stubborn", seconds=0.2)
    assert processes.pid("stubborn") is None


def test_the_log_of_what_ended_is_told(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tethered=True)
    processes.start("broken", ["bash", "-c", "echo no such flag >&2; exit 2"])
    wait_until("end", 20, lambda: processes.pid("broken") is None)
    with pytest.raises(ClusterError, match="broken has ended; its log says: no such flag"):
        processes.require("broken")


def test_waiting_names_what_did_not_come(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"the moon: not within 0\.1 s"):
        wait_until("the moon", 0.1, lambda: False)
