"""Registers behind an HTTP tool server on loopback: what they hold, and a log of everything that reached them.

The log is the judge of the tests: it is the tools' own, and knows nothing of the platform.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from forerun.client import Result, Status
from tests.integration.up.toolserver import ToolServer

WRITES: Final = frozenset({"put", "note"})


@dataclass(eq=False)
class Entry:
    """One execution.

    Attributes:
        number: Counts the executions, from 1 on.
        tool: The tool.
        key: The register.
        value: What a write was given; empty for reads.
        begun_at: Loop time of its arrival.
        version: The register's version that it read or made.
        done: It took effect.
    """

    number: int
    tool: str
    key: str
    value: str
    begun_at: float
    version: int = 0
    done: bool = False


Moment = Callable[[Entry, str], None]


@dataclass
class Registers(ToolServer):
    """Reads `look`, `check` (shared) and `notes` (a session's own); writes `put` (shared) and `note` (own).

    Attributes:
        log: Everything that was executed.
        moment: Called with every execution `before` and `after` it took effect.
        held: Writes of these registers take effect when the event comes, whether or not somebody still waits for them.
    """

    log: list[Entry] = field(default_factory=list)
    moment: Moment | None = None
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    _versions: Counter[str] = field(default_factory=Counter)
    _values: dict[str, str] = field(default_factory=dict)

    async def work(self, method: str, target: str, body: bytes) -> bytes:
        """Executes a tool."""
        parts = urlsplit(target)
        arguments = json.loads(body) if method == "POST" else {k: v[0] for k, v in parse_qs(parts.query).items()}
        tool = parts.path.rpartition("/")[2]
        entry = Entry(
            len(self.log) + 1, tool, arguments["key"], arguments.get("value", ""), asyncio.get_running_loop().time()
        )
        self.log.append(entry)
        # A session's own registers are apart from all others'.
        register = f"{parts.path.split('/')[1]}/{entry.key}"
        self._pass("before", entry)
        await asyncio.sleep(self.delay_seconds / 2)
        if tool in WRITES:
            if (release := self.held.get(entry.key)) is not None:
                await release.wait()
            self._versions[register] += 1
            self._values[register] = entry.value
        entry.version, entry.done = self._versions[register], True
        answer = {"key": entry.key, "version": entry.version, "value": self._values.get(register, "")}
        self._pass("after", entry)
        await asyncio.sleep(self.delay_seconds / 2)
        return json.dumps(answer).encode()

    def _pass(self, phase: str, entry: Entry) -> None:
        if self.moment is not None:
            self.moment(entry, phase)

    def version(self, key: str) -> int:
        """The version of a shared register."""
        return self._versions[f"all/{key}"]

    def executions(self, tool: str, key: str, value: str = "") -> int:
        """How often a call was executed."""
        return sum((one.tool, one.key, one.value) == (tool, key, value) for one in self.log)


def wrong(result: Result, registers: Registers) -> str | None:
    """What is wrong about the end of a call, by the tools' own log; None where nothing is."""
    call, arguments = result.call, dict(result.call.arguments)  # type: ignore[arg-type]
    if not result.ok and (result.failure is None or not result.failure.reason or not result.failure.message):
        return f"{call} ended {result.status} without a reason"
    if call.name not in WRITES:
        return None if result.ok else f"{call} may be repeated and ended {result.status}: {result.failure}"
    count = registers.executions(call.name, str(arguments["key"]), str(arguments["value"]))
    allowed = {
        Status.OK: {1},
        Status.OUTCOME_UNKNOWN: {0, 1},
        Status.UNAVAILABLE: {0},
        Status.REJECTED: {0},
    }.get(result.status, set())
    return (
        None if count in allowed else f"{call} ended {result.status} ({result.failure}) and was executed {count} times"
    )


def policy(registers: Registers, **more: Any) -> str:
    """The policy file. Every write is one that may not be repeated; prefetches are launched as soon as believed in."""
    shared = {"template": "registers/{key}", "scope": "RESOURCE_SCOPE_SHARED"}
    own = {"template": "notes/{key}", "scope": "RESOURCE_SCOPE_SESSION"}
    contracts = [
        {"tool": "dedent", "effect": "EFFECT_PURE", "speculate": True},
        {"tool": "look", "effect": "EFFECT_READ", "reads": [shared], "speculate": True},
        {"tool": "check", "effect": "EFFECT_READ", "reads": [shared], "maxStalenessSeconds": 0},
        {"tool": "notes", "effect": "EFFECT_READ", "reads": [own], "speculate": True},
        {"tool": "put", "effect": "EFFECT_WRITE", "writes": [shared]},
        {"tool": "note", "effect": "EFFECT_WRITE", "writes": [own]},
    ]
    rules = {
        "name": "test", "mode": "MODE_EXACT", "alpha": 1, "lambdaPerSecond": 4, "minimumEvidence": 3, "auditShare": 0,
        "budget": {"concurrent": 256, "initialCredits": 1000, "creditsPerCall": 10}, "tools": contracts, **more,
    }  # fmt: skip
    text = {"type": "string"}
    specs: list[dict[str, Any]] = [
        {
            "name": "dedent", "python": {"entryPoint": "textwrap:dedent"},
            "inputSchema": json.dumps({"type": "object", "properties": {"text": text}, "required": ["text"]}),
        }
    ]  # fmt: skip
    for name in ("look", "check", "notes", "put", "note"):
        names = ("key", "value") if name in WRITES else ("key",)
        place = "{session}" if name in ("notes", "note") else "all"
        specs.append(
            {
                "name": name,
                "inputSchema": json.dumps(
                    {"type": "object", "properties": dict.fromkeys(names, text), "required": list(names)}
                ),
                "http": {
                    "method": "POST" if name in WRITES else "GET",
                    "url": f"http://127.0.0.1:{registers.port}/{place}/{name}",
                    "jsonBody": name in WRITES,
                },
            }
        )
    return json.dumps({"policies": [rules], "servers": [{"name": "registers", "tools": specs}]})  # JSON is YAML
