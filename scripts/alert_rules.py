"""The alert rules: when, for how long, what it means, what to do; for Prometheus and for the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule.

    Attributes:
        name: In Prometheus.
        expression: Fires for each series that it gives.
        lasting: How long it has to give one before it fires.
        severity: `critical` wakes somebody, `warning` is for the day, `info` for whoever looks.
        means: What is the case.
        do: What to do about it.
    """

    name: str
    expression: str
    lasting: str
    severity: Literal["critical", "warning", "info"]
    means: str
    do: str


ALERTS: Final = (
    Alert(
        name="ForerunAuditDiverged", severity="critical", lasting="0m",
        expression='sum(increase(forerun_audits_total{result="diverged"}[1h])) > 0',
        means="A committed result differed when its action was executed again: an agent may have got a wrong one.",
        do="Switch speculation off (`forerun off`). The ledger names tool and call: its effect contract promises more "
        "than the tool keeps. Correct the contract, then `forerun on`.",
    ),
    Alert(
        name="ForerunWasteBudgetBurns", severity="warning", lasting="10m",
        expression="(sum(rate(forerun_waste_credits_spent_total[1h])) "
        "> sum(rate(forerun_waste_credits_earned_total[1h]))) and (sum(rate(forerun_waste_credits_spent_total[5m])) "
        "> sum(rate(forerun_waste_credits_earned_total[5m])))",
        means="Discarded executions spend more than calls earn: sessions live on what they had at their start.",
        do="The dashboard of call sites shows which tools miss. Lower `alpha`, or let their sites turn themselves off.",
    ),
    Alert(
        name="ForerunAgentsWait", severity="warning", lasting="10m",
        expression="histogram_quantile(0.99, sum by (le) "
        '(rate(forerun_queue_wait_seconds_bucket{priority="authoritative"}[5m]))) > 1',
        means="One of a hundred calls waits longer than a second for a slot.",
        do="Add workers, or raise `maxReplicas` of the pool. Speculation has given its slots back already.",
    ),
    Alert(
        name="ForerunSpeculationStuck", severity="warning", lasting="15m",
        expression="(sum(forerun_speculations_open) > 0) and (sum(rate(forerun_speculations_total[15m])) == 0)",
        means="Speculations are open and none has ended for a quarter of an hour.",
        do="Look at workers and verifier: one of them does not answer. Their logs name the call that hangs.",
    ),
    Alert(
        name="ForerunSwitchedOff", severity="info", lasting="1h",
        expression="max(forerun_speculation_enabled) == 0",
        means="Speculation is switched off for everybody.",
        do="Somebody did that by `forerun off`; `forerun on` ends it.",
    ),
    Alert(
        name="ForerunOutcomeUnknown", severity="info", lasting="0m",
        expression="sum(increase(forerun_outcome_unknown_total[1h])) > 0",
        means="A write may have taken effect, and nobody can know: it was not repeated.",
        do="The ledger names tool and call. Make the tool idempotent, or give it a key, and it can be repeated.",
    ),
    Alert(
        name="ForerunBrokerAway", severity="critical", lasting="2m",
        expression="forerun_bus_connected == 0",
        means="A process has no connection to the broker.",
        do="Look at the broker's pods and at the network policies between the two.",
    ),
    Alert(
        name="ForerunDeadLetters", severity="warning", lasting="0m",
        expression="sum by (stream) (increase(forerun_dead_letters_total[1h])) > 0",
        means="Messages were set aside because no attempt could process them.",
        do="The dead letters name each with its reason.",
    ),
    Alert(
        name="ForerunTaskFailed", severity="warning", lasting="0m",
        expression="sum by (job) (increase(forerun_task_failures_total[1h])) > 0",
        means="A background task ended with an exception that nobody had foreseen.",
        do="The log of the process holds it. Please report it.",
    ),
    Alert(
        name="ForerunPoolSignalUnknown", severity="warning", lasting="5m",
        expression="max by (pool) (forerun_pool_signal_known) == 0",
        means="No worker of a pool reports its load: the pool keeps its size, whatever the load.",
        do="Look at its workers, at their setting `pool`, and at the broker.",
    ),
    Alert(
        name="ForerunOperatorWithoutLeader", severity="warning", lasting="2m",
        expression="sum(forerun_operator_leading) == 0",
        means="No operator leads: edits of custom resources reach nobody, pools keep their size.",
        do="The operators' logs say why they cannot keep the Lease.",
    ),
    Alert(
        name="ForerunTwoLeaders", severity="critical", lasting="1m",
        expression="sum(forerun_operator_leading) > 1",
        means="Two operators believe that they lead. What they write is compare-and-set, so nothing old is published.",
        do="Look whether they use the same Lease: `lease_name` and `lease_namespace` have to be equal.",
    ),
    Alert(
        name="ForerunResourceRefused", severity="warning", lasting="10m",
        expression='max by (resource) (forerun_operator_resources{result="refused"}) > 0',
        means="The present generation of a custom resource cannot be used; an earlier one may be in force.",
        do="`kubectl get specpol,toolsrv -A` shows which, its condition `Ready` why.",
    ),
    Alert(
        name="ForerunOperatorLacksRights", severity="warning", lasting="5m",
        expression="max(forerun_operator_rights_missing) > 0",
        means="The operator's account may not do everything that it has to.",
        do="Its log names verb, resource and namespace; the chart's Role holds all of them.",
    ),
)  # fmt: skip


def groups() -> dict[str, object]:
    """The rules as Prometheus reads them."""
    return {
        "groups": [
            {
                "name": "forerun",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": alert.severity},
                        "annotations": {
                            "summary": alert.means,
                            "description": alert.do,
                            "runbook": f"docs/reference/alerts.md#{alert.name.lower()}",
                        },
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def reference() -> str:
    """The page of all alerts, in Markdown."""
    lines = ["# Alerts", "", "Generated from `scripts/alert_rules.py`; do not edit."]
    for alert in ALERTS:
        lines += [
            "",
            f"## {alert.name}",
            "",
            f"{alert.means} {alert.do}",
            "",
            f"Severity {alert.severity}, after {alert.lasting}: `{alert.expression}`",
        ]
    return "\n".join(lines) + "\n"
