"""Recorded request arrivals as work for a pool of slots.

The recordings say when requests came and how many tokens they had, not how long they took: that is imputed, with the
two rates below. What matters here is the shape of the load (bursts, trends, heavy tails), which is the recordings' own.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

SECONDS_PER_CONTEXT_TOKEN: Final = 0.0001
SECONDS_PER_GENERATED_TOKEN: Final = 0.02
SECONDS_AT_LEAST: Final = 0.1
FILES: Final = {
    "azure_code": "azure_llm_2023_code.csv.gz",
    "azure_conversation": "azure_llm_2023_conv.csv.gz",
    "mooncake": "mooncake_conversation.csv.gz",
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """One authoritative execution: when it is asked for, from the recording's start, and how long it takes."""

    at: float
    seconds: float


def recorded(directory: Path, name: str) -> list[Arrival]:
    """The arrivals of one recording, in order."""
    rows = csv.reader(io.StringIO(gzip.decompress((directory / FILES[name]).read_bytes()).decode()))
    next(rows)
    moments = sorted((_moment(when), int(context), int(generated)) for when, context, generated in rows)
    first = moments[0][0]
    return [Arrival(at - first, _seconds(context, generated)) for at, context, generated in moments]


def _moment(text: str) -> float:
    if "-" not in text:
        return int(text) / 1_000
    whole, _, fraction = text.partition(".")
    # Seven digits after the point are one more than Python parses.
    return datetime.strptime(whole + "+0000", "%Y-%m-%d %H:%M:%S%z").timestamp() + float(f"0.{fraction or 0}")


def _seconds(context: int, generated: int) -> float:
    return max(SECONDS_AT_LEAST, context * SECONDS_PER_CONTEXT_TOKEN + generated * SECONDS_PER_GENERATED_TOKEN)


def offered(arrivals: list[Arrival]) -> float:
    """Slots that the work keeps busy on average."""
    return sum(one.seconds for one in arrivals) / (arrivals[-1].at - arrivals[0].at)
