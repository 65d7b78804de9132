"""Recorded agent runs as tokens: what a target would have put out, and what stood before it.

A message is its text, then its calls in Hermes form, in Qwen2.5 tokens; observations and user turns are what they are
in the chat template. Folds go by task, so that a history never holds another run of the same task.
"""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.results import REPOSITORY

SETS: Final = {  # small ones first: the time that they leave over is the others'
    "LiveMCP": "livemcpbench_sonnet4",
    "airline": "tau_airline_gpt4o",
    "coding": "coding_real_sessions",
    "tau2": "tau2_agents",
    "MCP": "mcpbench_agents",
    "SWE": "swebench_agents",
}
FOLDS: Final = 3
_FETCH: Final = REPOSITORY / "scripts" / "models" / "fetch"
_CALL_WORDS: Final = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True, slots=True)
class Message:
    """One output of a model.

    Attributes:
        text: Tokens of its text.
        calls: Tokens of its calls.
    """

    text: Sequence[int]
    calls: Sequence[int]


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded session.

    Attributes:
        task: Runs of one task are in one fold.
        agent: The model that was recorded.
        events: Tokens that were given to the model, and what it put out.
    """

    task: str
    agent: str
    events: Sequence[Sequence[int] | Message]

    @property
    def context(self) -> int:
        """Tokens that were given to the model."""
        return sum(len(event) for event in self.events if not isinstance(event, Message))

    @property
    def output(self) -> int:
        """Tokens that it put out, ends of messages not counted."""
        return sum(len(event.text) + len(event.calls) for event in self.events if isinstance(event, Message))

    @property
    def fold(self) -> int:
        """By task."""
        return zlib.crc32(self.task.encode()) % FOLDS


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokenizer with what of its special tokens is needed here.

    Attributes:
        library: Of `tokenizers`.
        header: What stands before each output.
        end: What ends it.
    """

    library: Any
    header: Sequence[int]
    end: int

    @classmethod
    def load(cls) -> Tokens:
        """Fetches the tokenizer and its library where they are not there yet."""
        done = subprocess.run(
            [str(_FETCH), "python", "qwen2.5-tokenizer"], check=True, stdout=subprocess.PIPE, text=True, timeout=1800.0
        )
        library, file = (Path(line) for line in done.stdout.split())
        sys.path.insert(0, str(library))
        module = importlib.import_module("tokenizers")
        tokenizer = module.Tokenizer.from_file(str(file))
        # One token each, as in the model's own configuration; the file that is fetched lists them as ordinary text.
        tokenizer.add_tokens([module.AddedToken(word, normalized=False) for word in _CALL_WORDS])
        header = tokenizer.encode("<|im_start|>assistant\n").ids
        return cls(tokenizer, header, tokenizer.token_to_id("<|im_end|>"))

    def many(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Tokens of each text."""
        for encoding in self.library.encode_batch(texts):
            yield encoding.ids


def load(data: Path, name: str, tokens: Tokens) -> list[Run]:
    """The runs of a set."""
    with gzip.open(data / "traces" / f"{SETS[name]}.jsonl.gz", "rt") as lines:
        sessions = [json.loads(line) for line in lines]
    parts = [list(_parts(session["events"])) for session in sessions]
    found = tokens.many([text for session in parts for texts in session for text in texts])
    runs = []
    for session, pieces in zip(sessions, parts, strict=True):
        events: list[Sequence[int] | Message] = []
        for texts in pieces:
            ids = [next(found) for _ in texts]
            events.append(Message(*ids) if len(ids) == 2 else ids[0])
        runs.append(Run(str(session.get("task") or session["session"]), str(session.get("model")), events))
    return runs


def _parts(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """One text for what was given to the model, two (text and calls) for what it put out, in order."""
    turns: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["type"] in {"assistant", "tool_call"}:
            turns.setdefault(event["turn"], []).append(event)
    for event in events:
        kind, content = event["type"], event.get("content")
        if kind == "user":
            yield (f"<|im_start|>user\n{content or ''}<|im_end|>\n",)
        elif kind == "tool_result":
            shown = content if isinstance(content, str) else json.dumps(content)
            yield (f"<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n",)
        elif message := turns.pop(event["turn"], None):
            text = "\n".join(one["content"] for one in message if one["type"] == "assistant" and one["content"])
            calls = "".join(_call(one) for one in message if one["type"] == "tool_call")
            yield text, calls if text else calls.lstrip("\n")


def _call(call: Mapping[str, Any]) -> str:
    arguments = json.dumps(call["args"], ensure_ascii=False)
    return f'\n<tool_call>\n{{"name": {json.dumps(call["name"])}, "arguments": {arguments}}}\n</tool_call>'
