"""`make pictures`: the panels of the dashboards as they look after a run of the demo, into docs/dashboards."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.contract.test_dashboards import REPOSITORY, script
from tests.integration.monitoring.drawing import Series, page, picture
from tests.integration.monitoring.server import Prometheus
from tests.integration.monitoring.test_dashboards import FIRST, KNOWN, asked, observed, play

FOLDER = REPOSITORY / "docs" / "dashboards"
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_RATE_SECONDS = 10.0
_STEPS = 80


async def main() -> int:
    """Runs the demo's agents twice, and draws what every panel gives."""
    with tempfile.TemporaryDirectory() as scratch:
        async with observed(Path(scratch)) as (platform, tools, asking):
            await play(platform, tools, FIRST)
            await asking.scraped(3)
            began = await asking.value("vector(time())")
            await play(platform, tools, KNOWN)
            await asking.scraped(4)
            ended = await asking.value("vector(time())")
            assert began is not None and ended is not None
            drawn = {name: await draw(asking, name, began, ended) for name in script("dashboard_panels").DASHBOARDS}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (FOLDER / f"{name}.svg").write_text(svg)
        print(FOLDER / f"{name}.svg")
    return 0


async def draw(asking: Prometheus, dashboard: str, began: float, ended: float) -> str:
    """One dashboard."""
    panels = []
    for one in (one for row in script("dashboard_panels").DASHBOARDS[dashboard][1] for one in row.panels):
        series: list[Series] = []
        for query in one.queries:
            if one.kind == "lines":
                expression = asked(query.expression, _RATE_SECONDS)
                found = await asking.between(expression, began, ended, (ended - began) / _STEPS)
            else:
                found = await asking.instant(asked(query.expression, ended - began))
            series += [_series(query.legend, result) for result in found]
        panels.append(picture(one.title, one.unit, one.kind, [one for one in series if one.points], one.empty))
    return page(panels)


def _series(legend: str, result: dict[str, Any]) -> Series:
    points = [(float(at), float(value)) for at, value in result.get("values", [result.get("value")])]
    name = _PLACEHOLDER.sub(lambda found: str(result["metric"].get(found[1], "")), legend)
    return Series(name, tuple(point for point in points if math.isfinite(point[1])))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
