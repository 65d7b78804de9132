from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.contracts import Contract, Effect, ResourceTemplate, unknown
from forerun.core.freshness import Recorded
from forerun.core.outcomes import CallStatus
from forerun.runtime.errors import InvalidArgument
from forerun.v1 import common_pb2, policy_pb2, verification_pb2
from forerun.verifier.engine import Finished, Refusal, certify
from forerun.verifier.service import verdict_on

READ = Contract("orders", "shop", Effect.READ, reads=(ResourceTemplate("orders/{id}"),), speculate=True)
STAGED = Contract("bash", "box", Effect.WRITE, staged=True, speculate=True)
WEB = replace(READ, open_world=True)
FINE = Finished(
    contract=READ,
    tool_version="v1",
    current_tool_version="v1",
    status=CallStatus.OK,
    tool_error=False,
    size_bytes=10,
    recorded=Recorded({"self:orders/7": 3, "below:orders/7": 0}),
    current={"self:orders/7": 3},
    age_seconds=5.0,
    tainted_paths=(),
)


@pytest.mark.parametrize(
    "finished",
    [
        FINE,
        replace(FINE, tainted_paths=("$.url",)),
        replace(FINE, contract=WEB),
        replace(FINE, contract=STAGED, tool_error=True),
        replace(FINE, contract=replace(READ, max_staleness_seconds=5.1)),
        replace(FINE, contract=replace(READ, output_cap_bytes=10)),
        replace(FINE, age_seconds=1e6),
    ],
)
def test_what_may_become_ready(finished: Finished) -> None:
    assert certify(finished).refusal is None


@pytest.mark.parametrize(
    ("finished", "refusal"),
    [
        (replace(FINE, contract=replace(READ, speculate=False)), Refusal.NOT_SPECULABLE),
        (replace(FINE, contract=replace(READ, consuming=True)), Refusal.NOT_SPECULABLE),
        (replace(FINE, contract=replace(READ, max_staleness_seconds=0.0)), Refusal.NOT_SPECULABLE),
        (replace(FINE, contract=unknown("t", "s")), Refusal.NOT_SPECULABLE),
        (replace(FINE, contract=replace(STAGED, staged=False)), Refusal.NOT_SPECULABLE),
        (replace(FINE, contract=WEB, tainted_paths=("$.url",)), Refusal.TAINTED),
        (replace(FINE, status=CallStatus.TIMEOUT), Refusal.FAILED),
        (replace(FINE, status=CallStatus.OUTCOME_UNKNOWN), Refusal.FAILED),
        (replace(FINE, contract=WEB, tool_error=True), Refusal.FAILED),
        (replace(FINE, current_tool_version="v2"), Refusal.TOOL_CHANGED),
        (replace(FINE, current_tool_version=""), Refusal.TOOL_CHANGED),
        (replace(FINE, contract=replace(READ, output_cap_bytes=9)), Refusal.OUTPUT_ABOVE_CAP),
        (replace(FINE, current={"self:orders/7": 4}), Refusal.STALE),
        (replace(FINE, current={}), Refusal.STALE),
        (replace(FINE, contract=replace(READ, max_staleness_seconds=5.0)), Refusal.STALE),
        (replace(FINE, contract=WEB, age_seconds=10.0), Refusal.STALE),
        (replace(FINE, age_seconds=float("nan"), contract=WEB), Refusal.STALE),
    ],
)
def test_what_is_refused(finished: Finished, refusal: Refusal) -> None:
    verdict = certify(finished)
    assert verdict.refusal is refusal
    assert verdict.detail


def message() -> verification_pb2.CertifyRequest:
    return verification_pb2.CertifyRequest(
        speculation="s",
        action=common_pb2.Action(tool="orders", tool_version="v1", arguments=b"{}"),
        contract=policy_pb2.EffectContract(
            tool="orders",
            effect=policy_pb2.EFFECT_READ,
            speculate=True,
            reads=[policy_pb2.Resource(template="orders/{id}")],
        ),
        current_tool_version="v1",
        status=common_pb2.CALL_STATUS_OK,
        observation=common_pb2.Observation(digest="sha256:00", size_bytes=3),
        recorded=common_pb2.Generations(marks={"self:orders": 1}),
        current=common_pb2.Generations(marks={"self:orders": 1}),
        age_seconds=0.5,
    )


def test_a_complete_request_is_judged() -> None:
    assert verdict_on(message()).refusal is None
    changed = message()
    changed.current.marks["self:orders"] = 2
    assert verdict_on(changed).refusal is Refusal.STALE


@pytest.mark.parametrize(
    "field", ["speculation", "contract", "action", "status", "observation", "recorded", "current", "age_seconds"]
)
def test_an_incomplete_request_is_refused_with_the_name_of_what_is_missing(field: str) -> None:
    request = message()
    if field == "age_seconds":
        request.age_seconds = float("nan")
    else:
        request.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=field):
        verdict_on(request)
