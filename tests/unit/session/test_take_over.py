"""What a session machine that goes on for another owner has, and has not."""

from __future__ import annotations

from dataclasses import replace

from forerun.core import limits
from forerun.core.governor import Limits
from forerun.core.outcomes import CallStatus, Mode
from forerun.core.session import ExecutionResult, SessionOpened
from tests.unit.session.driver import POLICY, Driver, asked, proposal

OPENED = SessionOpened((), Mode.EXACT, False, "p@1", "")


def taken_over(d: Driver, *, last_turn: int = 1, journalled: tuple[tuple[int, int], ...] = ()) -> Driver:
    """The machine begins from what a journal said."""
    d.do(
        d.machine.restore(
            OPENED,
            number=10,
            last_turn=last_turn,
            closed={},
            unknown={},
            lingering={},
            journalled=journalled,
            user_texts=(),
            now=d.now,
        )
    )
    return d


def test_owners_that_are_lost_again_and_again_do_not_refill_the_budget() -> None:
    """A new owner does not know what was spent: it has nothing, and earns only by calls that are new."""
    policy = replace(POLICY, limits=Limits(initial_credits=2.0, credits_per_call=0.5, money=10.0))
    d = taken_over(Driver(policy=policy), journalled=tuple((1, index) for index in range(10)))
    d.ask(1, *[asked(index, "get", id=index) for index in range(10)])  # the client asks again
    d.propose(proposal("get", id=100))
    assert not any(ahead for _, _, ahead in d.executed)
    d.run()
    d.ask(2, asked(0, "get", id=50), asked(1, "get", id=51))
    d.run()
    d.propose(proposal("get", id=101))
    assert sum(ahead for _, _, ahead in d.executed) == 1


def test_a_large_result_of_a_write_is_kept_by_its_digest_only() -> None:
    size = limits.INLINE_OBSERVATION_BYTES + 1
    d = Driver()
    d.results["set"] = ExecutionResult(status=CallStatus.OK, content=b"x" * size, digest="sha256:x")
    d.ask(1, asked(0, "set", id=1))
    d.run()
    first = d.answers[1, 0].result
    assert first is not None and len(first.content) == size
    for turn in (2, 3, 4):
        d.ask(turn, asked(0, "get", id=turn))
        d.run()
    d.answers.clear()
    d.ask(1, asked(0, "set", id=1))
    again = d.answers[1, 0].result
    assert again is not None and (again.content, again.stored_bytes, again.digest) == (b"", size, "sha256:x")
    assert sum(tool == "set" for tool, _, _ in d.executed) == 1
