"""Generated reference pages equal what their sources give."""

from pathlib import Path

from forerun.runtime import error_reference, metrics
from forerun.runtime.errors import ErrorReason

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def test_metrics_page() -> None:
    assert (REFERENCE / "metrics.md").read_text() == metrics.reference(), (
        "run: python -m forerun.runtime.metrics > docs/reference/metrics.md"
    )


def test_errors_page() -> None:
    assert (REFERENCE / "errors.md").read_text() == error_reference.reference(), (
        "run: python -m forerun.runtime.error_reference > docs/reference/errors.md"
    )


def test_every_reason_has_its_sentence() -> None:
    meanings = error_reference.reason_meanings()
    assert set(meanings) == set(ErrorReason.__members__)
    assert all(meaning.endswith(".") for meaning in meanings.values())
