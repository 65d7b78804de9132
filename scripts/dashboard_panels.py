"""The panels of the dashboards: title, queries, unit, what they say, and what an empty one means.

Ratios are made here, from counters of numerator and denominator, so that replicas add up. Queries over the whole range
of a dashboard use `$__range`, those over time `$__rate_interval`. The first event of a tool in a process makes its
series, and no rate shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

HITS: Final = 'outcome=~"ready|joined"'


@dataclass(frozen=True, slots=True)
class Query:
    """One query and the legend of its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: Unique on its dashboard.
        says: What it says, in a sentence or two, for the people who look at it.
        queries: What it shows.
        unit: Unit as Grafana names it.
        kind: One number over the range, lines over time, or bars by label over the range.
        empty: What no data means; shown instead of "No data".
        width: Of 24 columns.
        most: Upper end of the axis.
    """

    title: str
    says: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["stat", "lines", "bars"] = "lines"
    empty: str = "nothing yet"
    width: int = 12
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


def over_range(selector: str, by: str = "") -> str:
    """The sum of a counter over the dashboard's range."""
    return f"sum{f' by ({by}) ' if by else ''}(increase({selector}[$__range]))"


def per_second(selector: str, by: str = "") -> str:
    """The sum of a counter per second."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({selector}[$__rate_interval]))"


def quantile(share: float, histogram: str) -> str:
    """A quantile of a histogram; `histogram` may have labels in braces."""
    name, _, labels = histogram.partition("{")
    selector = f"{name}_bucket{{{labels}" if labels else f"{name}_bucket"
    return f"histogram_quantile({share:g}, {per_second(selector, 'le')})"


def _share(numerator: str, denominator: str) -> str:
    # Nothing in the denominator is no data, not 0 and not NaN.
    return f"{numerator} / ({denominator} > 0)"


_SPECULATIONS: Final = "forerun_speculations_total"
_HITS: Final = f"{_SPECULATIONS}{{{HITS}}}"

OVERVIEW: Final = (
    Row(
        "What it is worth",
        (
            Panel(
                title="Hit rate", kind="stat", unit="percentunit", width=4, most=1, empty="nothing was launched",
                says="Speculations whose result an agent got, of all that ended.",
                queries=(Query(_share(over_range(_HITS), over_range(_SPECULATIONS))),),
            ),
            Panel(
                title="Coverage", kind="stat", unit="percentunit", width=4, most=1, empty="no call could have been",
                says="Calls that were answered by a speculation, of those that the policy would have allowed to run "
                "ahead.",
                queries=(Query(_share(over_range(_HITS), over_range("forerun_speculable_calls_total"))),),
            ),
            Panel(
                title="Amplification", kind="stat", unit="none", width=4, empty="no calls",
                says="Executions of tools for each call that agents asked for: 1 is no extra work.",
                queries=(
                    Query(
                        _share(
                            over_range("forerun_tool_executions_total"),
                            over_range("forerun_authoritative_calls_total"),
                        )
                    ),
                ),
            ),
            Panel(
                title="Saved (estimated)", kind="stat", unit="s", width=4,
                says="Waiting that hits saved, by the ledger's estimate. What is measured comes from experiments.",
                queries=(Query(over_range("forerun_saved_estimated_seconds_total")),),
            ),
            Panel(
                title="Wasted", kind="stat", unit="s", width=4,
                says="Execution time of speculations that no agent used.",
                queries=(Query(over_range("forerun_wasted_seconds_total")),),
            ),
            Panel(
                title="Wasted cost", kind="stat", unit="currencyUSD", width=4,
                says="Money for speculations that no agent used.",
                queries=(Query(over_range("forerun_wasted_cost_total", "currency"), "{{currency}}"),),
            ),
        ),
    ),
    Row(
        "What happens",
        (
            Panel(
                title="Calls by answer", unit="reqps", says="Calls that agents asked for, by how they were answered.",
                queries=(Query(per_second("forerun_authoritative_calls_total", "served"), "{{served}}"),),
            ),
            Panel(
                title="Speculations by outcome", unit="reqps",
                says="Speculations that ended. `ready` and `joined` are hits.",
                queries=(Query(per_second(_SPECULATIONS, "outcome"), "{{outcome}}"),),
            ),
            Panel(
                title="Saved and wasted", unit="s", says="Seconds saved (estimated) and wasted, for each second.",
                queries=(
                    Query(per_second("forerun_saved_estimated_seconds_total"), "saved"),
                    Query(per_second("forerun_wasted_seconds_total"), "wasted"),
                ),
            ),
            Panel(
                title="Waste credits", unit="short",
                says="Credits that calls earned and that discarded executions spent, for each second. Spending more "
                "than is earned for long is the budget's end.",
                queries=(
                    Query(per_second("forerun_waste_credits_earned_total"), "earned"),
                    Query(per_second("forerun_waste_credits_spent_total"), "spent"),
                ),
            ),
        ),
    ),
    Row(
        "Harm",
        (
            Panel(
                title="Overhead of hits", unit="s",
                says="What the platform took to answer a call whose result was ready.", empty="no hits",
                queries=(
                    Query(quantile(0.5, 'forerun_overhead_seconds{served="ready"}'), "p50"),
                    Query(quantile(0.99, 'forerun_overhead_seconds{served="ready"}'), "p99"),
                ),
            ),
            Panel(
                title="Overhead of direct calls", unit="s",
                says="What the platform added to a call beyond the tool's own time.", empty="no direct calls",
                queries=(
                    Query(quantile(0.5, 'forerun_overhead_seconds{served="direct"}'), "p50"),
                    Query(quantile(0.99, 'forerun_overhead_seconds{served="direct"}'), "p99"),
                ),
            ),
            Panel(
                title="Queue wait of authoritative work", unit="s",
                says="How long calls of agents waited for a slot. Speculation must never raise it.", empty="no calls",
                queries=(
                    Query(quantile(0.5, 'forerun_queue_wait_seconds{priority="authoritative"}'), "p50"),
                    Query(quantile(0.99, 'forerun_queue_wait_seconds{priority="authoritative"}'), "p99"),
                ),
            ),
            Panel(
                title="Audits", unit="short", kind="bars",
                says="Committed results whose action was executed again, by what that gave. `diverged` has to be 0.",
                queries=(Query(over_range("forerun_audits_total", "result"), "{{result}}"),),
            ),
            Panel(
                title="Preemptions", unit="reqps",
                says="Speculative executions that were stopped for a call of an agent.",
                queries=(Query(per_second("forerun_preemptions_total"), "preempted"),),
            ),
            Panel(
                title="Calls whose outcome nobody knows", unit="short", kind="stat",
                says="Writes that may have taken effect and that were not repeated.",
                queries=(Query(over_range("forerun_outcome_unknown_total")),),
            ),
        ),
    ),
)  # fmt: skip

CALL_SITES: Final = (
    Row(
        "Where it pays",
        (
            Panel(
                title="Hit rate by tool", kind="bars", unit="percentunit", most=1, empty="nothing was launched",
                says="Speculations whose result an agent got, of all that ended.",
                queries=(
                    Query(_share(over_range(_HITS, "tool"), over_range(_SPECULATIONS, "tool")), "{{tool}}"),
                ),
            ),
            Panel(
                title="Coverage by tool", kind="bars", unit="percentunit", most=1, empty="no call could have been",
                says="Calls answered by a speculation, of those that the policy would have allowed to run ahead.",
                queries=(
                    Query(
                        _share(over_range(_HITS, "tool"), over_range("forerun_speculable_calls_total", "tool")),
                        "{{tool}}",
                    ),
                ),
            ),
            Panel(
                title="Calls by tool", kind="bars", says="Calls that agents asked for.",
                queries=(Query(over_range("forerun_authoritative_calls_total", "tool"), "{{tool}}"),),
            ),
            Panel(
                title="Speculations that missed, by tool", kind="bars", says="Speculations that no agent asked for.",
                empty="nothing missed",
                queries=(Query(over_range(f'{_SPECULATIONS}{{outcome!~"ready|joined"}}', "tool"), "{{tool}}"),),
            ),
            Panel(
                title="Time of tools, p99", unit="s", empty="no executions",
                says="Execution time on workers: what a hit can hide at most.",
                queries=(
                    Query(
                        "histogram_quantile(0.99, sum by (le, tool) "
                        "(rate(forerun_tool_seconds_bucket[$__rate_interval])))",
                        "{{tool}}",
                    ),
                ),
            ),
            Panel(
                title="Call sites", unit="short",
                says="Call sites that speculate, and those that turned themselves off because they did not pay.",
                queries=(Query("sum by (state) (forerun_call_sites)", "{{state}}"),),
            ),
        ),
    ),
    Row(
        "Why not more",
        (
            Panel(
                title="Decisions of the governor", kind="bars",
                says="Candidates by why they were not launched; `launched` were.",
                queries=(Query(over_range("forerun_governor_decisions_total", "reason"), "{{reason}}"),),
            ),
            Panel(
                title="Calibration", kind="bars", unit="percentunit", most=1, empty="no candidate is known to be right",
                says="Share of candidates that came true, by predicted probability. Near the bucket's own value is "
                "right.",
                queries=(
                    Query(
                        _share(
                            over_range('forerun_calibration_total{result="same"}', "bucket"),
                            over_range("forerun_calibration_total", "bucket"),
                        ),
                        "{{bucket}}",
                    ),
                ),
            ),
            Panel(
                title="Second guesses of a small model", kind="bars", empty="no small model is set",
                says="Model steps by what became of a small model's guess. `off`: it was not measured to pay there.",
                queries=(Query(over_range("forerun_second_guesses_total", "guess"), "{{guess}}"),),
            ),
            Panel(
                title="Worth of second guesses", unit="short", empty="no small model is set",
                says="Call sites at which they pay, and seconds of the model for each call that only it had named.",
                queries=(
                    Query("sum(forerun_second_guess_sites)", "sites on"),
                    Query(
                        "sum(increase(forerun_second_guess_seconds_total[$__range])) / "
                        "(sum(increase(forerun_second_guess_hits_total[$__range])) > 0)",
                        "seconds a hit",
                    ),
                ),
            ),
        ),
    ),
)  # fmt: skip

CAPACITY: Final = (
    Row(
        "Pools",
        (
            Panel(
                title="Replicas", empty="no operator, or no pools",
                says="Replicas that were decided, that are there, and that can take work.",
                queries=(Query("max by (pool, state) (forerun_pool_replicas)", "{{pool}} {{state}}"),),
            ),
            Panel(
                title="Demand and slots for speculation", empty="no operator, or no pools",
                says="Authoritative work in slots, and the slots that speculation may use now.",
                queries=(
                    Query("max by (pool) (forerun_pool_demand)", "{{pool}} demand"),
                    Query("max by (pool) (forerun_pool_speculative_slots)", "{{pool}} speculation"),
                ),
            ),
            Panel(
                title="Load is known", kind="stat", most=1, empty="no operator, or no pools",
                says="0: no worker reports, so the pool keeps its size.",
                queries=(Query("min by (pool) (forerun_pool_signal_known)", "{{pool}}"),),
            ),
            Panel(
                title="Slots in use", says="Slots of all workers that are busy, of those that there are.",
                queries=(
                    Query('sum by (priority) (forerun_slots{state="busy"})', "{{priority}} busy"),
                    Query('sum by (priority) (forerun_slots{state="total"})', "{{priority}} all"),
                ),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS: Final = {
    "overview": ("Forerun / Overview", OVERVIEW),
    "call-sites": ("Forerun / Call sites", CALL_SITES),
    "capacity": ("Forerun / Capacity", CAPACITY),
}
"""Name of the file to title and rows."""
