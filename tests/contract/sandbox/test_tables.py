"""Tables of the worker that must cover everything: statuses, limits, settings that messages name."""

import re
from pathlib import Path

from forerun.runtime.errors import ErrorReason
from forerun.sandbox import app, service
from forerun.sandbox.connectors.port import Ended
from forerun.sandbox.isolation import seccomp
from forerun.sandbox.isolation.levels import STRENGTH, Choice, LevelName
from forerun.sandbox.isolation.limits import ERROR_REASONS, LimitReason
from forerun.sandbox.runners import messages
from forerun.sandbox.settings import SandboxSettings
from forerun.sandbox.worker.slots import Priority
from forerun.v1 import common_pb2, runner_pb2, sandbox_pb2

_ROOM = Path(app.__file__).parent


def test_every_end_has_its_status_and_every_status_its_end() -> None:
    assert set(service._STATUSES) == set(Ended)
    statuses = set(common_pb2.CallStatus.values()) - {common_pb2.CALL_STATUS_UNSPECIFIED}
    assert set(service._STATUSES.values()) == statuses


def test_every_priority_of_the_contract_is_known() -> None:
    assert set(service._PRIORITIES) == set(sandbox_pb2.Priority.values()) - {sandbox_pb2.PRIORITY_UNSPECIFIED}
    assert set(service._PRIORITIES.values()) == set(Priority)


def test_every_limit_has_a_reason_of_its_own_and_is_counted() -> None:
    assert set(ERROR_REASONS) == set(LimitReason)
    assert len(set(ERROR_REASONS.values())) == len(LimitReason)
    assert {reason.value for reason in ERROR_REASONS.values()} <= set(app._LIMITS)
    assert all(ErrorReason(name) for name in app._LIMITS)


def test_every_limit_has_its_number_between_worker_and_runner() -> None:
    assert set(messages.LIMITS) == set(LimitReason)
    assert set(messages.LIMITS.values()) == set(runner_pb2.RunLimit.values()) - {runner_pb2.RUN_LIMIT_UNSPECIFIED}


def test_every_level_has_a_strength() -> None:
    assert set(STRENGTH) == set(LevelName)
    assert len(set(STRENGTH.values())) == len(LevelName)
    assert {choice.value for choice in Choice} == {"auto", *LevelName}


def test_settings_that_messages_name_exist() -> None:
    text = "".join(path.read_text() for path in sorted(_ROOM.rglob("*.py")))
    named = set(re.findall(r"see (\w+) of the sandbox's settings|([a-z]+_\w+) of the sandbox service", text))
    fields = {name for pair in named for name in pair if name and name != "workspace_max_"}
    assert len(fields) > 2
    assert fields <= set(SandboxSettings.model_fields)
    assert {"workspace_max_entries", "workspace_max_bytes"} <= set(SandboxSettings.model_fields)


def test_the_filter_knows_its_machines_and_no_others() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.program(machine)
        assert program is not None
        assert len(program) % 8 == 0
    assert seccomp.program("riscv64") is None
