"""The one place that decides what leaves a process as telemetry.

Spans and log fields pass through an allow list of keys, each with the form its values must have. Everything else is
dropped: content of sessions (prompts, arguments, results, texts of foreign exceptions, headers) has no key here, so it
cannot leave by mistake. Only the journal holds content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Value = str | int | float | bool

# What ids, digests, names from closed sets and addresses of services look like. No spaces, quotes, braces or "@"; a
# slash, hence a path, only where the name itself has one.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:*\-]{1,128}")
_NAMES_WITH_SLASH: Final = {
    "rpc.method": re.compile(r"/?[A-Za-z0-9_.]{1,100}/[A-Za-z0-9_]{1,100}"),
    "gen_ai.request.model": re.compile(r"[A-Za-z0-9_.:\-]{1,100}(/[A-Za-z0-9_.:\-]{1,100})?"),
    "gen_ai.response.model": re.compile(r"[A-Za-z0-9_.:\-]{1,100}(/[A-Za-z0-9_.:\-]{1,100})?"),
    # A kind of the Kubernetes API, with its subresource.
    "forerun.resource": re.compile(r"[a-z0-9.\-]{1,100}(/[a-z0-9.\-]{1,100})?"),
}

_WORDS: Final = frozenset({
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.agent.name", "gen_ai.conversation.id",
    "rpc.method", "rpc.service", "server.address", "error.type", "forerun.error.reason",
    "forerun.tenant", "forerun.agent", "forerun.session", "forerun.call", "forerun.speculation", "forerun.kind",
    "forerun.mode", "forerun.outcome", "forerun.served", "forerun.reason", "forerun.policy.version",
    "forerun.isolation", "forerun.worker", "forerun.snapshot", "forerun.stream", "forerun.subject.kind",
    "forerun.component", "forerun.setting", "forerun.signal", "forerun.result", "forerun.dependency",
    "forerun.resource", "forerun.verb", "forerun.field", "k8s.namespace.name",
})  # fmt: skip
_NUMBERS: Final = frozenset({
    "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "rpc.grpc.status_code", "server.port",
    "forerun.probability", "forerun.evidence", "forerun.rank", "forerun.depth", "forerun.epoch", "forerun.sequence",
    "forerun.attempt", "forerun.deliveries", "forerun.size_bytes", "forerun.limit_bytes", "forerun.seconds",
    "forerun.saved_seconds", "forerun.wasted_seconds", "forerun.cost", "forerun.count", "forerun.exit_code",
    "forerun.signal_number",
})  # fmt: skip
_FLAGS: Final = frozenset({"forerun.speculative", "forerun.committed", "forerun.forced", "forerun.leading"})

ALLOWED_KEYS: Final = _WORDS | _NUMBERS | _FLAGS
WITHHELD: Final = "withheld"


def redacted(attributes: Mapping[str, object] | None) -> dict[str, Value]:
    """What may leave of some attributes; a value that does not have its key's form is replaced by `withheld`."""
    kept: dict[str, Value] = {}
    for key, value in (attributes or {}).items():
        if key in _WORDS:
            form = _NAMES_WITH_SLASH.get(key, _NAME)
            kept[key] = value if isinstance(value, str) and form.fullmatch(value) else WITHHELD
        elif key in _FLAGS:
            kept[key] = bool(value)
        elif key in _NUMBERS and isinstance(value, int | float):
            kept[key] = value
    return kept
