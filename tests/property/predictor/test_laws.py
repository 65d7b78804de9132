"""Laws of the engine for whatever a session may bring."""

import json
from decimal import Decimal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.core.canonical import JsonValue, canonical
from forerun.predictor.engine.calibration import Curve
from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.history import (
    Asked,
    AssistantText,
    CallFinished,
    CallsAsked,
    Event,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    UserTurn,
)
from forerun.predictor.engine.memory import Memory
from forerun.predictor.engine.shapes import dates, shape_of, tokens, words
from forerun.predictor.engine.tuning import MAX_ARGUMENT_PATHS
from forerun.predictor.engine.values import flatten, key_of, type_of, unflatten, value_of

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
scalar = st.none() | st.booleans() | st.integers() | text | st.decimals(allow_nan=False, allow_infinity=False, places=3)
json_value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
json_object = st.dictionaries(text, json_value, max_size=5)


@given(json_object)
def test_arguments_are_put_together_as_they_were_taken_apart(arguments: dict[str, JsonValue]) -> None:
    flat = flatten(arguments)
    if flat is None:
        return
    assert len(flat) <= MAX_ARGUMENT_PATHS
    assert canonical(unflatten(flat)) == canonical(arguments)


@given(json_value)
@example(Decimal("-10000000000000000000000000000000000000000.001"))
@example(Decimal("1E+99999"))
def test_a_value_is_found_again_by_its_key_and_type(value: JsonValue) -> None:
    found = value_of(key_of(value), type_of(value))
    assert canonical(found) == canonical(value)


@given(st.text(max_size=300))
def test_tokens_of_any_text_come_from_it_and_have_a_shape(content: str) -> None:
    for shape, token in tokens(content, 50):
        assert shape
        if shape not in ("amount", "quoted"):
            assert token in content
    assert len(tokens(content, 5)) <= 5
    assert all(word == word.lower() for word in words(content, 20))
    assert all(len(date) >= 10 for date in dates(content, "2024"))


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60))
@example(":\N{KANNADA DIGIT SIX}")
def test_a_shape_never_repeats_the_digits_of_a_value(token: str) -> None:
    if token.isdigit() or token.isalnum():
        return
    shape = shape_of(token)
    assert shape.startswith("path") or not any(character.isdigit() and character != "0" for character in shape)


calls = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "undeclared"]), json_object), min_size=1, max_size=3)
observation = json_value.map(canonical) | st.binary(max_size=80)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [SessionOpened(("a", "b", "c"))]
    for turn in range(1, draw(st.integers(1, 6))):
        if draw(st.booleans()):
            events.append(UserTurn(draw(text)))
        if draw(st.booleans()):
            events.append(ModelStarted())
        if draw(st.booleans()):
            events.append(AssistantText(draw(text)))
        asked = draw(calls)
        events.append(CallsAsked(turn, tuple(Asked(i, tool, args) for i, (tool, args) in enumerate(asked))))
        for index in range(len(asked)):
            if draw(st.booleans()):
                events.append(CallFinished(turn, index, draw(st.booleans()), draw(observation), 0.1))
    if draw(st.booleans()):
        events.append(SessionClosed())
    return events


@settings(max_examples=30, deadline=None)
@given(st.lists(histories(), min_size=1, max_size=4))
def test_any_history_gives_sound_candidates(sessions: list[list[Event]]) -> None:
    engine = Engine()
    for number, events in enumerate(sessions):
        key = ("t", "a", str(number))
        for event in events:
            engine.observe(*key, event)
            if not engine.knows(*key):
                continue
            prediction = engine.predict(*key)
            assert 0.0 <= prediction.no_call_probability <= 1.0
            assert [c.rank for c in prediction.candidates] == list(range(len(prediction.candidates)))
            ordered = [c.probability for c in prediction.candidates]
            assert ordered == sorted(ordered, reverse=True)
            for candidate in prediction.candidates:
                assert candidate.tool in ("a", "b", "c")
                assert 0.0 < candidate.probability < 1.0
                assert candidate.evidence >= 0.0
                assert canonical(json.loads(candidate.arguments, parse_float=Decimal)) == candidate.arguments
            actions = [(c.tool, c.arguments) for c in prediction.candidates]
            assert len(set(actions)) == len(actions)
    copy = Engine()
    copy.load("t", "a", engine.dump("t", "a"))
    assert copy.status("t") == engine.status("t")


@given(json_object, st.lists(st.dictionaries(st.sampled_from(["/x", "/y"]), text, max_size=2), max_size=4))
def test_a_withdrawn_assumption_leaves_the_memory_as_it_was(
    seen: dict[str, JsonValue], assumed: list[dict[str, str]]
) -> None:
    memory = Memory()
    memory.add_arguments("tool", {"/x": "first"})
    memory.add_observation("tool", canonical(seen), ok=True)

    def picture() -> object:
        groups = {p: [(g.ordinal, list(g.keys)) for g in all_] for p, all_ in memory.places.items()}
        return groups, {name: dict(uses) for name, uses in memory.used.items() if uses}, memory.ordinal

    before = picture()
    taken = [memory.assume("tool", flat) for flat in assumed]
    for assumption in reversed(taken):
        memory.withdraw(assumption)
    assert picture() == before


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.floats(0, 1))
def test_a_corrected_probability_is_a_probability(scored: list[tuple[float, bool]], asked: float) -> None:
    curve = Curve()
    for probability, hit in scored:
        curve.add(probability, hit, 0.99)
    assert 0.0 < curve.correct(asked) < 1.0
