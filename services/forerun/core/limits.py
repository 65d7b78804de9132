"""Every bound of the platform, with its unit in the name and its reason below it.

A bound is a constant and not a setting where another value would change what a message means or what a peer accepts.
Where operators may choose (deadlines, idle time, slots), the constant is the default or the ceiling of the setting.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# ---------------------------------------------------------------- arguments and JSON

ARGUMENTS_BYTES: Final = 1 * MIB
"""Arguments of one call. They travel in line (journal, bus, gRPC), so they stay below one NATS message with headers."""

JSON_DEPTH: Final = 64
"""Levels of nesting. Deep enough for real schemas; shallow enough that no recursion of ours can run out of stack."""

NUMBER_DIGITS: Final = 20_000
"""Digits of one number. Exact integers of thousands of digits are legal; converting them is quadratic, so it ends."""

NUMBER_EXPONENT: Final = 100_000
"""Magnitude of a decimal exponent. Beyond it a few bytes of text would stand for a number nobody can hold."""

SCHEMA_BYTES: Final = 256 * KIB
"""JSON schema of one tool. Larger than any published one; it is digested and walked for every identity."""

SCHEMA_REFERENCES: Final = 32
"""`$ref` hops from one node. A chain that is longer is a cycle or an attack."""

ARGUMENT_PIECES: Final = 1_000
"""Complete objects glued together in one argument text of a provider's stream; the same as calls of one message."""

# ---------------------------------------------------------------- grammars of calls

GRAMMAR_STATES: Final = 30_000
"""States of one grammar. Hundreds of real tools fit; an automaton is walked for each token, so it stays in memory."""

GRAMMAR_STRING_CHARS: Final = 256
"""Characters of a string whose schema has a bound: each needs states of its own. Strings without one have no bound."""

GRAMMAR_LIST_ITEMS: Final = 8
"""Items of a list whose schema has a bound: each needs states of its own. Lists without one have no bound."""

# ---------------------------------------------------------------- second guesses of a small model

GUESS_SITES: Final = 1_024
"""Call sites of one agent at which the worth of second guesses is known. Agents have dozens."""

GUESS_AGENTS: Final = 256
"""Agents with such sites in one predictor, as many as it keeps models of."""

GUESS_TRANSCRIPT_CHARS: Final = 16_384
"""Text kept of a session for its next prompt. A small model reads the last few thousand characters."""

GUESS_SCHEMAS_BYTES: Final = 131_072
"""Schemas of a session's tools in its journal, where a small model guesses; well below one message of the bus."""

# ---------------------------------------------------------------- names and keys

NAME_CHARS: Final = 256
"""Names of tenants, principals, agents, tools, servers and policies. They become subject tokens and labels."""

RESOURCE_KEY_CHARS: Final = 1_024
"""One resource key. A longer one is cut back to its last whole segment, which only makes it conflict with more."""

RESOURCE_KEY_SEGMENTS: Final = 32
"""Segments of a resource key. Every write marks each ancestor, so this bounds the marks of one write."""

RESOURCE_TEMPLATES: Final = 32
"""Resource templates of one contract, reads and writes each."""

GENERATION_MARKS: Final = 100_000
"""Freshness marks held in memory by one session. Over it they are folded: what was recorded counts as stale."""

# ---------------------------------------------------------------- calls

CALLS_PER_MESSAGE: Final = 1_000
"""Calls of one model message that are accepted. Models really ask for hundreds; they queue, they are not refused."""

CALLS_IN_FLIGHT_PER_MESSAGE: Final = 16
"""Calls of one message that run at the same time. The rest wait in call order."""

CALLS_IN_FLIGHT_PER_TENANT: Final = 256
"""Authoritative calls of one tenant that one replica runs at the same time; the rest wait in a queue."""

ORDER_FAN_IN: Final = 64
"""Calls that one call waits for one by one, of those that touched one resource. More are waited for together."""

CALL_QUEUE: Final = 10_000
"""Authoritative calls that wait in one replica. Beyond it a caller is told RESOURCE_EXHAUSTED at once."""

CALL_ATTEMPTS: Final = 3
"""Tries of a repeatable call, the first included. One layer retries; more would be a storm."""

RETRY_BACKOFF_INITIAL_SECONDS: Final = 0.1
"""Wait before the second try; doubled for each further one."""

RETRY_BACKOFF_MAX_SECONDS: Final = 1.0
"""Longest wait between two tries, unless a provider asks for more. Parts of the platform are back within seconds."""

LOOKUP_ATTEMPTS: Final = 4
"""Times that a worker asks for the addresses of a tool's host before a try of the call has failed."""

# ---------------------------------------------------------------- plans

PLAN_TASKS: Final = 1_000
"""Tasks of one plan, over all of its rounds, unless its owner allows more. The same as calls of one message."""

PLAN_TASKS_MAX: Final = 10_000
"""Ceiling of what an owner may allow. All of them stay in memory until the plan has ended."""

PLAN_DEPTH: Final = 256
"""Tasks on the longest chain of references. A longer one is a program, and would outlive every deadline."""

PLAN_REFERENCES: Final = 100_000
"""References of all tasks of one plan: ten for each of the most tasks, and joins over hundreds."""

PLAN_TEXT_BYTES: Final = 16 * MIB
"""Text of one plan, from a model or a file."""

PLAN_HELD_BYTES: Final = 256 * MIB
"""Results that one plan holds for the tasks that refer to them. What comes above it is only passed on."""

REPLANS: Final = 3
"""How often a plan may be continued with new tasks. Each is a model request; more is an agent that turns in circles."""

# ---------------------------------------------------------------- speculation

SPECULATIONS_PER_SESSION: Final = 16
"""Open speculations of one session, of all kinds."""

SPECULATIONS_PER_REPLICA: Final = 1_024
"""Open speculations of one orchestrator replica."""

CANDIDATES_PER_PREDICTION: Final = 32
"""Candidates in one message of the predictor. Ranks beyond a few have no weight; the rest is room for engines."""

CANDIDATE_EXPLANATION_CHARS: Final = 500
"""Explanation of one candidate, for people."""

MEMO_ENTRIES_PER_SESSION: Final = 512
"""Remembered reads of one session; the least recently used goes first."""

MEMO_BYTES_PER_SESSION: Final = 16 * MIB
"""Bytes of remembered observations of one session. Larger observations count with their digest only."""

TRUSTED_TEXT_BYTES: Final = 2 * MIB
"""Trusted tokens and values of one session. When full nothing more becomes trusted: fewer speculations."""

TRUSTED_TOKEN_CHARS: Final = 4_096
"""Longest trusted token or value. Longer texts are trusted token by token."""

COMMAND_CHARS: Final = 16 * KIB
"""A command line that is classified. A longer one is simply not read-only."""

# ---------------------------------------------------------------- providers

RACED_TOOLS: Final = 1_024
"""Tools whose pace one replica knows, for second attempts of slow calls; the least recently used is forgotten."""

PROVIDERS: Final = 1_024
"""Providers whose health one replica knows; the least recently used is forgotten."""

BREAKER_PAUSE_INITIAL_SECONDS: Final = 1.0
"""First pause of a breaker that has opened; doubled at every probe that fails."""

BREAKER_PAUSE_MAX_SECONDS: Final = 60.0
"""Longest pause of a breaker: a provider that is back is found within a minute."""

# ---------------------------------------------------------------- models

MODEL_REPLICAS: Final = 16
"""Providers of one model. A retry or a second attempt looks at all of them."""

MODEL_OUTPUT_TOKENS: Final = 4_096
"""Generated tokens of one request, where the policy names no bound."""

MODEL_OUTPUT_TOKENS_MAX: Final = 1_000_000
"""Ceiling of what a policy may allow: the longest outputs of models, with room."""

MODEL_RESPONSE_BYTES: Final = 4 * MIB
"""Bytes of one response of a provider, framing included, where the policy names no bound."""

MODEL_REQUESTS: Final = 64
"""Requests that one process sends to one provider at once, where the policy names no bound."""

MODEL_REQUESTS_MAX: Final = 4_096
"""Ceiling of what a policy may allow: each is a connection."""

MODEL_QUEUE: Final = 1_024
"""Requests that wait for one provider in one process. Beyond it a caller is told at once."""

MODEL_PROMPT_BYTES: Final = 2 * MIB
"""Messages and tools of one request: half of a gRPC message, and more than the longest context."""

ANSWER_CANDIDATES: Final = 32
"""Candidates of one answer, and beginnings that a beam search generates at once."""

ANSWER_STEPS: Final = 64
"""Pieces of one answer in a beam search."""

# ---------------------------------------------------------------- messages and results

MESSAGE_BYTES: Final = 4 * MIB
"""One gRPC message, the same on both sides. Larger values travel in chunks or by digest."""

BUS_MESSAGE_BYTES: Final = 1 * MIB
"""One bus message with its headers: the default `max_payload` of NATS."""

CHUNK_BYTES: Final = 1 * MIB
"""One chunk of a streamed value; well below a message."""

INLINE_OBSERVATION_BYTES: Final = 128 * KIB
"""Observation carried inside an event. A larger one goes to the object store and travels by digest."""

RESULT_BYTES: Final = 64 * MIB
"""Result of one call. A tool that returns more needs a cap in its contract; else it is a typed error."""

STREAM_MESSAGES: Final = 4_096
"""Answers and notices that wait for one connection. A client that lets more wait is sent away and connects again."""

STREAM_BYTES: Final = 256 * MIB
"""Bytes of what waits for one connection; what an empty one is given may be larger."""

STREAM_LINGER_SECONDS: Final = 30.0
"""How long what waits for a connection that has ended is kept for a client that still reads it."""

JOURNAL_EVENTS_PER_SESSION: Final = 100_000
"""Events of one session's journal. It is replayed on take-over, so it has an end."""

EVENT_IDS_PER_SESSION: Final = 4_096
"""Events of one session that are known by their id when they are sent again: more than a client has under way."""

# ---------------------------------------------------------------- sessions and time

SESSIONS_PER_REPLICA: Final = 10_000
"""Open sessions of one orchestrator replica."""

SESSIONS_PER_TENANT: Final = 2_000
"""Open sessions of one tenant on one replica, so that no tenant takes them all."""

SESSION_IDLE_SECONDS: Final = 1_800.0
"""A session stream without an event is closed after 30 minutes."""

DEADLINE_DEFAULT_SECONDS: Final = 60.0
"""Deadline of a call whose caller and contract name none."""

DEADLINE_MAX_SECONDS: Final = 3_600.0
"""Longest deadline of a call. Nothing waits without end."""

CANCEL_SETTLE_SECONDS: Final = 5.0
"""How long a stopped execution may take to end: after it, it counts as one that may go on, and a session that ends
reports it instead of waiting."""

LINGERING_WRITES: Final = 256
"""Writes of one session that ended without an answer of their tool. Above it nothing is answered from what is known."""

UNSETTLED_SECONDS: Final = DEADLINE_MAX_SECONDS
"""How long a write of a shared resource that ended without an answer of its tool may still take effect: as long as
the longest call that was answered."""

CLOCK_SKEW_SECONDS: Final = 60.0
"""How far the wall clocks of two replicas may be apart: what one registers for the other lasts so much longer."""

UNSETTLED_KEYS: Final = 256
"""Shared resources of one tenant with such a write, or one that runs. Above it all of them count as one."""

UNSETTLED_BYTES: Final = 32 * KIB
"""The same in bytes: every look at shared generations reads them."""

OPEN_WORLD_STALENESS_SECONDS: Final = 10.0
"""Age limit of a read of something that is also written elsewhere, where the contract names none."""

# ---------------------------------------------------------------- workspaces and queues

WORKSPACE_FILES: Final = 200_000
"""Files, directories and links of one workspace. Copied forks walk all of them; large repositories have as many."""

WORKSPACE_BYTES: Final = 4 * 1024 * MIB
"""Bytes of one workspace's files."""

WORKSPACE_FORKS: Final = 32
"""Living forks of one workspace: each open speculation may hold one, and as many are on their way out."""

MCP_CONNECTIONS: Final = 512
"""Connections to MCP servers that one worker holds, stdio servers included. Idle ones of `stateless` servers make room
for new ones; what keeps the state of a session does so after SESSION_IDLE_SECONDS."""

WORKERS: Final = 4_096
"""Sandbox workers that one orchestrator knows. More reports than that are somebody's mistake, or an attack."""

SUBSCRIPTION_PENDING_MESSAGES: Final = 8_192
"""Messages that a core subscription holds before it drops and counts."""

SESSION_INBOX_EVENTS: Final = 2_048
"""Events that wait for one session's machine. Twice the calls of one message; beyond it the stream is pushed back."""

OUTBOX_MESSAGES: Final = 10_000
"""Publishes a replica owes to an unreachable broker before it refuses calls that may not be repeated."""

# ---------------------------------------------------------------- erasures

ERASURES_REPORTED: Final = 64
"""Erasures that one model server reports as done, the latest. People wait for one or a few at a time."""

ERASURE_WAIT_SECONDS: Final = 60.0
"""How long a request to erase a tenant may wait for the model servers. They hear of it within milliseconds."""
