"""The reference page of bounds: `python -m forerun.cli.limits_reference > docs/reference/limits.md`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.core import limits

UNITS: Final = frozenset({"KIB", "MIB"})
"""Constants of `limits` that are no bounds."""

_BYTES: Final = ((limits.MIB, "MiB"), (limits.KIB, "KiB"))


@dataclass(frozen=True, slots=True)
class Beyond:
    """What happens beyond a bound.

    Attributes:
        what: In words.
        errors: Reasons of the errors that say so; empty where nothing fails.
        settings: Variables that change it; empty where it is part of the contract.
    """

    what: str
    errors: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


_REJECTED: Final = "The call is rejected before anything runs."
_SESSION: Final = "A further session is refused until one ends."
_LEFT_OUT: Final = "The least recently used entry goes first."
_SLOW: Final = "The connection ends; the client connects again and asks for what it has not got."

_NOT_SAID: Final = Beyond("")

TABLE: Final[Mapping[str, Beyond]] = {
    "ARGUMENTS_BYTES": Beyond(_REJECTED, ("MESSAGE_TOO_LARGE",)),
    "JSON_DEPTH": Beyond(_REJECTED, ("ARGUMENTS_NOT_JSON",)),
    "NUMBER_DIGITS": Beyond(_REJECTED, ("ARGUMENTS_NOT_JSON",)),
    "NUMBER_EXPONENT": Beyond(_REJECTED, ("ARGUMENTS_NOT_JSON",)),
    "SCHEMA_BYTES": Beyond(
        "A session with such a tool of its client, and a policy with such a tool, are refused.",
        ("ARGUMENT_INVALID", "POLICY_INVALID"),
    ),
    "SCHEMA_REFERENCES": Beyond("That part of the schema says nothing: no default is filled in, no number compared."),
    "ARGUMENT_PIECES": Beyond("The whole text is refused (`too_many_calls`)."),
    "NAME_CHARS": Beyond("The session or the policy is refused.", ("ARGUMENT_INVALID", "POLICY_INVALID")),
    "RESOURCE_KEY_CHARS": Beyond("The key is cut back to a prefix, which conflicts with more."),
    "RESOURCE_KEY_SEGMENTS": Beyond("The key is cut back to a prefix, which conflicts with more."),
    "RESOURCE_TEMPLATES": Beyond("The policy is refused.", ("POLICY_INVALID",)),
    "GENERATION_MARKS": Beyond("The marks are folded: everything that was recorded before counts as stale."),
    "GRAMMAR_STATES": Beyond("The tool cannot be called under a grammar; others can."),
    "GRAMMAR_STRING_CHARS": Beyond("A string with a bound ends there, where a grammar holds."),
    "GRAMMAR_LIST_ITEMS": Beyond("A list with a bound ends there, where a grammar holds."),
    "GUESS_SITES": Beyond("The least recently used site is forgotten, and off again."),
    "GUESS_AGENTS": Beyond("The least recently used agent is forgotten: its sites are off again."),
    "GUESS_TRANSCRIPT_CHARS": Beyond("Older text is forgotten."),
    "GUESS_SCHEMAS_BYTES": Beyond("Schemas of further tools are left out; these are not guessed."),
    "CALLS_PER_MESSAGE": Beyond("The message is refused, nothing of it runs.", ("ARGUMENT_INVALID",)),
    "CALLS_IN_FLIGHT_PER_MESSAGE": Beyond("Further calls of the message wait in order."),
    "CALLS_IN_FLIGHT_PER_TENANT": Beyond(
        "Further calls of the tenant wait in the order of their asking.",
        settings=("FORERUN_ORCHESTRATOR_MAX_CALLS_PER_TENANT",),
    ),
    "ORDER_FAN_IN": Beyond("They are waited for as one."),
    "CALL_QUEUE": Beyond(
        "The message is refused at once, nothing of it runs; the error says when to ask again.",
        ("QUEUE_FULL",),
        ("FORERUN_ORCHESTRATOR_MAX_WAITING_CALLS", "FORERUN_SANDBOX_AUTHORITATIVE_QUEUE"),
    ),
    "CALL_ATTEMPTS": Beyond("The failure of the last try is the answer.", ("TOOL_FAILED",)),
    "RETRY_BACKOFF_INITIAL_SECONDS": Beyond("The first wait; each further one is twice as long."),
    "RETRY_BACKOFF_MAX_SECONDS": Beyond("Waits grow no further, unless the provider asks for more."),
    "LOOKUP_ATTEMPTS": Beyond("The try has failed; the tool was certainly not called.", ("TOOL_FAILED",)),
    "PLAN_TASKS": Beyond("The plan is refused with the first task above; its owner may allow more."),
    "PLAN_TASKS_MAX": Beyond("No owner may allow more."),
    "PLAN_DEPTH": Beyond("The plan is refused and the task named."),
    "PLAN_REFERENCES": Beyond("The plan, or its further part, is refused."),
    "PLAN_TEXT_BYTES": Beyond("The text is refused; what had started is stopped."),
    "PLAN_HELD_BYTES": Beyond("A result is only passed on; a task that refers to it is rejected."),
    "REPLANS": Beyond("The plan is not continued."),
    "SPECULATIONS_PER_SESSION": Beyond("An older result makes room, else the candidate is refused as `bound`."),
    "SPECULATIONS_PER_REPLICA": Beyond("The candidate is refused as `no_slot`."),
    "CANDIDATES_PER_PREDICTION": Beyond("Further candidates are ignored."),
    "CANDIDATE_EXPLANATION_CHARS": Beyond("The explanation is cut."),
    "MEMO_ENTRIES_PER_SESSION": Beyond(_LEFT_OUT),
    "MEMO_BYTES_PER_SESSION": Beyond(_LEFT_OUT),
    "TRUSTED_TEXT_BYTES": Beyond("Nothing more becomes trusted, so that less runs ahead."),
    "TRUSTED_TOKEN_CHARS": Beyond("The text is trusted token by token only."),
    "RACED_TOOLS": Beyond("The least recently used tool is forgotten: its next 20 calls have no second attempts."),
    "PROVIDERS": Beyond("The least recently used provider is forgotten, and counts as well again."),
    "BREAKER_PAUSE_INITIAL_SECONDS": Beyond("Nothing runs ahead at a failing provider before the pause is over."),
    "BREAKER_PAUSE_MAX_SECONDS": Beyond("The pause grows no more."),
    "COMMAND_CHARS": Beyond("The command counts as a write."),
    "MESSAGE_BYTES": Beyond("The message is not sent; values travel in chunks or by digest.", ("MESSAGE_TOO_LARGE",)),
    "BUS_MESSAGE_BYTES": Beyond("The message is not stored; values travel by digest.", ("MESSAGE_TOO_LARGE",)),
    "CHUNK_BYTES": Beyond("A result travels in several chunks."),
    "INLINE_OBSERVATION_BYTES": Beyond("A result goes to the object store and travels by digest."),
    "RESULT_BYTES": Beyond(
        "The call fails, unless its contract caps the output.",
        ("RESULT_TOO_LARGE", "LIMIT_OUTPUT"),
        ("FORERUN_SANDBOX_MAX_OBSERVATION_BYTES",),
    ),
    "MODEL_REPLICAS": Beyond("The policy is refused.", ("POLICY_INVALID",)),
    "MODEL_OUTPUT_TOKENS": Beyond("The answer ends there (`length`); `maxOutputTokens` of a provider says otherwise."),
    "MODEL_OUTPUT_TOKENS_MAX": Beyond("The policy is refused.", ("POLICY_INVALID",)),
    "MODEL_RESPONSE_BYTES": Beyond(
        "The request fails; `maxResponseBytes` of the provider says otherwise.", ("RESULT_TOO_LARGE",)
    ),
    "MODEL_REQUESTS": Beyond("Further requests wait; `concurrency` of the provider says otherwise."),
    "MODEL_REQUESTS_MAX": Beyond("The policy is refused.", ("POLICY_INVALID",)),
    "MODEL_QUEUE": Beyond("The request is refused at once.", ("QUEUE_FULL",)),
    "MODEL_PROMPT_BYTES": Beyond("The request is refused.", ("MESSAGE_TOO_LARGE",)),
    "ANSWER_CANDIDATES": Beyond("The request or the policy is refused.", ("ARGUMENT_INVALID", "POLICY_INVALID")),
    "ANSWER_STEPS": Beyond("The request is refused.", ("ARGUMENT_INVALID",)),
    "STREAM_MESSAGES": Beyond(_SLOW, ("QUEUE_FULL",)),
    "STREAM_BYTES": Beyond(_SLOW, ("QUEUE_FULL",)),
    "STREAM_LINGER_SECONDS": Beyond("What nobody has read by then is dropped; it is answered again when asked for."),
    "JOURNAL_EVENTS_PER_SESSION": Beyond("The session takes no more messages; a new one does.", ("BUDGET_EXHAUSTED",)),
    "EVENT_IDS_PER_SESSION": Beyond("The oldest id is forgotten: sent again, its event counts as a new one."),
    "SESSIONS_PER_REPLICA": Beyond(_SESSION, ("QUEUE_FULL",), ("FORERUN_ORCHESTRATOR_MAX_SESSIONS",)),
    "SESSIONS_PER_TENANT": Beyond(_SESSION, ("QUEUE_FULL",), ("FORERUN_ORCHESTRATOR_MAX_SESSIONS_PER_TENANT",)),
    "SESSION_IDLE_SECONDS": Beyond(
        "The session ends.", ("SESSION_ENDED",), ("FORERUN_ORCHESTRATOR_SESSION_IDLE_SECONDS",)
    ),
    "DEADLINE_DEFAULT_SECONDS": Beyond("The tool is told to stop; the contract's `timeoutSeconds` says otherwise.",
        ("TOOL_TIMEOUT",)),
    "DEADLINE_MAX_SECONDS": Beyond("The message or the policy is refused.", ("ARGUMENT_INVALID", "POLICY_INVALID")),
    "CANCEL_SETTLE_SECONDS": Beyond("The execution counts as one that may go on; a session that ends reports it."),
    "LINGERING_WRITES": Beyond("Nothing of the session is answered from what is known any more."),
    "UNSETTLED_SECONDS": Beyond("The resource is trusted again."),
    "CLOCK_SKEW_SECONDS": Beyond("A resource that a late write may change is trusted too early."),
    "UNSETTLED_KEYS": Beyond("All shared resources of the tenant count as one that may be written."),
    "UNSETTLED_BYTES": Beyond("All shared resources of the tenant count as one that may be written."),
    "OPEN_WORLD_STALENESS_SECONDS": Beyond(
        "The result is not used any more; the contract's `maxStalenessSeconds` says otherwise."
    ),
    "WORKSPACE_FILES": Beyond(
        "The call fails, its changes are not merged.", ("LIMIT_DISK",), ("FORERUN_SANDBOX_WORKSPACE_MAX_ENTRIES",)
    ),
    "WORKSPACE_BYTES": Beyond(
        "The call fails, its changes are not merged.", ("LIMIT_DISK",), ("FORERUN_SANDBOX_WORKSPACE_MAX_BYTES",)
    ),
    "WORKSPACE_FORKS": Beyond("No further fork is made.", ("LIMIT_DISK",), ("FORERUN_SANDBOX_WORKSPACE_MAX_FORKS",)),
    "MCP_CONNECTIONS": Beyond("The call fails where none can make room, and may be asked again.", ("QUEUE_FULL",)),
    "WORKERS": Beyond("Further workers are not used."),
    "SUBSCRIPTION_PENDING_MESSAGES": Beyond(
        'The newest are dropped and counted in `forerun_dropped_total{bound="notifications"}`.'
    ),
    "SESSION_INBOX_EVENTS": Beyond("Nothing more is read from the client's stream until the broker has taken some."),
    "OUTBOX_MESSAGES": Beyond(
        'Further ledger lines are dropped and counted in `forerun_dropped_total{bound="outbox"}`; of calls, those that '
        "may not be repeated are refused.",
        ("BROKER_UNAVAILABLE",),
    ),
    "ERASURES_REPORTED": Beyond("Earlier ones are done, and no longer shown."),
    "ERASURE_WAIT_SECONDS": Beyond(
        "The request is refused; a shorter wait says which servers have not answered.", ("ARGUMENT_INVALID",)
    ),
}  # fmt: skip


def bounds() -> Mapping[str, tuple[float, str]]:
    """Every bound with its value and the sentences below it in its source."""
    found: dict[str, tuple[float, str]] = {}
    name = ""
    for node in ast.parse(inspect.getsource(limits)).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = getattr(limits, name), " ".join(str(node.value.value).split())
    return found


def reference() -> str:
    """The page, in Markdown."""
    lines = [
        "# Bounds",
        "",
        "Generated by `python -m forerun.cli.limits_reference`; do not edit. Every bound of the platform stands in",
        "`services/forerun/core/limits.py`. An error has its reason (see [errors](errors.md)) and names the bound in",
        "its metadata or text; where there is a setting (see [settings](settings.md)) the value is its default.",
        "`tests/contract/test_limits.py` names the test that reaches each of them.",
        "",
        "| bound | value | meaning | beyond it | error | setting |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, (value, meaning) in bounds().items():
        beyond = TABLE.get(name, _NOT_SAID)  # a test finds it
        errors, settings = ("<br>".join(f"`{one}`" for one in many) for many in (beyond.errors, beyond.settings))
        lines.append(f"| `{name}` | {_shown(name, value)} | {meaning} | {beyond.what} | {errors} | {settings} |")
    return "\n".join(lines) + "\n"


def _shown(name: str, value: float) -> str:
    if name.endswith("_SECONDS"):
        return f"{value:g} s"
    if name.endswith("_BYTES"):
        size, unit = next((one for one in _BYTES if value % one[0] == 0), (1, "bytes"))
        return f"{int(value) // size:,} {unit}"
    return f"{value:,}"


if __name__ == "__main__":
    sys.stdout.write(reference())
