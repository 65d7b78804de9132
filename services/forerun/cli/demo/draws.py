"""How long models and tools take in the demo: the measured quantiles, drawn again the same in every run.

A draw is log-normal with the measured median and ninetieth percentile, cut at the ninetieth percentile. It depends on
the seed, the session's logical name and the step, through a stable hash. A model's step is its number. A tool's step is
named by the action itself, tool and arguments: an execution ahead of its step must take as long as the call it stands
for, and it cannot know which step that will be.

Every command of the coding agent is a process that loads this module, so it is plain classes and little import.
"""

import json
import math
from collections.abc import Mapping
from enum import Enum

FAST_SCALE = 1.0 / 20.0

_Z90 = 1.2815515655446004  # ninetieth percentile of the standard normal distribution
_MASK = (1 << 64) - 1


class Kind(Enum):
    """What takes time, with the measured median and ninetieth percentile in seconds.

    Measured on real runs: sessions of a coding agent, a browsing research agent, and benchmarks of MCP servers.
    """

    SEARCH = ("search and fetch", 5.8, 8.5)
    MCP = ("MCP", 0.17, 1.3)
    SQL = ("SQL and notes", 0.005, 0.02)
    COMMAND = ("commands", 1.5, 25.0)
    EDIT = ("file reads and edits", 0.005, 0.02)
    RESEARCH_MODEL = ("research model", 12.5, 32.0)
    CODING_MODEL = ("coding model", 4.8, 17.0)

    @property
    def title(self) -> str:
        """The name for people."""
        return self.value[0]

    @property
    def p50_seconds(self) -> float:
        """Median."""
        return self.value[1]

    @property
    def p90_seconds(self) -> float:
        """Ninetieth percentile, and the longest draw."""
        return self.value[2]


KIND_OF_TOOL = {
    "search": Kind.SEARCH,
    "fetch": Kind.SEARCH,
    "lookup_entity": Kind.MCP,
    "related": Kind.MCP,
    "warehouse": Kind.SQL,
    "add_note": Kind.SQL,
    "list_notes": Kind.SQL,
    "run_tests": Kind.COMMAND,
    "search_code": Kind.COMMAND,
    "history": Kind.COMMAND,
    "read_file": Kind.EDIT,
    "edit_file": Kind.EDIT,
}


def fraction(*key: str | int) -> float:
    """A stable number in (0, 1) for a key: the same in every process and on every machine.

    FNV-1a over the key's JSON, then the finaliser of splitmix64, which spreads what FNV leaves in the low bits.
    """
    state = 0xCBF29CE484222325
    for byte in json.dumps(key, separators=(",", ":")).encode():
        state = ((state ^ byte) * 0x100000001B3) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    state ^= state >> 31
    # 53 bits fit a float exactly; the half keeps both ends out.
    return ((state >> 11) + 0.5) / (1 << 53)


def drawn_seconds(kind: Kind, *key: str | int) -> float:
    """Seconds of one draw at full scale (Box and Muller's transform of two fractions of the key)."""
    radius = math.sqrt(-2.0 * math.log(fraction("radius", *key)))
    normal = radius * math.cos(2.0 * math.pi * fraction("angle", *key))
    sigma = math.log(kind.p90_seconds / kind.p50_seconds) / _Z90
    return min(kind.p90_seconds, kind.p50_seconds * math.exp(sigma * normal))


class Draws:
    """The times of one demo."""

    __slots__ = ("scale", "seed")

    def __init__(self, seed: int, scale: float) -> None:
        """Takes the demo's seed and the factor on every drawn time: 1, or FAST_SCALE."""
        self.seed = seed
        self.scale = scale

    def model_seconds(self, kind: Kind, session: str, step: int) -> float:
        """Seconds of one model step, the first being step 1."""
        return self.scale * drawn_seconds(kind, self.seed, session, "model", step)

    def tool_seconds(self, session: str, tool: str, arguments: Mapping[str, object]) -> float:
        """Seconds of one tool call; the same for every execution of that action in that session."""
        action = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
        return self.scale * drawn_seconds(KIND_OF_TOOL[tool], self.seed, session, tool, action)


def logical_session(label: str) -> str:
    """The session's logical name in a label `RUN.SESSION`: the same in all runs, so that all draw the same."""
    return label.rpartition(".")[2]
