"""What the engine learns, what it keeps, and what it never says."""

import json
import zlib

import pytest

from forerun.core.canonical import JsonValue
from forerun.predictor.engine.engine import Engine, Prediction, UnknownSession
from forerun.predictor.engine.history import (
    Asked,
    AssistantText,
    CallFinished,
    CallsAsked,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    UserTurn,
)
from forerun.predictor.engine.state import MalformedState
from forerun.predictor.engine.tuning import Tuning

TENANT, AGENT = "acme", "support"
TOOLS = ("get_user", "get_order", "cancel_order")


class Run:
    """One session, told in short."""

    def __init__(self, engine: Engine, session: str, tenant: str = TENANT, agent: str = AGENT) -> None:
        self.engine = engine
        self.key = (tenant, agent, session)
        self._turn = 0
        engine.observe(*self.key, SessionOpened(TOOLS))

    def user(self, text: str) -> None:
        self.engine.observe(*self.key, UserTurn(text))

    def predict(self) -> Prediction:
        self.engine.observe(*self.key, ModelStarted())
        return self.engine.predict(*self.key)

    def calls(self, *calls: tuple[str, JsonValue, JsonValue]) -> None:
        """Asks for (tool, arguments) in one message; each is answered by its third part."""
        self._turn += 1
        asked = tuple(Asked(index, tool, arguments) for index, (tool, arguments, _) in enumerate(calls))
        self.engine.observe(*self.key, CallsAsked(self._turn, asked))
        for index, (_, _, answer) in enumerate(calls):
            data = json.dumps(answer).encode()
            self.engine.observe(*self.key, CallFinished(self._turn, index, ok=True, observation=data, seconds=0.25))

    def close(self, text: str = "That is all.") -> None:
        self.engine.observe(*self.key, AssistantText(text))
        self.engine.observe(*self.key, SessionClosed())


def orders(number: int) -> list[str]:
    return [f"#W{number:04d}{position}" for position in range(1, 4)]


def lookup(engine: Engine, number: int, tenant: str = TENANT, *, together: bool = False) -> None:
    """The user is looked up by the id that was said, then every order in the list of that answer."""
    run = Run(engine, f"s{number}", tenant)
    user = f"emma_kim_{number:04d}"
    run.user(f"Hello, I am {user}.")
    run.calls(("get_user", {"user_id": user}, {"name": "Emma", "orders": [*orders(number)]}))
    answers: list[tuple[str, JsonValue, JsonValue]] = [
        ("get_order", {"order_id": order}, {"order_id": order, "status": "open"}) for order in orders(number)
    ]
    if together:
        run.calls(*answers)
    else:
        for answer in answers:
            run.calls(answer)
    run.close()


def taught(*, together: bool = False) -> Engine:
    engine = Engine()
    for number in range(40):
        lookup(engine, number, together=together)
    return engine


def action(prediction: Prediction, rank: int = 0) -> tuple[str, JsonValue]:
    candidate = prediction.candidates[rank]
    return candidate.tool, json.loads(candidate.arguments)


def test_an_argument_is_taken_from_the_words_of_the_user() -> None:
    run = Run(taught(), "new")
    run.user("Good day, this is liu_wong_7311!")
    prediction = run.predict()
    assert action(prediction) == ("get_user", {"user_id": "liu_wong_7311"})
    assert prediction.candidates[0].probability > 0.8


def test_a_list_is_worked_through_one_value_at_a_time_and_then_the_run_ends() -> None:
    run = Run(taught(), "new")
    run.user("I am liu_wong_7311")
    mine = ["#W99991", "#W99992", "#W99993"]
    run.calls(("get_user", {"user_id": "liu_wong_7311"}, {"name": "Liu", "orders": [*mine]}))
    for order in mine:
        assert action(run.predict()) == ("get_order", {"order_id": order})
        run.calls(("get_order", {"order_id": order}, {"order_id": order, "status": "open"}))
    prediction = run.predict()
    assert prediction.no_call_probability > max((c.probability for c in prediction.candidates), default=0.0)
    assert prediction.no_call_probability > 0.7


def test_the_calls_of_one_message_are_predicted_as_a_set() -> None:
    run = Run(taught(together=True), "new")
    run.user("I am liu_wong_7311")
    mine = ["#W99991", "#W99992", "#W99993"]
    run.calls(("get_user", {"user_id": "liu_wong_7311"}, {"name": "Liu", "orders": [*mine]}))
    likely = [c for c in run.predict().candidates if c.probability > 0.5]
    assert [json.loads(c.arguments)["order_id"] for c in likely] == mine


def test_integers_of_any_size_and_decimals_reach_the_candidate_exactly() -> None:
    engine = Engine()
    big = 2**63 + 11
    for number in range(30):
        run = Run(engine, f"s{number}")
        run.user("count")
        run.calls(("get_user", {"id": 7}, {"next": big + number}))
        run.calls(("get_order", {"number": big + number, "share": 2}, {"ok": True}))
        run.close()
    run = Run(engine, "new")
    run.user("count")
    engine.observe(*run.key, CallsAsked(1, (Asked(0, "get_user", {"id": 7}),)))
    engine.observe(*run.key, CallFinished(1, 0, ok=True, observation=b'{"next": 123456789012345678901234567890}'))
    assert run.predict().candidates[0].arguments == b'{"number":123456789012345678901234567890,"share":2}'


def test_tenants_and_agents_do_not_learn_from_each_other() -> None:
    engine = taught()
    for tenant, agent in (("other", AGENT), (TENANT, "other")):
        run = Run(engine, "new", tenant, agent)
        run.user("I am liu_wong_7311")
        assert run.predict().candidates == ()


def test_agents_of_one_tenant_share_a_model_where_the_operator_says_so() -> None:
    engine = Engine(Tuning(share_across_agents=True))
    for number in range(40):
        lookup(engine, number)
    run = Run(engine, "new", TENANT, "another")
    run.user("I am liu_wong_7311")
    assert action(run.predict())[0] == "get_user"
    stranger = Run(engine, "new", "other-tenant", AGENT)
    stranger.user("I am liu_wong_7311")
    assert stranger.predict().candidates == ()


def test_a_prediction_explains_itself_without_content() -> None:
    run = Run(taught(), "new")
    run.user("I am liu_wong_7311")
    explanation = run.predict().candidates[0].explanation
    assert "get_user" in explanation
    assert "/user_id: from the user's words" in explanation
    assert "right" in explanation
    assert "7311" not in explanation


def test_durations_give_an_expected_time() -> None:
    run = Run(taught(), "new")
    run.user("I am liu_wong_7311")
    assert run.predict().candidates[0].expected_seconds == pytest.approx(0.25, rel=0.15)


def test_state_survives_a_restart_and_predicts_the_same() -> None:
    engine, copy = taught(), Engine()
    copy.load(TENANT, AGENT, engine.dump(TENANT, AGENT))
    for one in (engine, copy):
        run = Run(one, "new")
        run.user("I am liu_wong_7311")
        run.calls(("get_user", {"user_id": "liu_wong_7311"}, {"name": "Liu", "orders": ["#W99991", "#W99992"]}))
        run.predict()
    mine, other = (one.predict(TENANT, AGENT, "new") for one in (engine, copy))
    assert [c.arguments for c in mine.candidates][:2] == [c.arguments for c in other.candidates][:2]
    assert mine.candidates[0].probability == pytest.approx(other.candidates[0].probability, abs=0.01)
    assert mine.candidates[0].evidence == pytest.approx(other.candidates[0].evidence)
    assert copy.dump(TENANT, AGENT)


@pytest.mark.parametrize("data", [b"", b"not zlib", zlib.compress(b"[]"), zlib.compress(b'{"version":99,"agent":{}}')])
def test_state_that_cannot_be_read_is_refused(data: bytes) -> None:
    engine = taught()
    before = engine.status(TENANT)
    with pytest.raises(MalformedState):
        engine.load(TENANT, AGENT, data)
    assert engine.status(TENANT) == before


def test_kept_state_holds_no_content() -> None:
    engine = Engine()
    secrets = ["emma.stone@mail.example", "4111111111111111", "sk-CANARY-93acf17b20d84", "Confidential-merger-plan"]
    for number in range(5):
        run = Run(engine, f"s{number}")
        run.user(f"My card {secrets[1]} and mail {secrets[0]}, key {secrets[2]}. {secrets[3]}-{number}")
        run.calls(("get_user", {"mail": secrets[0], "card": secrets[1], "key": secrets[2]}, {"api_key": secrets[2]}))
        run.calls(("get_order", {"note": f"{secrets[3]}-{number}"}, {"text": f"{secrets[3]} of {secrets[0]}"}))
        run.close(f"I wrote to {secrets[0]} about the {secrets[3]}.")
    state = zlib.decompress(engine.dump(TENANT, AGENT)).decode()
    assert [secret for secret in secrets if secret in state] == []
    assert "/mail" in state  # the name of an argument is a derivation and may be kept


def test_a_forgotten_or_closed_session_is_unknown() -> None:
    engine = Engine(Tuning(max_sessions=2))
    for name in ("a", "b", "c"):
        Run(engine, name).user("hello")
    assert [engine.knows(TENANT, AGENT, name) for name in ("a", "b", "c")] == [False, True, True]
    with pytest.raises(UnknownSession):
        engine.predict(TENANT, AGENT, "a")


def test_an_erased_tenant_leaves_nothing() -> None:
    engine = taught()
    lookup(engine, 1, "other")
    engine.forget(TENANT)
    assert engine.agents() == (("other", AGENT),)
    with pytest.raises(KeyError):
        engine.dump(TENANT, AGENT)


def test_the_same_history_gives_the_same_predictions() -> None:
    first, second = taught(), taught()
    for engine in (first, second):
        run = Run(engine, "new")
        run.user("I am liu_wong_7311")
    assert first.predict(TENANT, AGENT, "new") == second.predict(TENANT, AGENT, "new")


def test_a_circle_of_exact_calls_is_noticed() -> None:
    engine = Engine()
    for number in range(12):
        run = Run(engine, f"s{number}")
        run.user("make the tests pass")
        for attempt in range(5):
            run.calls(("get_order", {"edit": f"change {number} {attempt}"}, "done"))
            run.calls(("get_user", {"command": f"run tests of project {number}"}, "1 failed"))
        run.close()
    run = Run(engine, "new")
    run.user("make the tests pass")
    run.calls(("get_order", {"edit": "x"}, "done"))
    run.calls(("get_user", {"command": "run tests of project x"}, "1 failed"))
    run.calls(("get_order", {"edit": "y"}, "done"))
    assert action(run.predict()) == ("get_user", {"command": "run tests of project x"})
