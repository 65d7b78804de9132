"""Where a machine cannot hold a node, the tests that need one say why and are skipped."""

from __future__ import annotations

import pytest

from tests.cluster.kubernetes import packages


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can hold a node; what is not installed yet will be."""
    if reason := packages.obstacle():
        pytest.skip(reason)
