"""Every bound is used, has its row in the reference, and has a test that reaches it.

A test is named `file::function` below `tests/`. A bound that is added needs a line here and in the table of
`forerun.cli.limits_reference`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from forerun.cli import limits_reference
from forerun.cli.limits_reference import TABLE, UNITS
from forerun.cli.settings_reference import ALL
from forerun.core import limits
from forerun.runtime.errors import ErrorReason
from forerun.runtime.settings import settings_reference

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "limits.md"

CALLS = "integration/bounds/test_calls.py"
STREAMS = "integration/bounds/test_streams.py"
SESSIONS = "integration/bounds/test_sessions.py"
LATE = "integration/cases/test_late_effects.py"
BATCHES = "integration/cases/test_batches.py"
MACHINE = "unit/session/test_bounds.py"
CORE = "unit/core/test_bounds.py"
OUTLET = "unit/orchestrator/test_outlet.py"
PLANS = "unit/plan/test_check.py"
MODELS = "unit/runtime/test_models.py"
ANSWERS = "integration/orchestrator/test_answers.py"
GUESSES = "unit/predictor/test_second_guess.py"
GRAMMARS = "property/grammar/test_grammar.py"
WORKSPACES = "integration/sandbox/test_workspaces.py"

NOT_HELD = f"{CALLS}::test_arguments_that_nobody_can_hold_are_refused_and_nothing_runs"
SLOW = f"{STREAMS}::test_a_client_that_reads_slowly_is_sent_away_and_gets_everything_when_it_is_back"
TESTS = {
    "ARGUMENTS_BYTES": [f"{BATCHES}::test_arguments_above_their_limit_are_one_error_that_names_size_and_limit"],
    "JSON_DEPTH": [NOT_HELD],
    "NUMBER_DIGITS": [NOT_HELD],
    "NUMBER_EXPONENT": [NOT_HELD],
    "SCHEMA_BYTES": [f"{CORE}::test_a_schema_is_bounded", f"{SESSIONS}::test_errors_of_sessions_are_typed"],
    "SCHEMA_REFERENCES": [f"{CORE}::test_a_chain_of_references_is_followed_so_far"],
    "ARGUMENT_PIECES": ["unit/core/test_intake.py::test_what_cannot_be_split_without_loss_is_one_error"],
    "NAME_CHARS": [f"{CALLS}::test_names_are_bounded"],
    "RESOURCE_KEY_CHARS": ["unit/core/test_resources.py::test_keys_are_bounded_by_conflicting_with_more"],
    "RESOURCE_KEY_SEGMENTS": ["unit/core/test_resources.py::test_keys_are_bounded_by_conflicting_with_more"],
    "RESOURCE_TEMPLATES": [f"{CORE}::test_resource_templates_of_a_contract_are_bounded"],
    "GENERATION_MARKS": ["unit/core/test_freshness.py::test_memory_is_bounded_and_folding_makes_everything_stale"],
    "GRAMMAR_STATES": [f"{GRAMMARS}::test_grammars_are_bounded"],
    "GRAMMAR_STRING_CHARS": [f"{GRAMMARS}::test_grammars_are_bounded"],
    "GRAMMAR_LIST_ITEMS": [f"{GRAMMARS}::test_grammars_are_bounded"],
    "GUESS_SITES": [f"{GUESSES}::test_sites_are_bounded_and_a_forgotten_one_is_off_again"],
    "GUESS_AGENTS": [f"{GUESSES}::test_agents_and_sessions_are_bounded"],
    "GUESS_TRANSCRIPT_CHARS": [f"{GUESSES}::test_a_transcript_keeps_the_latest_text"],
    "GUESS_SCHEMAS_BYTES": ["unit/orchestrator/test_schemas.py::test_schemas_go_into_the_journal_up_to_a_bound"],
    "CALLS_PER_MESSAGE": [f"{CALLS}::test_one_call_more_than_a_message_may_have_is_one_error_that_names_the_bound"],
    "CALLS_IN_FLIGHT_PER_MESSAGE": [
        f"{BATCHES}::test_eight_hundred_reads_run_sixteen_at_a_time_and_all_are_answered"
    ],
    "CALLS_IN_FLIGHT_PER_TENANT": [
        f"{CALLS}::test_a_tenants_calls_run_so_many_at_a_time_and_start_in_the_order_of_their_asking",
        f"{CALLS}::test_a_call_that_gives_up_while_it_waits_for_a_place_never_runs",
    ],
    "ORDER_FAN_IN": ["unit/core/test_order.py::test_many_readers_and_many_writers_below_meet_in_one_join"],
    "CALL_QUEUE": [f"{CALLS}::test_a_message_beyond_the_queue_is_refused_at_once_and_may_be_asked_again"],
    "CALL_ATTEMPTS": [f"{MACHINE}::test_a_tool_that_is_away_is_tried_so_often_with_growing_waits"],
    "RETRY_BACKOFF_INITIAL_SECONDS": [f"{MACHINE}::test_a_tool_that_is_away_is_tried_so_often_with_growing_waits"],
    "RETRY_BACKOFF_MAX_SECONDS": [f"{MACHINE}::test_waits_for_a_platform_that_is_away_grow_up_to_the_bound"],
    "LOOKUP_ATTEMPTS": [
        "unit/sandbox/test_http.py::test_a_name_that_does_not_resolve_is_asked_for_so_often_and_the_tool_was_never_called"
    ],
    "PLAN_TASKS": [f"{PLANS}::test_two_thousand_tasks"],
    "PLAN_TASKS_MAX": [f"{PLANS}::test_options_are_bounded"],
    "PLAN_DEPTH": [f"{PLANS}::test_a_chain_of_two_thousand"],
    "PLAN_REFERENCES": [f"{PLANS}::test_references_are_bounded_over_the_whole_plan"],
    "PLAN_TEXT_BYTES": ["unit/plan/test_intake_text.py::test_text_is_bounded"],
    "PLAN_HELD_BYTES": ["unit/plan/test_machine.py::test_results_above_the_bound_are_passed_on_and_not_held"],
    "REPLANS": [
        "unit/plan/test_machine.py::test_a_plan_may_be_continued_a_few_times_and_refer_to_what_went_before"
    ],
    "SPECULATIONS_PER_SESSION": [
        f"{MACHINE}::test_no_more_speculations_than_the_bound_are_open",
        f"{MACHINE}::test_an_old_result_makes_room_for_a_new_candidate",
    ],
    "SPECULATIONS_PER_REPLICA": [
        "unit/orchestrator/test_places.py::"
        "test_speculations_are_bounded_by_policy_while_they_run_and_by_the_replica_while_they_are_open"
    ],
    "CANDIDATES_PER_PREDICTION": [
        f"{CALLS}::test_candidates_beyond_the_bound_are_ignored_and_explanations_are_cut"
    ],
    "CANDIDATE_EXPLANATION_CHARS": [
        f"{CALLS}::test_candidates_beyond_the_bound_are_ignored_and_explanations_are_cut"
    ],
    "MEMO_ENTRIES_PER_SESSION": [f"{CORE}::test_the_memo_forgets_what_was_not_used_for_longest"],
    "MEMO_BYTES_PER_SESSION": [
        f"{CORE}::test_the_memo_is_bounded_in_bytes_and_takes_nothing_that_is_larger_than_all_of_it"
    ],
    "TRUSTED_TEXT_BYTES": ["unit/core/test_taint.py::test_the_index_is_bounded_and_then_trusts_nothing_new"],
    "TRUSTED_TOKEN_CHARS": ["unit/core/test_taint.py::test_a_long_text_is_trusted_by_its_tokens"],
    "RACED_TOOLS": ["unit/core/test_race.py::test_the_table_forgets_the_least_recently_used_tool"],
    "PROVIDERS": ["unit/core/test_providers.py::test_the_table_forgets_the_least_recently_used_provider"],
    "BREAKER_PAUSE_INITIAL_SECONDS": [
        "unit/core/test_providers.py::test_a_failed_probe_doubles_the_pause_up_to_a_bound"
    ],
    "BREAKER_PAUSE_MAX_SECONDS": ["unit/core/test_providers.py::test_a_failed_probe_doubles_the_pause_up_to_a_bound"],
    "COMMAND_CHARS": ["unit/core/test_shell.py::test_everything_unclear_or_writing_stays_in_the_workspace"],
    "MESSAGE_BYTES": [
        f"{BATCHES}::test_a_simple_client_gets_one_clear_error_above_the_limit",
        "integration/runtime/test_transport.py::test_sizes_around_the_limit_work_or_give_one_clear_error",
    ],
    "BUS_MESSAGE_BYTES": [
        "contract/runtime_bus/test_streams.py::test_the_largest_message_passes_and_one_byte_more_does_not"
    ],
    "CHUNK_BYTES": [f"{BATCHES}::test_results_around_the_message_limit_are_whole_and_run_once"],
    "INLINE_OBSERVATION_BYTES": [
        f"{BATCHES}::test_a_result_of_five_megabytes_is_whole_and_travels_by_digest",
        f"{SESSIONS}::test_a_take_over_reads_no_large_result_until_somebody_asks",
    ],
    "RESULT_BYTES": [
        f"{CALLS}::test_a_result_above_the_bound_is_one_error_that_says_how_to_cap_it",
        f"{CALLS}::test_a_worker_refuses_what_its_setting_does_not_allow",
    ],
    "MODEL_REPLICAS": [f"{MODELS}::test_a_model_that_cannot_be_used_is_refused_with_its_place"],
    "MODEL_OUTPUT_TOKENS": [f"{MODELS}::test_a_provider_has_cautious_defaults_and_a_model_its_replicas_in_order"],
    "MODEL_OUTPUT_TOKENS_MAX": [f"{MODELS}::test_a_model_that_cannot_be_used_is_refused_with_its_place"],
    "MODEL_RESPONSE_BYTES": [f"{MODELS}::test_a_provider_has_cautious_defaults_and_a_model_its_replicas_in_order"],
    "MODEL_REQUESTS": [f"{MODELS}::test_requests_beyond_the_concurrency_wait_in_order_and_guesses_never_wait"],
    "MODEL_REQUESTS_MAX": [f"{MODELS}::test_a_model_that_cannot_be_used_is_refused_with_its_place"],
    "MODEL_QUEUE": [
        f"{MODELS}::test_the_queue_of_a_provider_is_bounded_and_waiting_counts_as_waiting_for_a_token"
    ],
    "MODEL_PROMPT_BYTES": [f"{ANSWERS}::test_unknown_models_and_too_much_text_are_refused"],
    "ANSWER_CANDIDATES": [
        f"{MODELS}::test_candidates_of_answers_are_off_unless_a_policy_says_otherwise",
        f"{ANSWERS}::test_what_is_wrong_is_refused_by_its_name_and_nothing_is_sent",
    ],
    "ANSWER_STEPS": [f"{ANSWERS}::test_what_is_wrong_is_refused_by_its_name_and_nothing_is_sent"],
    "STREAM_MESSAGES": [SLOW],
    "STREAM_BYTES": [f"{OUTLET}::test_bytes_that_wait_are_bounded_and_an_empty_stream_takes_any_result"],
    "STREAM_LINGER_SECONDS": [f"{OUTLET}::test_what_nobody_reads_is_not_kept_for_long"],
    "JOURNAL_EVENTS_PER_SESSION": [f"{CALLS}::test_a_journal_has_an_end_and_open_calls_are_still_written_down"],
    "EVENT_IDS_PER_SESSION": [f"{MACHINE}::test_only_the_latest_ids_of_events_are_known"],
    "SESSIONS_PER_REPLICA": [
        "integration/bounds/test_many_sessions.py::"
        "test_ten_thousand_sessions_are_open_at_once_and_one_more_is_refused"
    ],
    "SESSIONS_PER_TENANT": [f"{SESSIONS}::test_sessions_beyond_the_bounds_are_refused_with_limit_and_setting"],
    "SESSION_IDLE_SECONDS": [f"{STREAMS}::test_a_silent_session_ends"],
    "DEADLINE_DEFAULT_SECONDS": [f"{CALLS}::test_without_a_limit_of_its_own_a_tool_is_stopped_after_the_default"],
    "CANCEL_SETTLE_SECONDS": [f"{LATE}::test_what_does_not_settle_is_reported_and_not_waited_for"],
    "LINGERING_WRITES": ["unit/session/test_late_effects.py::test_above_the_bound_it_is_everything"],
    "UNSETTLED_SECONDS": [f"{LATE}::test_a_shared_resource_is_trusted_again_after_the_longest_call"],
    "CLOCK_SKEW_SECONDS": ["unit/core/test_unsettled.py::test_clocks_that_differ_do_not_end_it_early"],
    "UNSETTLED_KEYS": [
        "unit/core/test_unsettled.py::test_above_its_bounds_it_is_everything",
        "unit/orchestrator/test_shared.py::test_so_many_that_they_count_as_one_until_there_are_fewer",
    ],
    "UNSETTLED_BYTES": ["unit/core/test_unsettled.py::test_above_its_bounds_it_is_everything"],
    "DEADLINE_MAX_SECONDS": [f"{CALLS}::test_a_deadline_beyond_the_bound_is_refused"],
    "OPEN_WORLD_STALENESS_SECONDS": ["unit/session/test_machine.py::test_open_world_results_live_ten_seconds"],
    "WORKSPACE_FILES": [f"{WORKSPACES}::test_a_workspace_has_bounds"],
    "WORKSPACE_BYTES": [f"{WORKSPACES}::test_a_workspace_has_bounds"],
    "WORKSPACE_FORKS": [f"{WORKSPACES}::test_a_workspace_has_bounds"],
    "MCP_CONNECTIONS": [
        "integration/sandbox/test_mcp.py::test_idle_connections_make_room_and_busy_ones_are_one_error_that_names_the_bound"
    ],
    "WORKERS": ["unit/orchestrator/test_workers.py::test_no_more_workers_than_the_bound_are_known"],
    "SUBSCRIPTION_PENDING_MESSAGES": [
        "contract/runtime_bus/test_core.py::test_a_slow_listener_drops_the_newest_and_counts_them"
    ],
    "SESSION_INBOX_EVENTS": [f"{CALLS}::test_a_broker_that_is_away_pushes_the_client_back_and_nothing_is_lost"],
    "ERASURES_REPORTED": ["unit/serving/test_governed.py::test_reports_stay_within_what_the_store_takes"],
    "ERASURE_WAIT_SECONDS": [
        "integration/bounds/test_erasing.py::test_a_user_erases_its_own_tenant_and_an_operator_any"
    ],
    "OUTBOX_MESSAGES": [
        "unit/orchestrator/test_ledger.py::test_lines_beyond_the_bound_are_dropped_counted_and_said_once"
    ],
}  # fmt: skip

UNFINISHED: frozenset[str] = frozenset()
"""Bounds whose feature is being built."""

BOUNDS = sorted(name for name in vars(limits) if name.isupper() and name not in UNITS)


@cache
def functions(file: str) -> frozenset[str]:
    """The functions of a test file."""
    tree = ast.parse((REPOSITORY / "tests" / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@cache
def used() -> frozenset[str]:
    """The bounds that the code refers to, as `limits.NAME`."""
    found: set[str] = set()
    for folder in ("services", "sdk", "gpu-serving"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "limits":
                    found.add(node.attr)
    return frozenset(found)


def test_every_bound_has_its_row_and_its_tests_and_nothing_else_has() -> None:
    assert sorted(TABLE) == BOUNDS
    assert sorted(TESTS) == BOUNDS


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_is_used_and_reached(bound: str) -> None:
    if bound in UNFINISHED:
        assert bound not in used(), "it is built now: name its test, and take it out of UNFINISHED"
        return
    assert bound in used(), "a bound of something that is not built comes with it"
    tests = TESTS[bound]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert name in functions(file), f"there is no {test}"


@pytest.mark.parametrize("bound", BOUNDS)
def test_its_errors_and_settings_exist(bound: str) -> None:
    assert set(TABLE[bound].errors) <= set(ErrorReason.__members__)
    variables = settings_reference(ALL)
    assert all(f"`{name}`" in variables for name in TABLE[bound].settings)


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == limits_reference.reference(), (
        "run: python -m forerun.cli.limits_reference > docs/reference/limits.md"
    )
