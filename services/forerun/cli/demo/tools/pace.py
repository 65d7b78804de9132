"""Makes a tool as slow as its drawn time: it takes the larger of its real and its drawn time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from forerun.cli.demo.draws import Draws, logical_session
from forerun.core.canonical import JsonValue


@asynccontextmanager
async def paced(draws: Draws, label: str, tool: str, arguments: Mapping[str, JsonValue]) -> AsyncIterator[None]:
    """The body's work, and then what is missing to the drawn time of this action in this session."""
    loop = asyncio.get_running_loop()
    end = loop.time() + draws.tool_seconds(logical_session(label), tool, arguments)
    yield
    await asyncio.sleep(max(0.0, end - loop.time()))
