"""Where a small model is asked, what it is shown, and which of its answers are guesses."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forerun.core import limits
from forerun.core.second_guess import Asking, Guessed, GuessPrices, SecondGuesses
from forerun.core.sites import Site
from forerun.core.tokens import Usage
from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.history import (
    Asked,
    AssistantText,
    CallFinished,
    CallsAsked,
    SessionClosed,
    SessionOpened,
    UserTurn,
)
from forerun.predictor.small_model.guess import Call, Ended, SmallModel, valid_call
from forerun.predictor.small_model.guesser import Guesser, GuessSettings, _Guess
from forerun.predictor.small_model.transcript import Transcript, guess_request
from forerun.runtime import metrics_table as m
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.metrics import Metrics
from forerun.runtime.models.catalogue import Model
from forerun.runtime.models.models import Models
from forerun.runtime.models.port import ToolCall
from forerun.runtime.models.providers import make_port
from forerun.runtime.tasks import TaskScope

HIT = Guessed(seconds=1.0, hit=True, right=True, hidden_seconds=3.0)
MISS = Guessed(seconds=1.0, hit=False)
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"enum": [1, 2]}}, "required": ["id"]}
TOOLS = json.dumps([{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}])


def asked(guesses: SecondGuesses, steps: int, site: str = "s", best: float = 0.1) -> list[Asking]:
    return [guesses.decide(site, best, 10.0) for _ in range(steps)]


def test_it_is_off_until_it_has_paid_and_off_again_when_it_does_not() -> None:
    guesses = SecondGuesses(GuessPrices())
    assert asked(guesses, Site.PROBE_EVERY) == [Asking.OFF] * (Site.PROBE_EVERY - 1) + [Asking.PROBE]
    assert guesses.learn("s", MISS) is None
    assert asked(guesses, 3) == [Asking.OFF] * 3
    assert guesses.learn("s", HIT) is True
    assert asked(guesses, 3) == [Asking.PAYS] * 3
    changes = [guesses.learn("s", MISS) for _ in range(30)]
    assert changes.count(False) == 1
    assert asked(guesses, 1) == [Asking.OFF]
    assert (guesses.sites_on, guesses.sites_off) == (0, 1)
    assert guesses.record.gained == pytest.approx(3.0 - guesses.record.seconds)


def test_hits_that_hide_less_than_they_cost_do_not_pay() -> None:
    """As tools of 5 ms and guesses of seconds: every one may be right, and none is worth it."""
    guesses = SecondGuesses(GuessPrices())
    for _ in range(50):
        guesses.learn("s", Guessed(seconds=2.0, hit=True, right=True, hidden_seconds=0.005))
    assert guesses.sites_on == 0
    assert guesses.record.probability > 0.8


def test_statistics_that_are_sure_and_guesses_that_come_too_late_are_left_alone() -> None:
    guesses = SecondGuesses(GuessPrices(unsure_below=0.5))
    guesses.learn("s", HIT)
    assert guesses.decide("s", 0.5, 10.0) is Asking.SURE
    assert guesses.decide("s", 0.49, 1.0) is Asking.TOO_LATE
    assert guesses.decide("s", 0.49, 1.01) is Asking.PAYS
    assert guesses.decide("s", 0.0, None) is Asking.PAYS


def test_one_site_says_nothing_of_another() -> None:
    guesses = SecondGuesses(GuessPrices())
    guesses.learn("s", HIT)
    assert guesses.decide("other", 0.1, 10.0) is Asking.OFF


def test_what_was_no_call_in_time_costs_and_is_no_evidence() -> None:
    guesses = SecondGuesses(GuessPrices())
    before = guesses.record.probability
    guesses.learn("s", Guessed(seconds=5.0, hit=False, valid=False))
    assert (guesses.record.probability, guesses.record.trials) == (before, 0.0)
    assert guesses.record.gained == -5.0


def test_sites_are_bounded_and_a_forgotten_one_is_off_again() -> None:
    guesses = SecondGuesses(GuessPrices())
    guesses.learn("first", HIT)
    for number in range(limits.GUESS_SITES):
        guesses.learn(str(number), MISS)
    assert guesses.sites_on + guesses.sites_off == limits.GUESS_SITES
    assert guesses.decide("first", 0.1, 10.0) is Asking.OFF


def guesser() -> Guesser:
    clock = SystemClock()
    metrics = Metrics("predictor")
    model = SmallModel(Models.made_of(make_port(None, clock)), Model("m", ()), 1.0)
    bus, tasks = MemoryBus(MemoryBroker(clock), "predictor"), TaskScope("t", metrics=metrics)
    return Guesser(model, Engine(), bus, tasks, clock=clock, metrics=metrics, settings=GuessSettings())


async def test_agents_and_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS_PER_REPLICA", 20)
    one = guesser()
    for number in range(limits.GUESS_AGENTS + 5):
        one._of("t", f"a{number}")
        one.observe("t", "a", f"s{number}", UserTurn("hi"))
    assert len(one._worth) == limits.GUESS_AGENTS
    assert len(one._transcripts) == 20
    one.observe("t", "a", f"s{limits.GUESS_AGENTS + 4}", SessionClosed())
    assert len(one._transcripts) == 19


async def test_a_session_that_is_not_followed_any_more_leaves_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS_PER_REPLICA", 2)
    one = guesser()
    task = asyncio.create_task(asyncio.sleep(60))
    kept = _Guess("t", "a", "s0", "owner", 1, "site", Asking.PROBE, frozenset(), task)
    one.observe("t", "a", "s0", UserTurn("hi"))
    one._guesses["t", "s0"] = kept
    kept.ended = Ended(None, 2.0, Usage())
    for number in range(1, 3):
        one.observe("t", "a", f"s{number}", UserTurn("hi"))
    await asyncio.sleep(0)
    assert one._guesses == {}
    assert task.cancelled()
    assert one.status("t", "a").seconds == 2.0, "what it cost is not lost"


async def test_the_count_of_sites_that_are_on_holds_when_agents_are_forgotten() -> None:
    one = guesser()
    one._of("t", "first").learn("s", HIT)
    one._metrics.change(m.SECOND_GUESS_SITES, 1.0)
    for number in range(limits.GUESS_AGENTS):
        one._of("t", f"a{number}")
    assert one._metrics.value(m.SECOND_GUESS_SITES) == 0.0


def test_calls_that_never_finish_are_bounded() -> None:
    transcript = Transcript()
    for turn in range(1_000):
        transcript.take(CallsAsked(turn, (Asked(0, "f", {}),)))
    assert len(transcript._names) == 256


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"type": "nonsense"},
        {"properties": 3},
        {"properties": {"id": {"pattern": "("}}},
        {"properties": {"id": {"type": "string", "pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": {"type": "string"}}},
    ],
)
def test_a_schema_that_cannot_be_judged_by_gives_no_guess(schema: Any) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert valid_call([ToolCall("1", "f", json.dumps({"id": "a" * 40 + "b"}))], tools) is None


def test_an_argument_may_be_called_pattern() -> None:
    schema = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    tools = json.dumps([{"type": "function", "function": {"name": "grep", "parameters": schema}}])
    assert valid_call([ToolCall("1", "grep", '{"pattern": "x"}')], tools) == Call("grep", b'{"pattern":"x"}')


def test_nothing_is_fetched_for_a_schema() -> None:
    """Schemas come from agents and tool servers: a reference must not send the platform anywhere."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        schema = {"$ref": f"http://127.0.0.1:{listening.getsockname()[1]}/schema"}
        tools = json.dumps([{"type": "function", "function": {"name": "f", "parameters": schema}}])
        with ThreadPoolExecutor(1) as other:
            judging = other.submit(valid_call, [ToolCall("1", "f", "{}")], tools)
            with pytest.raises(TimeoutError):
                listening.accept()
        assert judging.result() is None


def told(transcript: Transcript) -> None:
    transcript.take(SessionOpened(("f",), (("f", json.dumps(SCHEMA)),)))
    transcript.take(UserTurn("please\n  look up W1"))
    transcript.take(AssistantText("One moment."))
    transcript.take(CallsAsked(1, (Asked(0, "f", {"id": "W1"}),)))
    transcript.take(CallFinished(1, 0, ok=False, observation=b"Error: \xff gone"))


def test_a_transcript_is_the_session_in_few_words() -> None:
    transcript = Transcript()
    told(transcript)
    assert transcript.tail(1_000).splitlines() == [
        "user: please look up W1",
        "agent: One moment.",
        'call: f {"id":"W1"}',
        "f failed: Error: \ufffd gone",
    ]
    assert transcript.tail(30).splitlines()[-1] == "f failed: Error: \ufffd gone"
    assert len(transcript.tail(30)) <= 30


def test_a_transcript_keeps_the_latest_text() -> None:
    transcript = Transcript()
    for number in range(200):
        transcript.take(UserTurn(f"{number} " + "x" * 500))
    kept = transcript.tail(10 * limits.GUESS_TRANSCRIPT_CHARS)
    assert len(kept) <= limits.GUESS_TRANSCRIPT_CHARS + 200
    assert kept.splitlines()[-1].startswith("user: 199 ")


def test_a_request_shows_the_likeliest_tools_with_their_arguments() -> None:
    transcript = Transcript()
    told(transcript)
    request = guess_request(transcript, ["unknown", "f"], chars=500, tokens=50, expected=["x"])
    assert request is not None
    assert "f(id, n: 1|2)" in request.messages[0].content
    assert "look up W1" in request.messages[1].content
    assert (request.must_call, request.describe_tools, request.greedy, request.expected) == (True, False, True, ("x",))
    assert json.loads(request.tools) == json.loads(TOOLS)
    assert guess_request(transcript, ["unknown"], chars=500, tokens=50, expected=[]) is None


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([("f", '{"n": 1, "id": "a"}')], Call("f", b'{"id":"a","n":1}')),
        ([("f", '{"id": "a", "n": 3}')], None),
        ([("f", '{"id": 5}')], None),
        ([("f", '{"id": "a"')], None),
        ([("f", '{"id": "a", "id": "b"}')], None),
        ([("g", "{}")], None),
        ([("f", '{"id": "a"}')] * 2, None),
        ([], None),
    ],
)
def test_only_one_valid_call_of_a_known_tool_is_a_guess(calls: list[tuple[str, str]], right: Any) -> None:
    assert valid_call([ToolCall("", name, arguments) for name, arguments in calls], TOOLS) == right
