"""Dashboards and alerts ask for metrics, labels and values that there are."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from forerun.runtime.metrics_table import METRICS, Kind

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "helm" / "forerun" / "files" / "rules" / "forerun.yaml"
BY_NAME = {
    metric.name + suffix: metric
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
SELECTOR = re.compile(r"(forerun_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"by \(([a-z_, ]+)\)")


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def expressions() -> Iterator[tuple[str, str]]:
    for title, rows in script("dashboard_panels").DASHBOARDS.values():
        for panel in (panel for row in rows for panel in row.panels):
            for query in panel.queries:
                yield f"{title}: {panel.title}", query.expression
    for alert in script("alert_rules").ALERTS:
        yield alert.name, alert.expression


ASKED = list(expressions())


@pytest.mark.parametrize(("where", "expression"), ASKED, ids=[where for where, _ in ASKED])
def test_every_query_names_what_there_is(where: str, expression: str) -> None:
    found = SELECTOR.findall(expression)
    assert found, where
    labels = {"le"}
    for name, matchers in found:
        metric = BY_NAME[name]
        known = {label.name: label for label in metric.labels}
        labels |= known.keys()
        for label, _, values in MATCHER.findall(matchers):
            closed = known[label].values
            assert not closed or set(values.split("|")) <= set(closed), (label, values)
    for grouped in GROUPING.findall(expression):
        assert set(grouped.replace(" ", "").split(",")) <= labels | {"job"}, grouped


def test_counters_are_never_shown_as_they_are() -> None:
    for where, expression in ASKED:
        for name, _ in SELECTOR.findall(expression):
            if BY_NAME[name].kind is not Kind.GAUGE:
                inside = re.search(rf"(rate|increase)\({name}", expression)
                assert inside, f"{where}: {name} without rate or increase"


def test_panels_are_told_apart_and_say_what_they_say() -> None:
    for title, rows in script("dashboard_panels").DASHBOARDS.values():
        panels = [panel for row in rows for panel in row.panels]
        assert len({panel.title for panel in panels}) == len(panels), title
        assert all(panel.says.endswith(".") and panel.empty for panel in panels)


def test_the_data_source_is_a_variable() -> None:
    for file in (REPOSITORY / "helm/forerun/files/dashboards").glob("*.json"):
        made = json.loads(file.read_text())
        panels = [panel for panel in made["panels"] if panel["type"] != "row"]
        assert panels
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
        assert made["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_the_rules_are_rules_and_fire_when_they_should_with_two_replicas(tmp_path: Path) -> None:
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "tests.json").write_text(json.dumps(RULE_TESTS | {"rule_files": [str(RULES)]}))
    tested = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.json"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def fires(alert: str, at: str, severity: str, series: dict[str, str], labels: dict[str, str] | None = None) -> object:
    """One test of promtool: with these series the alert fires, or not where `severity` is empty."""
    rule = next(one for one in script("alert_rules").ALERTS if one.name == alert)
    expected = {
        "exp_labels": {"severity": severity, **(labels or {})},
        "exp_annotations": {
            "summary": rule.means, "description": rule.do, "runbook": f"docs/reference/alerts.md#{alert.lower()}",
        },
    }  # fmt: skip
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": [expected] if severity else []}],
    }


EARNED, SPENT = "forerun_waste_credits_earned_total", "forerun_waste_credits_spent_total"
RULE_TESTS = {
    "evaluation_interval": "1m",
    "tests": [
        # Two replicas: one alone spends more than it earns, both together do not.
        fires("ForerunWasteBudgetBurns", "2h", "", {
            f'{EARNED}{{pod="a"}}': "0+1x120", f'{SPENT}{{pod="a"}}': "0+2x120",
            f'{EARNED}{{pod="b"}}': "0+5x120", f'{SPENT}{{pod="b"}}': "0+1x120",
        }),
        fires("ForerunWasteBudgetBurns", "2h", "warning", {
            f'{EARNED}{{pod="a"}}': "0+1x120", f'{SPENT}{{pod="a"}}': "0+2x120",
            f'{EARNED}{{pod="b"}}': "0+1x120", f'{SPENT}{{pod="b"}}': "0+1x120",
        }),
        # It was bad for an hour and is over.
        fires("ForerunWasteBudgetBurns", "2h", "", {EARNED: "0+1x120", SPENT: "0+3x100 300x20"}),
        fires("ForerunAuditDiverged", "30m", "critical", {
            'forerun_audits_total{pod="a",result="diverged"}': "0x20 1x20",
            'forerun_audits_total{pod="b",result="diverged"}': "0x40",
        }),
        fires("ForerunAuditDiverged", "30m", "", {'forerun_audits_total{result="equal"}': "0+9x40"}),
        fires("ForerunPoolSignalUnknown", "10m", "warning", {
            'forerun_pool_signal_known{pod="a",pool="p"}': "0x20"}, {"pool": "p"}),
        # The replica that does not lead knows nothing, the leader does.
        fires("ForerunPoolSignalUnknown", "10m", "", {
            'forerun_pool_signal_known{pod="a",pool="p"}': "0x20",
            'forerun_pool_signal_known{pod="b",pool="p"}': "1x20",
        }),
        fires("ForerunOperatorWithoutLeader", "10m", "warning", {
            'forerun_operator_leading{pod="a"}': "0x20", 'forerun_operator_leading{pod="b"}': "0x20"}),
        fires("ForerunTwoLeaders", "10m", "critical", {
            'forerun_operator_leading{pod="a"}': "1x20", 'forerun_operator_leading{pod="b"}': "1x20"}),
    ],
}  # fmt: skip
