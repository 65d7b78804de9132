"""Counts and measures of one process, and their exposition to Prometheus.

`Metrics` is made in a service's `build()` and handed to whoever counts; nothing is registered at import. Run as a
module it writes the reference page: `python -m forerun.runtime.metrics > docs/reference/metrics.md`.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import RestrictedRegistry

from forerun.runtime import metrics_table
from forerun.runtime.errors import Bug, ErrorReason, FailedPrecondition
from forerun.runtime.metrics_table import LATENCY_BUCKETS_SECONDS, METRICS, OTHER, Kind, Label, Metric

_Instrument = Counter | Gauge | Histogram
_TRACE_ID: Final = slice(3, 35)
_POLL_SECONDS: Final = 0.1


class Metrics:
    """The metrics of one process.

    Args:
        service: Only what this service exposes is registered; None registers everything.
    """

    def __init__(self, service: str | None) -> None:
        self.registry = _Registry()
        ProcessCollector(registry=self.registry)  # reads /proc when it is asked, not before
        self._families: dict[Metric, _Family] = {
            metric: _Family(metric, self.registry, self._welcome)
            for metric in METRICS
            if service is None or service in metric.services or metric.services == metrics_table.ALL_SERVICES
        }

    def add(self, metric: Metric, amount: float = 1.0, /, **labels: str) -> None:
        """Adds to a counter."""
        child = self._family(metric).child(labels)
        assert isinstance(child, Counter)
        child.inc(amount)

    def change(self, metric: Metric, amount: float, /, **labels: str) -> None:
        """Moves a gauge by an amount."""
        child = self._family(metric).child(labels)
        assert isinstance(child, Gauge)
        child.inc(amount)

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Sets a gauge."""
        child = self._family(metric).child(labels)
        assert isinstance(child, Gauge)
        child.set(value)

    def observe(self, metric: Metric, value: float, /, *, trace: str | None = None, **labels: str) -> None:
        """Adds a measurement to a histogram, with the trace it belongs to as exemplar where there is one."""
        child = self._family(metric).child(labels)
        assert isinstance(child, Histogram)
        child.observe(value, None if trace is None else {"trace_id": trace[_TRACE_ID]})

    def value(self, metric: Metric, /, **labels: str) -> float:
        """The present value of a counter or gauge, or the number of measurements of a histogram; for `top`, tests."""
        suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
        return self.registry.get_sample_value(metric.name + suffix, labels) or 0.0

    def _welcome(self, label: Label, value: str) -> None:
        """A value of a bounded label was seen for the first time: everything that has the label starts at 0 for it.

        Else a tool's first speculation, which comes long after its first call, would make its series, and no rate of it
        would show that one.
        """
        for family in self._families.values():
            family.welcome(label, value)

    def _family(self, metric: Metric) -> _Family:
        try:
            return self._families[metric]
        except KeyError:
            raise Bug(
                ErrorReason.INTERNAL, f"{metric.name} is not exposed by this service; see its row in the metrics table"
            ) from None


class _Registry(CollectorRegistry):
    """Makes the zeros when somebody looks: there are hundreds, and not every process is asked for them."""

    def __init__(self) -> None:
        super().__init__()
        self._owed: list[Callable[[], None]] = []

    def owe(self, expose: Callable[[], None]) -> None:
        """Takes what is to be made before the next look."""
        self._owed.append(expose)

    def collect(self) -> Iterable[Exposed]:
        """See the library."""
        self._pay()
        return super().collect()

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """See the library."""
        self._pay()
        return super().restricted_registry(names)

    def _pay(self) -> None:
        # A scrape has a thread of its own, while others are added: each is taken by one of them.
        while True:
            try:
                make = self._owed.pop()
            except IndexError:
                return
            make()


class _Family:
    """One metric with its children, the guard of its labels, and the zeros from which its counters start."""

    __slots__ = ("_announce", "_bounded", "_children", "_instrument", "_metric", "_names", "_registry", "_seen")

    def __init__(self, metric: Metric, registry: _Registry, announce: Callable[[Label, str], None]) -> None:
        self._registry = registry
        self._metric = metric
        self._announce = announce
        self._names = tuple(label.name for label in metric.labels)
        self._instrument = _instrument(metric, registry)
        self._children: dict[tuple[str, ...], _Instrument] = {}
        self._bounded = any(label.bound for label in metric.labels)
        self._seen: dict[str, set[str]] = {label.name: set() for label in metric.labels if label.bound}
        self._expose({label.name: OTHER for label in metric.labels if label.bound})

    def child(self, labels: dict[str, str]) -> _Instrument:
        """The instrument of some label values, with values outside a label's set or bound turned to `other`."""
        key = tuple(labels.values())
        # The fast path: the same labels in the same order as before.
        known = self._children.get(key)
        if known is not None and tuple(labels) == self._names:
            return known
        if labels.keys() != set(self._names):
            raise Bug(ErrorReason.INTERNAL, f"{self._metric.name} has the labels {self._names}, not {tuple(labels)}")
        admitted = {label.name: self._admit(label, labels[label.name]) for label in self._metric.labels}
        key = tuple(admitted.values())
        if key not in self._children:
            if self._bounded:
                self._expose({name: admitted[name] for name in self._seen})
            # A closed label with a value outside its set has no row among the zeros.
            self._make(key)
        return self._children[key]

    def _admit(self, label: Label, value: str) -> str:
        if label.values:
            return value if value in label.values else OTHER
        seen = self._seen[label.name]
        if value in seen:
            return value
        if len(seen) >= label.bound:
            return OTHER
        seen.add(value)
        self._announce(label, value)
        return value

    def welcome(self, label: Label, value: str) -> None:
        """Takes a value that another metric was given, where it is this one's only label without a closed set."""
        seen = self._seen.get(label.name)
        if seen is None or len(self._seen) > 1 or label not in self._metric.labels or value in seen:
            return
        if len(seen) < label.bound:
            seen.add(value)
            self._expose({label.name: value})

    def _expose(self, bounded: dict[str, str]) -> None:
        """Makes the series of all closed label values for some values of the bounded labels, so that rates work."""

        def make() -> None:
            for key in _combinations(self._metric, bounded):
                self._make(key)

        self._registry.owe(make)

    def _make(self, key: tuple[str, ...]) -> None:
        if key not in self._children:
            self._children[key] = self._instrument.labels(*key) if key else self._instrument


def _combinations(metric: Metric, bounded: dict[str, str]) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(label.values or (bounded[label.name],) for label in metric.labels))


def _instrument(metric: Metric, registry: CollectorRegistry) -> _Instrument:
    names = tuple(label.name for label in metric.labels)
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, metric.meaning, names, registry=registry)
    if metric.kind is Kind.GAUGE:
        return Gauge(metric.name, metric.meaning, names, registry=registry)
    return Histogram(metric.name, metric.meaning, names, registry=registry, buckets=LATENCY_BUCKETS_SECONDS)


class MetricsServer:
    """Serves `/metrics` over HTTP from a thread of its own, so that a blocked event loop can still be observed.

    Args:
        metrics: What to expose.
        address: `host:port`; port 0 takes a free one.
    """

    def __init__(self, metrics: Metrics, address: str) -> None:
        self._metrics = metrics
        self._asked = address
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it listens, once it is started."""
        if self._server is None:
            return self._asked
        return f"{self._server.server_name}:{self._server.server_port}"

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            FailedPrecondition: the address is malformed or taken.
        """
        host, _, port = self._asked.rpartition(":")
        try:
            self._server = make_server(
                host or "127.0.0.1", int(port), make_wsgi_app(self._metrics.registry), ThreadingWSGIServer, _Quiet
            )
        except (ValueError, OSError) as error:
            raise FailedPrecondition(
                ErrorReason.SETTING_INVALID,
                f"cannot serve metrics on {self._asked!r}; set metrics_address to host:port of a free port",
                metadata={"setting": "metrics_address"},
            ) from error
        # A stop waits for one turn of this loop; the library's own half a second may be more than a stop has.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    async def stop(self, grace_seconds: float) -> None:
        """Stops listening."""
        if self._server is not None:
            async with asyncio.timeout(grace_seconds):
                await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
            self._server = None


class _Quiet(WSGIRequestHandler):
    """Scrapes are no news."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def reference() -> str:
    """The reference page of all metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m forerun.runtime.metrics`; do not edit. Every service serves them on its metrics",
        "address under `/metrics`. Counters start at 0. A label value outside its set or bound becomes `other`.",
        f"Histogram buckets in seconds: {', '.join(f'{bucket:g}' for bucket in LATENCY_BUCKETS_SECONDS)}.",
        "",
        "| name | kind | unit | labels | meaning | services | series at most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label.name}`" for label in metric.labels)
        services = "all" if metric.services == metrics_table.ALL_SERVICES else ", ".join(metric.services)
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.meaning} | {services} "
            f"| {metric.series_bound()} |"
        )
    lines += ["", *_PROCESS, "", "## Labels", "", "| label | of | meaning | values |", "| --- | --- | --- | --- |"]
    for label, names in _labels():
        values = ", ".join(f"`{value}`" for value in label.values) or f"up to {label.bound} distinct ones"
        lines.append(f"| `{label.name}` | {', '.join(f'`{name}`' for name in names)} | {label.meaning} | {values} |")
    return "\n".join(lines) + "\n"


_PROCESS: Final = (
    "## The process",
    "",
    "Every service also serves what the operating system knows of its process, under the usual names.",
    "",
    "| name | kind | unit | meaning |",
    "| --- | --- | --- | --- |",
    "| `process_open_fds` | gauge | {descriptor} | Open file descriptors, connections included. |",
    "| `process_max_fds` | gauge | {descriptor} | The most there may be. |",
    "| `process_resident_memory_bytes` | gauge | bytes | Memory in use. |",
    "| `process_virtual_memory_bytes` | gauge | bytes | Address space in use. |",
    "| `process_cpu_seconds_total` | counter | seconds | Time on processors, user and system. |",
    "| `process_start_time_seconds` | gauge | seconds | When it started, as Unix time. |",
)


def _labels() -> list[tuple[Label, list[str]]]:
    used: dict[Label, list[str]] = {}
    for metric in METRICS:
        for label in metric.labels:
            used.setdefault(label, []).append(metric.name)
    return list(used.items())


if __name__ == "__main__":
    sys.stdout.write(reference())
