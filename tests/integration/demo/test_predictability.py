"""The research workflows against the real predictor: most of it can be foreseen, and not all of it."""

import json

from forerun.cli.demo.agents import research
from forerun.cli.demo.agents.script import Task
from forerun.cli.demo.draws import KIND_OF_TOOL, Kind
from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.history import (
    Asked,
    CallFinished,
    CallsAsked,
    Event,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    UserTurn,
)
from tests.unit.demo.desk_double import LIBRARY, play

SEED = 1
WARM_UP = 24
SCORED = 12


def slow_calls_foreseen(engine: Engine, task: Task) -> tuple[int, int]:
    """Plays a session past the predictor: slow calls that it gave at least even odds, and all slow calls."""

    def observe(event: Event) -> None:
        engine.observe("tenant", task.agent, task.session, event)

    observe(SessionOpened(research.TOOLS))
    observe(UserTurn(task.user_text))
    foreseen = slow = 0
    for turn, (message, answers) in enumerate(zip(*play(task, SEED), strict=True), start=1):
        observe(ModelStarted())
        candidates = engine.predict("tenant", task.agent, task.session).candidates
        likely = {(one.tool, json.dumps(json.loads(one.arguments))) for one in candidates if one.probability >= 0.5}
        observe(CallsAsked(turn, tuple(Asked(i, call.tool, call.arguments) for i, call in enumerate(message.calls))))
        for index, (call, answer) in enumerate(zip(message.calls, answers, strict=True)):
            if KIND_OF_TOOL[call.tool] is Kind.SEARCH:
                slow += 1
                foreseen += (call.tool, json.dumps(call.arguments)) in likely
            observe(CallFinished(turn, index, not answer.tool_error, answer.content, 1.0))
    observe(SessionClosed())
    return foreseen, slow


def test_most_slow_calls_are_foreseen_after_the_warm_up_and_some_never_are() -> None:
    engine = Engine()
    tasks = research.tasks(LIBRARY, SEED, WARM_UP + SCORED)
    cold = [slow_calls_foreseen(engine, task) for task in tasks[:1]]
    for task in tasks[1:WARM_UP]:
        slow_calls_foreseen(engine, task)
    warm = [slow_calls_foreseen(engine, task) for task in tasks[WARM_UP:]]
    assert sum(foreseen for foreseen, _ in cold) == 0
    share = sum(foreseen for foreseen, _ in warm) / sum(slow for _, slow in warm)
    assert 0.55 <= share <= 0.95
