"""Generated reference pages equal what their sources give."""

from pathlib import Path

from forerun.runtime.metrics import reference

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def test_metrics_page() -> None:
    assert (REFERENCE / "metrics.md").read_text() == reference(), (
        "run: python -m forerun.runtime.metrics > docs/reference/metrics.md"
    )
