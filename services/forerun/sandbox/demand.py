"""Whether somebody waits for an execution: known at its start, and changed by a promotion while it runs."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Demand:
    """One execution's, shared by all that have to know.

    Attributes:
        asked_for: An agent waits for it now; else it runs ahead of time.
    """

    asked_for: bool = True
