"""Draws policy files: contracts of the world's tools, prices, budgets and modes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from tests.simulation.world import HOST, KEY_HEADER, SECOND_HOST, SPECULABLE

TOOL_SECONDS = 4.0
"""Time limit of every tool."""

_READ, _WRITE = "EFFECT_READ", "EFFECT_WRITE"
_CONTRACTS: dict[str, dict[str, object]] = {
    "get": {"effect": _READ, "reads": ["doc/{id}"]},
    "big": {"effect": _READ, "reads": ["doc/{id}"]},
    "list": {"effect": _READ, "reads": ["doc"]},
    "set": {"effect": _WRITE, "writes": ["doc/{id}"]},
    "put": {"effect": _WRITE, "writes": ["doc/{id}"], "idempotent": True},
    "move": {"effect": _WRITE, "reads": ["doc/{source}"], "writes": ["doc/{target}"]},
    "stock": {"effect": _READ, "reads": ["stock/{id}"]},
    "sell": {"effect": _WRITE, "writes": ["stock/{id}"]},
    "pop": {"effect": _READ, "consuming": True, "reads": ["queue/{queue}"]},
    "news": {"effect": _READ, "reads": ["news/{topic}"], "openWorld": True},
    "clock": {"effect": _READ, "reads": ["now"], "maxStalenessSeconds": 0.0},
    "calc": {"effect": "EFFECT_PURE"},
    "add": {"effect": _WRITE, "staged": True, "writes": ["file/{file}"]},
    "show": {"effect": _READ, "reads": ["file/{file}"]},
}
_COMMANDS = {"add": ["add", "{file}", "{token}"], "show": ["show", "{file}"]}
_SCHEMAS = {"news": '{"type":"object","properties":{"topic":{"type":"string"}}}'}
_SHARED = frozenset({"stock", "sell", "news"})
PRICES = {"get": 0.002, "stock": 0.001}
"""What an execution costs, in money."""
RACED = frozenset({"get", "stock"})
"""Tools whose slow calls get a second attempt."""
TOOLS = (*(name for name in _CONTRACTS if name not in _COMMANDS), "sync_view")
"""Tools of the server; of the last one the policy knows nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy file and the limits that it sets."""

    text: str
    concurrent: int
    concurrent_per_session: int
    initial_credits: float
    credits_per_call: float
    most_extra: float


def draw_policy(chance: random.Random, *, first: bool) -> Policy:
    """A policy. The first one of a run speculates; later ones may not."""
    mode = "MODE_EXACT" if first or chance.random() < 0.8 else chance.choice(["MODE_SHADOW", "MODE_OFF"])
    concurrent, per_session = chance.randint(2, 12), chance.choice([1, 2, 4, 8])
    race = {"afterQuantile": chance.choice([0.3, 0.6, 0.9]), "mostExtra": chance.choice([0.05, 0.3, 1.0])}
    credits, per_call = chance.choice([2.0, 2.0, 8.0, 16.0]), chance.choice([0.1, 0.1, 0.3, 1.0])
    policy = {
        "name": "simulated",
        "mode": mode,
        "alpha": chance.choice([0.5, 1.0]),
        "lambdaPerSecond": chance.choice([2.0, 8.0]),
        "minimumEvidence": chance.choice([0.0, 2.0]),
        "expirySeconds": chance.choice([3.0, 8.0, 60.0]),
        "auditShare": chance.choice([0.0, 0.3, 1.0]),
        "withhold": chance.choice([0.0, 0.0, 0.2]),
        "holdOut": chance.choice([0.0, 0.0, 0.2]),
        "budget": {
            "concurrent": concurrent,
            "concurrentPerSession": per_session,
            "initialCredits": credits,
            "creditsPerCall": per_call,
        },
        "tools": [_contract(name) | ({"race": race} if name in RACED else {}) for name in _CONTRACTS],
    }
    text = json.dumps({"policies": [policy], "servers": [_server(), _DESK]})  # which is YAML, too
    return Policy(text, concurrent, per_session, credits, per_call, race["mostExtra"])


_DESK = {
    "name": "desk",
    "tools": [
        {"name": name, "inputSchema": '{"type":"object"}', "command": {"argv": argv}}
        for name, argv in _COMMANDS.items()
    ],
}


def _contract(name: str) -> dict[str, object]:
    contract = dict(_CONTRACTS[name])
    scope = "RESOURCE_SCOPE_SHARED" if name in _SHARED else "RESOURCE_SCOPE_SESSION"
    for side in ("reads", "writes"):
        templates = contract.get(side)
        if isinstance(templates, list):
            contract[side] = [{"template": text, "scope": scope} for text in templates]
    limits = {"timeoutSeconds": TOOL_SECONDS}
    limits["costMoney"] = PRICES.get(name, 0.0)
    return {"tool": name, **contract, **limits, "speculate": name in SPECULABLE}


def _server() -> dict[str, object]:
    return {
        "name": "world",
        "tools": [
            {
                "name": name,
                "inputSchema": _SCHEMAS.get(name, '{"type":"object"}'),
                "http": {
                    "method": "POST",
                    "url": f"http://{HOST}/{{session}}/{name}",
                    "alternatives": [f"http://{SECOND_HOST}/{{session}}/{name}"] if name in RACED else [],
                    "jsonBody": True,
                    "idempotencyHeader": KEY_HEADER,
                },
            }
            for name in TOOLS
        ],
    }
