"""Invariants 5 and 9: what is whose. Identities, what may leave the session, and who may write for it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator

from forerun.runtime.topology import EVENTS
from forerun.v1 import event_pb2, ledger_pb2
from tests.simulation.evidence import Evidence, stored
from tests.simulation.files import FILE_TOOLS


def identities(evidence: Evidence) -> Iterator[str]:
    """Two lines name the same identity exactly where it is the same call of the same tool with the same rights."""
    executions = {one.key: one for one in evidence.world.log}
    meanings: dict[str, set[str]] = defaultdict(set)
    digests: dict[str, set[str]] = defaultdict(set)
    for line in evidence.lines:
        person = evidence.diary.sessions[line.session].person
        if (line.tenant, line.principal) != (person.tenant, person.principal):
            yield f"9: line {line.id} of {line.session} is booked on {line.principal} of {line.tenant}"
        if not line.identity:
            continue
        if line.kind == ledger_pb2.LEDGER_KIND_CALL:
            actions = evidence.tap.actions.get((line.call.session, line.call.turn, line.call.index), [])
            if len(actions) != 1:
                continue  # a key for several calls, or a task of a plan whose arguments its client never learned
            tool, arguments = actions[0]
        elif line.speculation in executions:
            tool, arguments = line.tool, executions[line.speculation].arguments
        else:
            continue
        workspace = line.session if tool in FILE_TOOLS else ""
        meaning = f"{tool}{json.dumps(arguments, sort_keys=True)} for {person.principal}/{person.scope}"
        meaning += f" of {person.tenant} in {workspace or 'no workspace'}"
        meanings[line.identity].add(meaning)
        digests[meaning].add(line.identity)
    for identity, found in meanings.items():
        if len(found) > 1:
            yield f"9: identity {identity[:12]} stands for {sorted(found)}"
    for meaning, names in digests.items():
        if len(names) > 1:
            yield f"9: {meaning} has {len(names)} identities"


def taints(evidence: Evidence) -> Iterator[str]:
    """Nothing goes to an open destination ahead of its call that neither the user nor the agent has said before."""
    for one in evidence.world.log:
        if one.tool != "news" or not one.speculative:
            continue
        said = " ".join(text for at, text in evidence.tap.said.get(one.session, ()) if at <= one.started_at)
        sent = {
            arguments["topic"]
            for key, actions in evidence.tap.actions.items()
            for tool, arguments in actions
            if key[0] == one.session and tool == "news" and evidence.tap.asked_at[key] <= one.started_at
        }
        if one.arguments["topic"] not in sent | set(re.findall(r"\w+", said)):
            yield f"5: {one.key} told the news server of {one.arguments['topic']!r} ahead, which nobody had said"


def owners(evidence: Evidence) -> Iterator[str]:
    """A session has one owner at a time: epochs in its journal only grow, and each begins with an opening."""
    epochs: dict[str, int] = {}
    for data in stored(evidence.broker, EVENTS):
        event = event_pb2.SessionEvent.FromString(data)
        last = epochs.get(event.session, 0)
        if event.epoch < last:
            yield f"9: owner {event.epoch} of {event.session} wrote {event.WhichOneof('event')} after owner {last}"
        if event.HasField("opened") and event.epoch == last:
            yield f"9: {event.session} was opened twice in epoch {event.epoch}"
        if event.epoch > last and not event.HasField("opened"):
            yield f"9: owner {event.epoch} of {event.session} began with {event.WhichOneof('event')}"
        epochs[event.session] = max(last, event.epoch)


def strangers(evidence: Evidence) -> Iterator[str]:
    """Nobody gets answers of a session of somebody else."""
    yield from (f"9: {text}" for text in evidence.diary.breaches)
