"""What can be tuned in the engine, and every bound it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of one engine. They are part of its version: state learned under other values is still readable.

    Attributes:
        max_candidates: Candidates in one prediction.
        context_order: Longest context, in event kinds and tools, of the sequence model.
        site_order: Length of the context signature of a call site; longer ones stay cold for too long.
        share_across_agents: One model for all agents of a tenant. Tenants are never mixed.
        max_sessions: Sessions followed at a time; the one silent for longest is forgotten first.
        max_agents: Models kept at a time, the same way.
        slow_memory: Observations after which a count has faded to 1/e while nothing changes.
        fast_memory: The same for the counts that notice a change.
        change_evidence: Log likelihood ratio by which the fast counts must beat the slow ones to replace them.
        calibration_memory: Scored candidates after which a correction has faded to 1/e.
        min_class_probability: Tools less likely than this get no arguments computed.
        max_classes: Tools (with their set of argument names) for which arguments are computed.
        min_probability: Candidates less likely than this are not reported.
    """

    max_candidates: int = 8
    context_order: int = 4
    site_order: int = 2
    share_across_agents: bool = False
    max_sessions: int = 2_000
    max_agents: int = 256
    slow_memory: float = 1_000.0
    fast_memory: float = 20.0
    change_evidence: float = 8.0
    calibration_memory: float = 1_000.0
    min_class_probability: float = 0.03
    max_classes: int = 6
    min_probability: float = 0.005


# Bounds of what is kept of one session. A session of the longest recorded runs stays within a few MB.
MAX_OBSERVATION_BYTES = 128 * 1024  # parsed or scanned; the rest of a longer observation is not looked at
MAX_TEXT_CHARS = 16 * 1024  # of a user turn or a message
MAX_LEAVES = 400  # values remembered of one observation
MAX_TEXT_TOKENS = 160  # tokens remembered of one text
MAX_VALUE_CHARS = 4_096  # longer values are never copied
MAX_SOURCES = 768  # places of one session
MAX_GROUPS = 6  # latest observations remembered of one place
MAX_GROUP = 48  # values of one place in one observation
MAX_KEYS = 20_000  # distinct values with their places
MAX_CALLS_REMEMBERED = 96  # latest calls that may come again as they were
MAX_ARGUMENT_BYTES_REPEATED = 16 * 1024  # longer arguments are not expected again
MAX_PLACES = 10  # places remembered of one value

# Bounds of what is kept of one agent.
MAX_NODES = 30_000  # contexts of a sequence model
MAX_OUTCOMES = 256  # outcomes of one context
MAX_PATHS = 2_000  # arguments that are modelled
MAX_PATH_SOURCES = 32  # derivations of one argument
MAX_CONSTANTS = 48  # values of one argument that may be constants
MAX_WEIGHTS = 600  # features of one argument
MAX_WORD_FEATURES = 60_000  # features of the intent model
MAX_SITUATIONS = 4_096  # situations in which calls come again
MAX_SITES = 8_192  # call sites with evidence
NAMES_KEPT = 4_096  # names made of tools, places and contexts that are not made again; they hold no content
MAX_ARGUMENT_PATHS = 24  # arguments of one call; calls with more are not predicted
