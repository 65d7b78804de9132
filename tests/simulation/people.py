"""On whose behalf agents act: two tenants, and in one of them two principals and two kinds of rights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from forerun.cli.virtual import TENANT, USER_TOKEN
from forerun.runtime.auth import token_digest


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with a token."""

    token: str
    tenant: str
    principal: str
    scope: str
    operator: bool = False

    @property
    def entry(self) -> dict[str, Any]:
        """The line of the token file."""
        entry = {
            "sha256": token_digest(self.token),
            "tenant": self.tenant,
            "principal": self.principal,
            "scope": self.scope,
        }
        return entry | {"role": "operator"} if self.operator else entry


OPERATOR: Final = Person(USER_TOKEN, TENANT, "user", "all", operator=True)
PEOPLE: Final = (
    OPERATOR,
    Person("token-of-a-guest", TENANT, "guest", "all"),
    Person("token-of-a-user-with-fewer-rights", TENANT, "user", "few"),
    Person("token-of-another-tenant", "acme", "user", "all"),
)
"""Everybody. The first one of a tenant asks for its totals."""


def token_file() -> str:
    """The content of the token file."""
    return json.dumps({"tokens": [person.entry for person in PEOPLE]})
