"""Tools that live in the client: Python functions that the platform calls back over the session's stream."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from forerun.client._errors import InvalidRequest
from forerun.client._json import decode, encode
from forerun.v1 import common_pb2, session_pb2

_LOG: Final = logging.getLogger("forerun.client")

JSON: Final = "application/json"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"

# One message of the stream; a result of a client's tool is not sent in chunks. Room is left for the fields around it.
RESULT_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024

_Function = TypeVar("_Function", bound=Callable[..., Any])

_SCALARS: Final[Mapping[object, Mapping[str, object]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    inspect.Parameter.empty: {},
}
_ARRAYS: Final = frozenset({list, tuple, Sequence})
_OBJECTS: Final = frozenset({dict, Mapping})


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with its schema.

    Attributes:
        name: The tool's name.
        schema: JSON Schema of the arguments, as JSON text.
        function: Called with the arguments as keywords: a coroutine function is awaited, any other one runs in a
            thread.
    """

    name: str
    schema: str
    function: Callable[..., Any]

    @property
    def description(self) -> str:
        """What it does, for models: its documentation."""
        return inspect.getdoc(self.function) or ""

    def message(self) -> session_pb2.ClientTool:
        """Its declaration on the wire."""
        return session_pb2.ClientTool(name=self.name, input_schema=self.schema)


def tool_of(function: Callable[..., Any], *, name: str | None, schema: Mapping[str, object] | None) -> Tool:
    """Makes a tool of a function.

    Raises:
        InvalidRequest: the schema is not given and does not follow from the signature.
    """
    title: str = name or function.__name__
    given = schema if schema is not None else schema_of(function, title)
    return Tool(title, encode(given).decode("utf-8"), function)


def schema_of(function: Callable[..., Any], name: str) -> Mapping[str, object]:
    """The JSON Schema of a function's keyword arguments, from its annotations.

    Raises:
        InvalidRequest: a parameter cannot be given by name, or its type has no obvious schema.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise _no_schema(name, str(error.name), "its annotation names something that is not defined here") from error
    properties: dict[str, object] = {}
    required: list[str] = []
    open_ended = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise _no_schema(name, parameter.name, "it cannot be given by name")
        described = dict(_schema(hints.get(parameter.name, inspect.Parameter.empty), name, parameter.name))
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            described["default"] = parameter.default
        properties[parameter.name] = described
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": open_ended}


def _schema(hint: Any, tool: str, parameter: str) -> Mapping[str, object]:
    try:
        scalar = _SCALARS.get(hint)
    except TypeError:
        scalar = None  # not hashable, so none of ours
    if scalar is not None:
        return scalar
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = dict(_schema(arguments[0], tool, parameter))
        texts = [extra for extra in arguments[1:] if isinstance(extra, str)]
        return inner | {"description": texts[0]} if texts else inner
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, tool, parameter) for one in arguments]}
    if hint in _ARRAYS or origin in _ARRAYS:
        items = [one for one in arguments if one is not Ellipsis]
        return {"type": "array"} | ({"items": _schema(items[0], tool, parameter)} if len(items) == 1 else {})
    if hint in _OBJECTS or origin in _OBJECTS:
        values = {"additionalProperties": _schema(arguments[1], tool, parameter)} if len(arguments) == 2 else {}
        return {"type": "object"} | values
    raise _no_schema(tool, parameter, f"{getattr(hint, '__name__', hint)} has no obvious JSON Schema")


def _is_json(value: object) -> bool:
    try:
        encode(value)
    except InvalidRequest:
        return False
    return True


def _no_schema(tool: str, parameter: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        "ARGUMENT_INVALID",
        f"the schema of parameter {parameter!r} of tool {tool!r} cannot be derived: {why}; give schema=",
        metadata={"tool": tool, "parameter": parameter},
    )


class ToolHost(ABC):
    """What takes functions of the agent's own program as tools: a session for itself, a client for all its sessions."""

    @overload
    def tool(self, function: _Function, /) -> _Function: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, schema: Mapping[str, object] | None = None
    ) -> Callable[[_Function], _Function]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        schema: Mapping[str, object] | None = None,
    ) -> Any:
        """Registers a function as a tool: of this session before it is opened, or of all sessions made afterwards.

        A coroutine function is awaited, any other one runs in a thread. What it returns is the observation (text,
        bytes, or a JSON value); what it raises is a result with `tool_error`. Without a contract in the policy such
        a tool counts as a write to everything and never runs ahead.

        Args:
            function: The function, called with the arguments as keywords.
            name: The tool's name; the function's by default.
            schema: JSON Schema of the arguments; by default it follows from the annotations.

        Raises:
            InvalidRequest: the session is open already, or no schema follows from the signature.
        """

        def register(given: _Function) -> _Function:
            self._take_tool(tool_of(given, name=name, schema=schema))
            return given

        return register if function is None else register(function)

    @abstractmethod
    def _take_tool(self, tool: Tool) -> None:
        """Keeps a tool."""


class Invocations:
    """Runs what the platform asks for.

    Args:
        tools: By name.
        answer: Sends a result.
    """

    def __init__(self, tools: Mapping[str, Tool], answer: Callable[[session_pb2.ClientToolResult], None]) -> None:
        self._tools = tools
        self._answer = answer
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, message: session_pb2.ClientToolInvocation) -> None:
        """Starts one."""
        task = asyncio.get_running_loop().create_task(self._run(message), name=f"client tool {message.action.tool}")
        self._running[message.invocation] = task
        task.add_done_callback(lambda _: self._running.pop(message.invocation, None))

    def cancel(self, invocation: str) -> None:
        """Stops one. A function in a thread runs to its end, and its result is dropped."""
        task = self._running.get(invocation)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Stops all: whoever asked is gone."""
        for task in list(self._running.values()):
            task.cancel()

    async def close(self) -> None:
        """Stops all and waits for them."""
        running = list(self._running.values())
        self.cancel_all()
        if running:
            await asyncio.wait(running)

    async def _run(self, message: session_pb2.ClientToolInvocation) -> None:
        tool = self._tools.get(message.action.tool)
        result = session_pb2.ClientToolResult(invocation=message.invocation)
        if tool is None:
            result.status = common_pb2.CALL_STATUS_UNAVAILABLE
        else:
            result.status = common_pb2.CALL_STATUS_OK
            result.observation.CopyFrom(await observe(tool, message.action.arguments))
        self._answer(result)


async def observe(tool: Tool, arguments: bytes) -> common_pb2.Observation:
    """Runs a function and makes an observation of what it returns or raises."""
    try:
        keywords = decode(arguments or b"{}")
        value = await run_function(tool.function, **keywords)
        content, media_type = content_of(value)
    except Exception as error:
        # What a function raises is its answer, as a tool's own failure. Its message goes to the agent, not to the log.
        _LOG.info("client tool %s raised %s", tool.name, type(error).__name__)
        return failed(type(error).__name__, str(error))
    if len(content) > RESULT_BYTES:
        return failed("ResultTooLarge", f"the result has {len(content)} bytes; at most {RESULT_BYTES} are possible")
    return common_pb2.Observation(content=content, media_type=media_type)


async def run_function(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Awaits a coroutine function, and runs any other one in a thread."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*arguments, **keywords)
    return await asyncio.to_thread(function, *arguments, **keywords)


def content_of(value: object) -> tuple[bytes, str]:
    """Content and media type of what a function returned."""
    if isinstance(value, bytes):
        return value, BYTES
    if isinstance(value, str):
        return value.encode("utf-8"), TEXT
    return encode(value), JSON


def failed(kind: str, message: str) -> common_pb2.Observation:
    """The observation of a function that raised."""
    # ensure_ascii: a message may hold half a surrogate pair, which has no UTF-8.
    content = json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=True).encode("ascii")
    return common_pb2.Observation(content=content, media_type=JSON, tool_error=True)
