"""The one table of metrics: name, kind, unit, meaning, labels and buckets of everything a process exposes.

Code refers to the constants, dashboards and alerts to the names; docs/reference/metrics.md is generated from here.
Counts are counters of numerators and denominators, never ratios. Every label has a closed set of values or a bound,
beyond which values become `other`; ids never become labels, they are in traces and logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import grpc

from forerun.core.governor import Refusal
from forerun.core.outcomes import Outcome, Served

OTHER: Final = "other"

LATENCY_BUCKETS_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
)  # fmt: skip
"""From half a millisecond (our own overhead) to ten minutes (tools and models), so that no quantile hits the edge."""


class Kind(StrEnum):
    """The three kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """A label and what it may say.

    Attributes:
        name: Its name.
        values: The closed set; empty where values are only known when the process runs.
        bound: For such labels, how many distinct values a process tells apart before the rest becomes `other`.
        meaning: What it says, for the reference.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    bound: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. Compared by identity, which keeps look-ups on the hot path cheap.

    Attributes:
        name: As exposed; a counter ends in `_total`.
        kind: Counter, gauge or histogram.
        unit: Base unit, or a noun in braces for things that are counted.
        meaning: One sentence.
        labels: In the order of exposition.
        services: Which services expose it.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    services: tuple[str, ...]
    labels: tuple[Label, ...] = ()

    def series_bound(self) -> int:
        """The largest number of label combinations one process can expose; a histogram has one more per bucket."""
        combinations = 1
        for label in self.labels:
            combinations *= len(label.values) if label.values else label.bound + 1
        return combinations


class SessionResult(StrEnum):
    """How a session ended here."""

    FINISHED = "finished"
    IDLE = "idle"
    TAKEN_OVER = "taken_over"
    SENT_ON = "sent_on"


def _values(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


TOOL: Final = Label("tool", "name of the tool", bound=50)
METHOD: Final = Label("method", "full name of the gRPC method", bound=60)
PROVIDER: Final = Label("provider", "name of the provider", bound=30)
STREAM: Final = Label("stream", "name of the broker's stream", bound=20)
CODE: Final = Label("code", "gRPC status", _values(code.name for code in grpc.StatusCode))
KIND: Final = Label("kind", "what was run ahead, or besides", ("tool", "race", "candidate"))
MODEL: Final = Label("model", "name of the model", bound=30)
MODEL_MODE: Final = Label(
    "mode", "asked for, or besides: second attempts, candidates, judges", ("authoritative", "extra")
)
DIRECTION: Final = Label("direction", "read or generated", ("input", "output"))
STRATEGY: Final = Label("strategy", "how it was found", ("single", "best_of", "beam", "approximate"))
OUTCOME: Final = Label("outcome", "how it ended", _values(Outcome))
SERVED: Final = Label("served", "how it was answered", _values(s for s in Served if s is not Served.UNSPECIFIED))
REASON: Final = Label("reason", "why, `launched` if it was launched", ("launched", *_values(Refusal)))
WINNER: Final = Label("winner", "the attempt that answered", ("first", "second"))
MODE: Final = Label("mode", "on whose account", ("authoritative", "speculative", "audit"))
PRIORITY: Final = Label("priority", "class of the work", ("authoritative", "speculative"))
CURRENCY: Final = Label("currency", "unit of the cost", ("usd",))
AUDIT_RESULT: Final = Label("result", "what the second execution gave", ("equal", "diverged", "failed", "skipped"))
CERTIFIED: Final = Label("result", "the verifier's answer", ("certified", "contract", "taint", "stale", "failed"))
PROBABILITY: Final = Label("bucket", "predicted probability, by tenths", tuple(f"0.{n}" for n in range(10)))
CAME_TRUE: Final = Label("result", "what the agent did", ("same", "different"))
GUESS: Final = Label(
    "guess",
    "what became of it: `sure` to `no_tools` were not asked for",
    ("proposed", "same", "invalid", "late", "failed", "sure", "too_late", "off", "busy", "no_tools"),
)
RANK: Final = Label("rank", "place in its prediction; `3` is every further one", ("1", "2", "3"))
RESULT: Final = Label("result", "how it went", ("ok", "failed"))
LIMIT: Final = Label("limit", "which limit", ("memory", "pids", "cpu", "disk", "output", "wall_time"))
OPERATION: Final = Label(
    "operation", "what was done", ("fork", "read", "write", "diff", "commit", "discard", "put", "get", "collect")
)
SLOT_STATE: Final = Label("state", "busy or configured", ("busy", "total"))
SITE_STATE: Final = Label("state", "whether the call site speculates", ("on", "off"))
SESSION_RESULT: Final = Label(
    "result", "ended by its client, or because that was away or silent, or owned by others now", _values(SessionResult)
)
POOL: Final = Label("pool", "name of the pool", bound=50)
REPLICA_STATE: Final = Label("state", "decided, there, or able to take work", ("desired", "present", "ready"))
RESOURCE: Final = Label("resource", "kind of custom resource", ("policy", "tool_server", "pool"))
ACCEPTED: Final = Label("result", "whether this generation is in force", ("in_force", "refused"))
BOUND: Final = Label("bound", "which bounded queue dropped", ("notifications", "outbox"))

ALL_SERVICES: Final = ("orchestrator", "predictor", "verifier", "snapshots", "sandbox", "operator")
_ON_THE_BUS: Final = ("orchestrator", "predictor", "verifier", "sandbox", "operator")
_ORCHESTRATOR: Final = ("orchestrator",)
_SANDBOX: Final = ("sandbox",)
_VERIFIER: Final = ("verifier",)
_PREDICTOR: Final = ("predictor",)
_SNAPSHOTS: Final = ("snapshots",)
_OPERATOR: Final = ("operator",)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# fmt: off
# ---------------------------------------------------------------- speculation, derived from ledger lines
SPECULATIONS = Metric("forerun_speculations_total", _C, "{speculation}",
    "Speculations that ended, by outcome; ready and joined are hits.", _ORCHESTRATOR, (KIND, TOOL, OUTCOME))
SPECULATIONS_LAUNCHED = Metric("forerun_speculations_launched_total", _C, "{speculation}",
    "Speculations that were launched; what has not ended yet is the difference to the outcomes.",
    _ORCHESTRATOR, (KIND,))
SPECULATIONS_OPEN = Metric("forerun_speculations_open", _G, "{speculation}",
    "Speculations that run or wait to be asked for.", _ORCHESTRATOR)
AUTHORITATIVE_CALLS = Metric("forerun_authoritative_calls_total", _C, "{call}",
    "Calls that agents asked for and that were answered, by how.", _ORCHESTRATOR, (TOOL, SERVED))
SPECULABLE_CALLS = Metric("forerun_speculable_calls_total", _C, "{call}",
    "Authoritative calls that the policy would have allowed to run ahead: the denominator of coverage.", _ORCHESTRATOR,
    (TOOL,))
MEMO_HITS = Metric("forerun_memo_hits_total", _C, "{call}",
    "Calls answered from an earlier identical read of the session.", _ORCHESTRATOR, (TOOL,))
EARLY_READS = Metric("forerun_early_reads_total", _C, "{call}",
    "Reads issued while the model's message still streamed, by whether the complete message asked for them.",
    _ORCHESTRATOR, (OUTCOME,))
RACES = Metric("forerun_races_total", _C, "{call}",
    "Calls with a second attempt at an equivalent provider, by the attempt that answered.", _ORCHESTRATOR,
    (TOOL, WINNER))
RACES_DIFFERENT = Metric("forerun_races_different_total", _C, "{call}",
    "Races whose two attempts answered differently: the providers are not equivalent.", _ORCHESTRATOR, (TOOL,))
OUTCOME_UNKNOWN = Metric("forerun_outcome_unknown_total", _C, "{call}",
    "Calls that may have taken effect and of which no one can know.", _ORCHESTRATOR)
SAVED_ESTIMATED_SECONDS = Metric("forerun_saved_estimated_seconds_total", _C, "seconds",
    "Waiting that hits saved, by the ledger's estimate; measured savings come from experiments.",
    _ORCHESTRATOR, (KIND,))
WASTED_SECONDS = Metric("forerun_wasted_seconds_total", _C, "seconds",
    "Execution time of speculations that were not committed.", _ORCHESTRATOR, (KIND,))
WASTED_COST = Metric("forerun_wasted_cost_total", _C, "{currency}",
    "Cost of speculations that were not committed.", _ORCHESTRATOR, (CURRENCY,))
WASTE_CREDITS_EARNED = Metric("forerun_waste_credits_earned_total", _C, "{credit}",
    "Waste credits that authoritative calls earned; what a session has at its start comes on top.", _ORCHESTRATOR)
WASTE_CREDITS_SPENT = Metric("forerun_waste_credits_spent_total", _C, "{credit}",
    "Waste credits that speculations spent that were not committed.", _ORCHESTRATOR)
GOVERNOR_DECISIONS = Metric("forerun_governor_decisions_total", _C, "{candidate}",
    "Candidates the governor decided on.", _ORCHESTRATOR, (KIND, REASON))
CALL_SITES = Metric("forerun_call_sites", _G, "{site}",
    "Call sites that had candidates, by whether they speculate.", _ORCHESTRATOR, (SITE_STATE,))
SPECULATION_ENABLED = Metric("forerun_speculation_enabled", _G, "{flag}",
    "1 while this process may speculate, 0 while speculation is switched off for all tenants.", _ORCHESTRATOR)

# ---------------------------------------------------------------- executions and models
TOOL_EXECUTIONS = Metric("forerun_tool_executions_total", _C, "{execution}",
    "Executions of tools; divided by authoritative calls this is the amplification.",
    ("orchestrator", "verifier"), (MODE,))
PROVIDER_REQUESTS = Metric("forerun_provider_requests_total", _C, "{request}",
    "Requests to rate-limited or billed providers.", _SANDBOX, (PROVIDER, RESULT))
RATE_LIMITED = Metric("forerun_rate_limited_total", _C, "{request}",
    "Requests that a provider's rate limit refused or delayed.", _SANDBOX, (PROVIDER,))

MODEL_REQUESTS = Metric("forerun_model_requests_total", _C, "{request}",
    "Requests to providers of models that were answered, failed or stopped.", _ORCHESTRATOR, (MODEL, MODEL_MODE))
MODEL_TOKENS = Metric("forerun_model_tokens_total", _C, "{token}",
    "Tokens of model requests, as providers count them, else estimated.", _ORCHESTRATOR, (MODEL, DIRECTION, MODEL_MODE))
MODEL_COST = Metric("forerun_model_cost_total", _C, "{currency}",
    "Money of model requests.", _ORCHESTRATOR, (CURRENCY, MODEL_MODE))
MODEL_FIRST_TOKEN_SECONDS = Metric("forerun_model_first_token_seconds", _H, "seconds",
    "From the ask of a single answer to its first token, retries and second attempts included.",
    _ORCHESTRATOR, (MODEL,))
ANSWERS = Metric("forerun_answers_total", _C, "{answer}",
    "Answers of models that were given, by how they were found.", _ORCHESTRATOR, (STRATEGY,))

# ---------------------------------------------------------------- time
STEP_SECONDS = Metric("forerun_step_seconds", _H, "seconds",
    "From the first event of a step to the answer of its last call.", _ORCHESTRATOR)
CALL_SECONDS = Metric("forerun_call_seconds", _H, "seconds",
    "From an authoritative call's ask to its answer.", _ORCHESTRATOR, (SERVED,))
OVERHEAD_SECONDS = Metric("forerun_overhead_seconds", _H, "seconds",
    "What the platform added to an authoritative call beyond the tool's own time.", _ORCHESTRATOR, (SERVED,))
QUEUE_WAIT_SECONDS = Metric("forerun_queue_wait_seconds", _H, "seconds",
    "Waiting for a slot.", ("orchestrator", "sandbox"), (PRIORITY,))
TOOL_SECONDS = Metric("forerun_tool_seconds", _H, "seconds",
    "Execution time of tools on a worker.", _SANDBOX, (TOOL,))
PREDICTION_SECONDS = Metric("forerun_prediction_seconds", _H, "seconds",
    "Time to make the candidates for one event.", _PREDICTOR)
SNAPSHOT_SECONDS = Metric("forerun_snapshot_operation_seconds", _H, "seconds",
    "Time of operations on versioned state.", _SNAPSHOTS, (OPERATION,))
LOOP_LAG_SECONDS = Metric("forerun_event_loop_lag_seconds", _H, "seconds",
    "How late the event loop runs a timer; high values mean blocked or overloaded.", ALL_SERVICES)

# ---------------------------------------------------------------- sessions, workers
SESSIONS_OPEN = Metric("forerun_sessions_open", _G, "{session}", "Sessions that are owned here.", _ORCHESTRATOR)
SESSIONS = Metric("forerun_sessions_total", _C, "{session}", "Sessions that ended, or went to another owner.",
    _ORCHESTRATOR, (SESSION_RESULT,))
SLOTS = Metric("forerun_slots", _G, "{slot}", "Slots of a worker.", _SANDBOX, (PRIORITY, SLOT_STATE))
PREEMPTIONS = Metric("forerun_preemptions_total", _C, "{execution}",
    "Speculative executions that were stopped for authoritative work.", _SANDBOX)
LIMIT_HITS = Metric("forerun_limit_hits_total", _C, "{execution}",
    "Executions that a limit ended.", _SANDBOX, (LIMIT,))
ISOLATION = Metric("forerun_isolation_active", _G, "{flag}", "1 at the level of isolation that is active.", _SANDBOX,
    (Label("level", "the level", ("gvisor", "bubblewrap", "pod", "process")),))

# ---------------------------------------------------------------- prediction, verification, state
CANDIDATES = Metric("forerun_candidates_total", _C, "{candidate}",
    "Candidates that were published.", _PREDICTOR, (RANK,))
SECOND_GUESSES = Metric("forerun_second_guesses_total", _C, "{step}",
    "Model steps, by what became of a small model's second guess.", _PREDICTOR, (GUESS,))
SECOND_GUESS_HITS = Metric("forerun_second_guess_hits_total", _C, "{guess}",
    "Second guesses that named a call that was asked for and that nothing else had named.", _PREDICTOR)
SECOND_GUESS_SECONDS = Metric("forerun_second_guess_seconds_total", _C, "seconds",
    "Time of the small model, whatever came of it.", _PREDICTOR)
SECOND_GUESS_SITES = Metric("forerun_second_guess_sites", _G, "{site}",
    "Call sites at which second guesses pay: they are off everywhere else.", _PREDICTOR)
CALIBRATION = Metric("forerun_calibration_total", _C, "{candidate}",
    "Candidates whose truth is known, by predicted probability: same / all of a bucket should be near the bucket.",
    _PREDICTOR, (PROBABILITY, CAME_TRUE))
CERTIFICATIONS = Metric("forerun_certifications_total", _C, "{speculation}",
    "Finished speculations that the verifier looked at.", _VERIFIER, (CERTIFIED,))
AUDITS = Metric("forerun_audits_total", _C, "{audit}",
    "Committed observations whose action was executed again.", _VERIFIER, (AUDIT_RESULT,))
SNAPSHOT_OPERATIONS = Metric("forerun_snapshot_operations_total", _C, "{operation}",
    "Operations on versioned state.", _SNAPSHOTS, (OPERATION, RESULT))
SNAPSHOT_BYTES = Metric("forerun_snapshot_bytes", _G, "bytes", "Bytes of versioned state on disk.", _SNAPSHOTS)

# ---------------------------------------------------------------- operator
LEADING = Metric("forerun_operator_leading", _G, "{flag}", "1 while this replica leads.", _OPERATOR)
RESOURCES = Metric("forerun_operator_resources", _G, "{object}",
    "Custom resources, by whether their present generation is in force.", _OPERATOR, (RESOURCE, ACCEPTED))
RECONCILE_SECONDS = Metric("forerun_operator_reconcile_seconds", _H, "seconds",
    "Time of one look at all policies and tool servers, without the writing of statuses.", _OPERATOR)
RECONCILES = Metric("forerun_operator_reconciles_total", _C, "{look}",
    "Looks at custom resources, by how they went.", _OPERATOR, (RESULT,))
RIGHTS_MISSING = Metric("forerun_operator_rights_missing", _G, "{right}",
    "Rights that the operator's account lacks; its log names them.", _OPERATOR)
API_FAILURES = Metric("forerun_operator_api_failures_total", _C, "{request}",
    "Requests to the Kubernetes API that failed.", _OPERATOR)
POOL_REPLICAS = Metric("forerun_pool_replicas", _G, "{replica}", "Replicas of a pool.", _OPERATOR,
    (POOL, REPLICA_STATE))
POOL_DEMAND = Metric("forerun_pool_demand", _G, "{slot}",
    "Authoritative executions of a pool that run or wait, by the last reports.", _OPERATOR, (POOL,))
POOL_SPECULATIVE_SLOTS = Metric("forerun_pool_speculative_slots", _G, "{slot}",
    "Slots that speculation may use now, of all workers of a pool.", _OPERATOR, (POOL,))
POOL_SIGNAL_KNOWN = Metric("forerun_pool_signal_known", _G, "{flag}",
    "1 while the load of a pool is known; at 0 it keeps its size.", _OPERATOR, (POOL,))

# ---------------------------------------------------------------- transport
RPC_CALLS = Metric("forerun_rpc_calls_total", _C, "{call}",
    "Incoming gRPC calls that ended.", ALL_SERVICES, (METHOD, CODE))
RPC_SECONDS = Metric("forerun_rpc_seconds", _H, "seconds", "Time of incoming gRPC calls.", ALL_SERVICES, (METHOD,))
RPC_ACTIVE = Metric("forerun_rpc_active", _G, "{call}", "Incoming gRPC calls that run.", ALL_SERVICES, (METHOD,))
BUS_CONNECTED = Metric("forerun_bus_connected", _G, "{flag}", "1 while the broker is connected.", _ON_THE_BUS)
BUS_APPENDS = Metric("forerun_bus_appends_total", _C, "{message}", "Durable publishes.", _ON_THE_BUS, (RESULT,))
BUS_APPEND_SECONDS = Metric("forerun_bus_append_seconds", _H, "seconds",
    "Time of durable publishes until their acknowledgement.", _ON_THE_BUS)
DEAD_LETTERS = Metric("forerun_dead_letters_total", _C, "{message}",
    "Messages that were set aside because no attempt can process them.", _ON_THE_BUS, (STREAM,))
DROPPED = Metric("forerun_dropped_total", _C, "{item}",
    "Items that a full bounded queue dropped by design.", _ON_THE_BUS, (BOUND,))
TASK_FAILURES = Metric("forerun_task_failures_total", _C, "{task}",
    "Background tasks that ended with an unexpected exception.", ALL_SERVICES)

# fmt: on

METRICS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""Every metric, in the order of this table."""
