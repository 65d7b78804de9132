"""Who owns a session: its epoch, raised by compare-and-set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from forerun.runtime.auth import Caller
from forerun.runtime.bus import Bus, Entry
from forerun.runtime.bus_errors import KeyConflict
from forerun.runtime.errors import Aborted, ErrorReason, NotFound, PermissionDenied
from forerun.runtime.topology import EPOCHS

_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """An owner's claim on a session.

    Attributes:
        epoch: Counts the owners, from 1 on.
        agent: The session's agent.
        worker: Address of the worker that the session was given first; empty where that was not written down.
    """

    epoch: int
    agent: str
    worker: str


class Ownership:
    """Epochs of sessions.

    Args:
        bus: Where they are kept.
        replica: This replica.
    """

    def __init__(self, bus: Bus, replica: str) -> None:
        self._bucket = bus.kv(EPOCHS)
        self._replica = replica

    async def claim(self, caller: Caller, session: str, agent: str, *, worker: str, resume: bool) -> Claim:
        """Makes this replica the owner.

        Args:
            caller: Whose the session is.
            session: The session.
            agent: Its agent, where nobody has opened it before.
            worker: Its worker, where nobody has opened it before: it is stored before any call runs there.
            resume: It has been opened before.

        Raises:
            NotFound: it should be resumed, and nobody has opened it.
            PermissionDenied: it belongs to another principal, or to other rights.
            Aborted: others claim it at the same time, again and again.
            Unavailable: the broker cannot be asked.
        """
        key = f"{caller.tenant}/{session}"
        for _ in range(_ATTEMPTS):
            entry = await self._bucket.get(key)
            try:
                if entry is None:
                    if resume:
                        raise NotFound(
                            ErrorReason.SESSION_NOT_FOUND,
                            "the session to be resumed is not known; open a new one",
                            metadata={"session": session},
                        )
                    claim = Claim(1, agent, worker)
                    await self._bucket.create(key, self._value(claim, caller))
                    return claim
                claim = self._next(entry, caller, session)
                await self._bucket.update(key, self._value(claim, caller), entry.revision)
                return claim
            except KeyConflict:
                continue
        raise Aborted(
            ErrorReason.REVISION_CONFLICT, "several replicas claim the session at once", retry_after_seconds=0.5
        )

    async def epoch(self, tenant: str, session: str) -> int:
        """The epoch in force; 0 where nobody has opened the session.

        Raises:
            Unavailable: the broker cannot be asked.
        """
        entry = await self._bucket.get(f"{tenant}/{session}")
        return 0 if entry is None else int(json.loads(entry.value)["epoch"])

    def _value(self, claim: Claim, caller: Caller) -> bytes:
        return json.dumps(
            {
                "epoch": claim.epoch,
                "owner": self._replica,
                "agent": claim.agent,
                "worker": claim.worker,
                "principal": caller.principal,
                "scope": caller.credential_scope,
            }
        ).encode()

    @staticmethod
    def _next(entry: Entry, caller: Caller, session: str) -> Claim:
        value = json.loads(entry.value)
        if (value["principal"], value["scope"]) != (caller.principal, caller.credential_scope):
            raise PermissionDenied(
                ErrorReason.CALLER_NOT_ALLOWED,
                "the session belongs to another principal or to other rights; open one of your own",
                metadata={"session": session},
            )
        return Claim(int(value["epoch"]) + 1, str(value["agent"]), str(value.get("worker", "")))
