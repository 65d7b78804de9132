"""Candidates of an answer: several are generated, one is taken, and what it cost and why it won is told.

Pure decision machines over a model port: the best of independent candidates (`BestOf`), and beam search (`Beam`). What
they cost beyond one answer is all extra, so a further candidate is launched only where it pays (`Worth`), and never
beyond the cap of the search.
"""

from forerun.core.answers.beam import Beam
from forerun.core.answers.best_of import BestOf, better
from forerun.core.answers.gain import Gain, Gains
from forerun.core.answers.model import (
    Decided,
    End,
    Generate,
    Limit,
    Price,
    Report,
    Score,
    Step,
    Stop,
    Terms,
    Worth,
)
from forerun.core.answers.policy import AnswerPolicy
from forerun.core.answers.scoring import Rules, judgement, verdict, vote
from forerun.core.answers.spending import Spending

__all__ = [
    "AnswerPolicy",
    "Beam",
    "BestOf",
    "Decided",
    "End",
    "Gain",
    "Gains",
    "Generate",
    "Limit",
    "Price",
    "Report",
    "Rules",
    "Score",
    "Spending",
    "Step",
    "Stop",
    "Terms",
    "Worth",
    "better",
    "judgement",
    "verdict",
    "vote",
]
