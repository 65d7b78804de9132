"""What all layers of tests share: the marker of a test is the folder it lives in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, so that a red test is the change's own. `--hypothesis-profile=explore` looks for new
# ones; what it finds becomes an example of its test.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1_000, deadline=None)
settings.load_profile("steady")

TESTS = Path(__file__).resolve().parent
LAYERS = frozenset({"unit", "property", "simulation", "contract", "integration", "fault", "cluster", "triton"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its layer, so that `-m` selects by cost wherever the test lies."""
    for item in items:
        layer = item.path.relative_to(TESTS).parts[0]
        if layer not in LAYERS:
            raise pytest.UsageError(f"{item.path}: tests live in a folder named after a layer: {sorted(LAYERS)}")
        item.add_marker(getattr(pytest.mark, layer))
