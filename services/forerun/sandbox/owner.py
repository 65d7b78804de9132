"""Whose something is: sessions are named by clients, so their names mean nothing outside of their tenant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a workspace, of connections and of executions.

    Attributes:
        tenant: Who is isolated from whom; proven by the caller's credentials.
        session: A session of the tenant.
    """

    tenant: str
    session: str
