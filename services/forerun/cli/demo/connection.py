"""The demo's way into a platform: the public client, as any agent uses it."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from forerun import client
from forerun.cli.demo.agents.script import Call, Observation
from forerun.cli.demo.runs import Answer, Counts, Served

_SERVED = {
    client.Served.UNSPECIFIED: Served.REFUSED,
    client.Served.DIRECT: Served.DIRECT,
    client.Served.READY: Served.READY,
    client.Served.JOINED: Served.JOINED,
    client.Served.MEMO: Served.MEMO,
    client.Served.SHARED: Served.SHARED,
}


class ClientPlatform:
    """A platform behind the public client.

    Args:
        opened: An open client.
    """

    def __init__(self, opened: client.AsyncClient) -> None:
        self._client = opened

    @contextlib.asynccontextmanager
    async def session(
        self, label: str, *, agent: str, tools: Sequence[str], speculate: bool
    ) -> AsyncIterator["ClientSession"]:
        """Opens a session. With `speculate` false its mode is off.

        Raises:
            ForerunClientError: It cannot be opened.
        """
        mode = None if speculate else client.Mode.OFF
        async with self._client.session(agent, tools=tools, mode=mode, label=label) as session:
            yield ClientSession(session)


class ClientSession:
    """One session of the public client."""

    def __init__(self, session: client.AsyncSession) -> None:
        self._session = session

    async def user_turn(self, text: str) -> None:
        """The user said something."""
        await self._session.user_turn(text)

    async def model_started(self) -> None:
        """A model request begins now."""
        await self._session.model_started()

    async def message(self, text: str) -> None:
        """The model's message is complete; its calls follow."""
        await self._session.assistant_message(text)

    async def call(self, calls: Sequence[Call]) -> Sequence[Answer]:
        """Runs calls; answers in call order."""
        asked = [client.Call(call.tool, call.arguments_json) for call in calls]
        return [_answer(result) for result in await self._session.call_tools(asked)]

    async def end(self) -> Counts:
        """Ends the session.

        Raises:
            RuntimeError: The platform did not say what the session amounted to.
        """
        await self._session.close()
        totals = self._session.totals
        if totals is None:
            raise RuntimeError("the platform ended a session of the demo without its counts; see its log")
        return Counts(
            calls=totals.calls,
            launched=totals.launched,
            outcomes=dict(totals.outcomes),
            memo_hits=totals.memo_hits,
            speculable_calls=totals.speculable_calls,
            executions=totals.executions,
            wasted_seconds=totals.wasted_seconds,
        )


def _answer(result: client.Result) -> Answer:
    return Answer(
        observation=Observation(result.content, result.tool_error, result.status.name),
        served=_SERVED[result.served],
        execution_seconds=result.execution_seconds,
        waited_seconds=result.waited_seconds,
    )
