"""What a kept server tells Prometheus of its keeping, beside the metrics of its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forerun.serving.probes import LOADED_ANEW
from forerun.serving.render.coupled import CHAT, DRAFT, SERVED, TARGET

ROLES: Final = (TARGET, DRAFT, CHAT, SERVED)
"""Models by what they are for: their names change with each generation."""


def role_of(model: str) -> str:
    """What a model is for."""
    return model.partition("-")[0]


def exposition(reloads: Mapping[tuple[str, str], int], stalled: Mapping[str, float]) -> str:
    """In Prometheus' text format; all series exist from the start.

    Args:
        reloads: Models that were loaded anew, by role and by the health that was found.
        stalled: Seconds for which models by role have neither answered nor got on.
    """
    lines = [
        "# HELP forerun_model_reloads_total Models that were loaded anew, by what was found",
        "# TYPE forerun_model_reloads_total counter",
        *(
            f'forerun_model_reloads_total{{model="{role}",found="{found}"}} {reloads.get((role, found), 0)}'
            for role in ROLES
            for found in LOADED_ANEW
        ),
        "# HELP forerun_model_stalled_seconds How long a model has neither answered a probe nor finished any work",
        "# TYPE forerun_model_stalled_seconds gauge",
        *(f'forerun_model_stalled_seconds{{model="{role}"}} {stalled.get(role, 0.0):.3f}' for role in ROLES),
    ]
    return "\n".join(lines) + "\n"
