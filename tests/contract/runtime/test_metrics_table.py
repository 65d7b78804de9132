"""The table of metrics is what services count: nothing in it stands still for ever, nothing is counted elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import forerun.operator
import forerun.runtime
from forerun.runtime import metrics_table
from forerun.runtime.metrics_table import ALL_SERVICES, METRICS, Metric

SERVICES = (Path(forerun.runtime.__file__).parents[1], Path(forerun.operator.__file__).parents[1])
NAMES = {value: name for name, value in vars(metrics_table).items() if isinstance(value, Metric)}


def uses() -> dict[str, set[str]]:
    """The folders of services that refer to a metric, by the name of its constant."""
    found: dict[str, set[str]] = {name: set() for name in NAMES.values()}
    for path, folder in ((path, path.relative_to(root).parts[0]) for root in SERVICES for path in root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="m" | "metrics_table"), attr=name) if name in found:
                    found[name].add(folder)
    return found


def wiring(service: str) -> Path:
    """The module that wires a service."""
    return SERVICES[service == "operator"] / service / "app.py"


def test_every_metric_is_counted_by_the_services_that_expose_it() -> None:
    found = uses()
    for metric in METRICS:
        folders = found[NAMES[metric]]
        if "runtime" not in folders:  # what all of them share counts for each
            assert folders == set(metric.services), metric.name


def test_the_broker_is_counted_by_the_services_that_have_a_connection() -> None:
    connected = {service for service in ALL_SERVICES if "BusPart" in wiring(service).read_text()}
    for metric in METRICS:
        if metric.name.startswith(("forerun_bus_", "forerun_dead_letters", "forerun_dropped")):
            assert set(metric.services) == connected, metric.name


def test_services_of_the_table_exist() -> None:
    assert {service for metric in METRICS for service in metric.services} == set(ALL_SERVICES)
    assert all(wiring(service).exists() for service in ALL_SERVICES)
