"""The session machine: everything that happens between an agent's ask and its answer, without I/O, clock or chance.

`SessionMachine` takes inputs and the time, and gives effects in order; whoever runs it performs them and feeds back
what came of them. So the same decisions run behind real services and in the simulation.
"""

from forerun.core.session.call import Closed
from forerun.core.session.context import Replica
from forerun.core.session.effects import (
    Answer,
    Append,
    AwaitStored,
    BeginShared,
    BumpShared,
    CancelExecution,
    Certificate,
    Certify,
    DropFork,
    Effect,
    Execute,
    MergeFork,
    Promote,
    ReadShared,
    Record,
)
from forerun.core.session.events import (
    AssistantMessage,
    CallCancelled,
    CallFinished,
    CallIntent,
    CallsAsked,
    JournalEvent,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    TaskOutcome,
    UserTurn,
)
from forerun.core.session.machine import SessionMachine
from forerun.core.session.model import (
    AskedCall,
    CallAnswer,
    ExecutionResult,
    Failure,
    PreparedCall,
    Proposal,
    SessionFacts,
    SessionPolicy,
)

__all__ = [
    "Answer",
    "Append",
    "AskedCall",
    "AssistantMessage",
    "AwaitStored",
    "BeginShared",
    "BumpShared",
    "CallAnswer",
    "CallCancelled",
    "CallFinished",
    "CallIntent",
    "CallsAsked",
    "CancelExecution",
    "Certificate",
    "Certify",
    "Closed",
    "DropFork",
    "Effect",
    "Execute",
    "ExecutionResult",
    "Failure",
    "JournalEvent",
    "MergeFork",
    "ModelStarted",
    "PreparedCall",
    "Promote",
    "Proposal",
    "ReadShared",
    "Record",
    "Replica",
    "SessionClosed",
    "SessionFacts",
    "SessionMachine",
    "SessionOpened",
    "SessionPolicy",
    "TaskOutcome",
    "UserTurn",
]
