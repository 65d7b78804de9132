"""What the joiner says: the answer, or that another plan is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

END_OF_RESPONSE: Final = "<END_OF_RESPONSE>"
"""Ends a decision; also the text at which a model is to stop."""
_ACTION: Final = re.compile(r"^[ \t]*Action:[ \t]*(?:(Finish|Replan)[ \t]*\()?", re.MULTILINE)
_THOUGHT: Final = re.compile(r"\A\s*Thought:")


class DecisionProblem(ValueError):
    """What the joiner says is no decision."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision.

    Attributes:
        finish: There is an answer.
        text: The answer, or what another plan is to do.
        thought: Why.
    """

    finish: bool
    text: str
    thought: str


def decision_of(text: str) -> Decision:
    """Reads `Thought: ...`, then `Action: Finish(...)` or `Action: Replan(...)`; the brackets may go over lines.

    Raises:
        DecisionProblem: it is cut off, or says something else.
    """
    body = text.strip().removesuffix(END_OF_RESPONSE).rstrip()
    actions = list(_ACTION.finditer(body))
    if not actions:
        raise DecisionProblem("there is no line `Action: Finish(...)` and none `Action: Replan(...)`")
    first = actions[0]
    if first[1] is None:
        raise DecisionProblem("an action is Finish(...) or Replan(...)")
    # The answer may itself speak of actions: what decides is the first line, and the bracket that ends the text.
    if not body.endswith(")"):
        raise DecisionProblem("the action is cut off: its closing bracket is not the end of the text")
    before = body[: first.start()]
    if before.strip() and not _THOUGHT.match(before):
        raise DecisionProblem("before the action there may be a thought, and nothing else")
    inside = body[first.end() : -1].strip()
    if first[1] == "Finish" and not inside:
        raise DecisionProblem("Finish() has no answer")
    return Decision(first[1] == "Finish", inside, before.strip().removeprefix("Thought:").strip())
