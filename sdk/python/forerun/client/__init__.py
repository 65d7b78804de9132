"""The client of Forerun: an agent's tool calls go through a platform that runs ahead of it, with the same results.

    async with AsyncClient() as client, client.session("support-agent") as session:
        await session.user_turn("Where is order 17?")
        await session.model_started()
        results = await session.call_tools([Call("get_order", {"order_id": 17}), Call("get_customer", {"id": 4})])

`Client` and `Session` are the same for programs without asyncio.
"""

from forerun.client._answers import Answers, CandidateInfo, ChatCall, ChatMessage, ModelAnswer, Scorer, Search
from forerun.client._client import AsyncClient
from forerun.client._conversation import Conversation, Form
from forerun.client._direct import Answer, Direct
from forerun.client._errors import (
    CallCancelled,
    CallError,
    CallRejected,
    CallTimeout,
    CallUnavailable,
    ForerunClientError,
    InvalidRequest,
    NotAuthorized,
    NotConfigured,
    OutcomeUnknown,
    PlatformError,
    PlatformUnavailable,
    ResultNotJson,
    SessionClosed,
)
from forerun.client._ids import Ids, SystemIds
from forerun.client._json import Arguments
from forerun.client._local import local_data_dir
from forerun.client._message import StreamedMessage
from forerun.client._plan import OnFailure, PlanResult, PlanStatus, PlanTask, TaskResult, TaskStatus
from forerun.client._results import Call, ErasedServer, Failure, Mode, Result, Served, Status, ToolInfo, Totals
from forerun.client._running_plan import RunningPlan
from forerun.client._session import AsyncSession
from forerun.client._sync import Client, Session

__all__ = [
    "Answer",
    "Answers",
    "Arguments",
    "AsyncClient",
    "AsyncSession",
    "Call",
    "CallCancelled",
    "CallError",
    "CallRejected",
    "CallTimeout",
    "CallUnavailable",
    "CandidateInfo",
    "ChatCall",
    "ChatMessage",
    "Client",
    "Conversation",
    "Direct",
    "ErasedServer",
    "Failure",
    "ForerunClientError",
    "Form",
    "Ids",
    "InvalidRequest",
    "Mode",
    "ModelAnswer",
    "NotAuthorized",
    "NotConfigured",
    "OnFailure",
    "OutcomeUnknown",
    "PlanResult",
    "PlanStatus",
    "PlanTask",
    "PlatformError",
    "PlatformUnavailable",
    "Result",
    "ResultNotJson",
    "RunningPlan",
    "Scorer",
    "Search",
    "Served",
    "Session",
    "SessionClosed",
    "Status",
    "StreamedMessage",
    "SystemIds",
    "TaskResult",
    "TaskStatus",
    "ToolInfo",
    "Totals",
    "local_data_dir",
]
