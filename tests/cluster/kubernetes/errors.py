"""The one error of the test cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """The test cluster cannot do what was asked; the text says why, and what to do where that is known."""
