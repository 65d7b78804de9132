"""The loop of LLMCompiler: a planner, the executor, and a joiner that answers or wants another plan."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from forerun.client._errors import ForerunClientError, InvalidRequest
from forerun.client._ids import Ids, SystemIds
from forerun.client._plan import OnFailure, PlanResult, TaskResult
from forerun.client._results import Failure, ToolInfo
from forerun.client._running_plan import RunningPlan
from forerun.client._session import AsyncSession
from forerun.client.compiler._decision import END_OF_RESPONSE, Decision, DecisionProblem, decision_of
from forerun.client.compiler._model import Model, ModelError, ModelRequest
from forerun.client.compiler._plan_text import END_OF_PLAN
from forerun.client.compiler._planning import Numbers, PlanIntake, Ready
from forerun.client.compiler._prompts import LlmCompilerPrompts, PlannedTask, Prompts, Round, Situation
from forerun.client.compiler._repeats import FinishedWrites
from forerun.client.compiler._requests import Requests, TokensSpent, Unusable
from forerun.client.compiler._results import (
    Bounds,
    CompilerResult,
    Decided,
    Event,
    PlanBroken,
    Progressed,
    Purpose,
    Requested,
    RoundStarted,
    RunStatus,
    TaskEnded,
    TaskKept,
    TaskPlanned,
    Thought,
)

_LOG: Final = logging.getLogger("forerun.client")
_DECISIONS: Final = 2  # a decision that is none is asked for once more, with what was wrong

OnEvent = Callable[[Event], None]


class Compiler:
    """Answers questions with plans.

        compiler = Compiler(OpenAiModel("http://127.0.0.1:8000/v1", "a-model"))
        async with AsyncClient() as client, client.session("an-agent") as session:
            print((await compiler.run(session, "Which of the two is higher?")).raise_for_status().answer)

    A task starts as soon as its line of the plan has arrived and its inputs are there. One compiler serves any number
    of runs at the same time.

    Args:
        model: Writes the plans.
        joiner: Decides. None: the same model.
        prompts: What they are asked.
        bounds: How far a run may go.
        reads_first: Only safe reads start before a plan is complete, so that a plan that breaks off has changed
            nothing. False: whatever has its inputs starts, also a write.
        on_failure: What the failure of a task does to the others.
        ids: Draws the jitter of repeated requests.
    """

    def __init__(
        self,
        model: Model,
        *,
        joiner: Model | None = None,
        prompts: Prompts | None = None,
        bounds: Bounds | None = None,
        reads_first: bool = True,
        on_failure: OnFailure = OnFailure.ISOLATE,
        ids: Ids | None = None,
    ) -> None:
        self.model = model
        self.joiner = joiner or model
        self.prompts: Prompts = prompts or LlmCompilerPrompts()
        self.bounds = bounds or Bounds()
        self.reads_first = reads_first
        self.on_failure = on_failure
        self.fraction = (ids or SystemIds()).fraction

    async def run(
        self,
        session: AsyncSession,
        question: str,
        *,
        tools: Sequence[ToolInfo] | None = None,
        on_event: OnEvent | None = None,
        deadline_seconds: float | None = None,
    ) -> CompilerResult:
        """Answers one question. Cancelling the task that waits here takes back what runs.

        Args:
            session: An open session; the plan is one message of it.
            question: What the user asks.
            tools: What may be planned. None: everything that the session can call.
            on_event: Told what happens, in order. What it raises goes to the log, and the run goes on.
            deadline_seconds: Longest time. None: the bounds of the parts only.

        Returns:
            How it ended, with or without an answer, and what it cost.

        Raises:
            ForerunClientError: the session is not open, or its tools cannot be asked for. Whatever fails later is in
                the result.
        """
        if deadline_seconds is not None and deadline_seconds <= 0:
            raise InvalidRequest("ARGUMENT_INVALID", "deadline_seconds must be above 0")
        await session.user_turn(question)
        known = list(tools) if tools is not None else await session.list_tools()
        run = _Run(self, session, question, known, on_event or _nobody, deadline_seconds)
        return await run.result()


class _Failed(Exception):
    """The run ends without an answer."""

    def __init__(self, failure: Failure, status: RunStatus = RunStatus.FAILED) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.status = status


class _Run:
    """One question."""

    def __init__(
        self,
        compiler: Compiler,
        session: AsyncSession,
        question: str,
        tools: Sequence[ToolInfo],
        on_event: OnEvent,
        deadline_seconds: float | None,
    ) -> None:
        self._compiler = compiler
        self._session = session
        self._question = question
        self._tools = {tool.name: tool for tool in tools}
        self._on_event = on_event
        now = asyncio.get_running_loop().time()
        self._deadline_seconds = deadline_seconds
        self._deadline_at = None if deadline_seconds is None else now + deadline_seconds
        self._requests = Requests(
            compiler.bounds, self._deadline_at, compiler.fraction, lambda record: self._tell(Requested(record))
        )
        reads = {tool.name for tool in tools if tool.reads}
        self._writes = FinishedWrites(reads.__contains__)
        self._numbers = Numbers()
        self._rounds: list[Round] = []
        self._results: dict[str, TaskResult] = {}

    def _tell(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            # It is called from the middle of a plan, whose other tasks it has nothing to do with.
            _LOG.exception("on_event raised at a %s", type(event).__name__)

    async def result(self) -> CompilerResult:
        """Runs, and says how it ended."""
        await self._session.model_started()
        plan = self._session.plan(
            on_failure=self._compiler.on_failure,
            reads_first=self._compiler.reads_first,
            progress=lambda known, running, settled: self._tell(Progressed(known, running, settled)),
        )
        async with plan:
            pump = asyncio.get_running_loop().create_task(self._pump(plan), name="forerun compiler events")
            try:
                ended = await self._in_time(plan)
            except BaseException:
                pump.cancel()
                raise
        await pump  # what was taken back has its end now, too
        if isinstance(ended, Decision):
            with contextlib.suppress(ForerunClientError):  # a session that has ended meanwhile hears nothing
                await self._session.assistant_message(ended.text)
            return self._result(RunStatus.ANSWERED, ended.text, ended.thought, None)
        return self._result(ended.status, "", "", ended.failure)

    def _result(self, status: RunStatus, answer: str, thought: str, failure: Failure | None) -> CompilerResult:
        return CompilerResult(
            status=status,
            answer=answer,
            thought=thought,
            failure=failure,
            rounds=max(1, len(self._rounds)),
            tasks=sorted(self._results.values(), key=lambda one: one.index),
            kept=dict(self._numbers.kept),
            requests=list(self._requests.records),
        )

    async def _pump(self, plan: RunningPlan) -> None:
        async for one in plan.results():
            self._results[one.id] = one
            self._tell(TaskEnded(one))

    async def _in_time(self, plan: RunningPlan) -> Decision | _Failed:
        timer = asyncio.timeout_at(self._deadline_at)
        try:
            async with timer:
                return await self._answer(plan)
        except _Failed as failed:
            return failed
        except ForerunClientError as error:
            # What was found out and what it cost is there all the same.
            return _Failed(Failure(error.reason, error.message, error.metadata, error.retry_after_seconds))
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"there was no answer within {self._deadline_seconds:g} s"
            return _Failed(Failure("DEADLINE_EXCEEDED", text), RunStatus.TIMEOUT)

    # ------------------------------------------------------------ rounds

    async def _answer(self, plan: RunningPlan) -> Decision:
        replans = self._compiler.bounds.replans
        for number in range(replans + 1):
            if number:
                await plan.again()
            last = number == replans
            broken = await self._plan(plan, number)
            if broken is not None:
                if last:
                    raise _Failed(broken)
                continue
            decision = await self._join(number, may_replan=not last)
            self._tell(Decided(number, decision.finish, decision.text))
            if decision.finish:
                return decision
            self._rounds[-1] = Round(self._rounds[-1].tasks, decision.text or decision.thought)
        text = f"the joiner still wants another plan after {replans} replans (replans)"
        raise _Failed(Failure("REPLANS_EXHAUSTED", text))

    async def _plan(self, plan: RunningPlan, number: int) -> Failure | None:
        """One plan from its first character to the end of its last task; what was wrong with it, or None."""
        self._tell(RoundStarted(number))
        intake = PlanIntake(self._tools, self._numbers, self._writes, self._compiler.bounds)
        broken = await self._stream(plan, intake, number)
        if broken is not None:
            self._tell(PlanBroken(number, broken))
            await plan.refuse(broken.message)
        ended = await plan.finish()
        self._round_over(ended, intake.tasks, broken)
        return broken

    async def _stream(self, plan: RunningPlan, intake: PlanIntake, number: int) -> Failure | None:
        async def hand_on(ready: Iterator[Ready]) -> None:
            for one in ready:
                self._think(intake, number)
                if one.same_as:
                    self._tell(TaskKept(number, one.task, one.same_as))
                    continue
                self._tell(TaskPlanned(number, one.task))
                await plan.add(one.task)
            self._think(intake, number)

        async def take(text: str) -> None:
            await hand_on(intake.feed(text))

        async def over(_: str) -> None:
            await hand_on(intake.finish())

        bounds = self._compiler.bounds
        request = ModelRequest(self._compiler.prompts.plan(self._situation()), bounds.plan_tokens, (END_OF_PLAN,))
        try:
            await self._requests.send(
                self._compiler.model,
                request,
                purpose=Purpose.PLAN,
                round_=number,
                take=take,
                over=over,
                restart=intake.restart,
            )
        except Unusable as error:
            return error.failure
        except ModelError as error:
            if not intake.tasks:
                raise _failed(error, "the planner") from error
            return Failure("PLAN_BROKEN_OFF", f"the plan broke off: {error.message}", {"reason": error.reason})
        except TokensSpent as error:
            raise self._out_of_tokens() from error
        return None

    def _think(self, intake: PlanIntake, number: int) -> None:
        for thought in intake.new_thoughts():
            self._tell(Thought(number, thought))

    def _round_over(self, ended: PlanResult, tasks: Sequence[Ready], broken: Failure | None) -> None:
        results = {one.id: one for one in ended.tasks}
        self._writes.round_over(results)
        shown = [
            PlannedTask(one.task.id, one.task.tool, str(one.task.arguments), results.get(one.task.id), one.same_as)
            for one in tasks
        ]
        verdict = f"this plan could not be used and was stopped: {broken.message}" if broken is not None else ""
        self._rounds.append(Round(shown, verdict))

    async def _join(self, number: int, *, may_replan: bool) -> Decision:
        complaint = ""
        for _ in range(_DECISIONS):
            try:
                return await self._decide(number, self._situation(may_replan=may_replan, complaint=complaint))
            except Unusable as error:
                complaint = error.failure.message
        raise _Failed(Failure("DECISION_INVALID", f"the joiner gave no decision: {complaint}"))

    async def _decide(self, number: int, situation: Situation) -> Decision:
        bounds = self._compiler.bounds
        parts: list[str] = []
        left = bounds.join_chars
        found: list[Decision] = []

        async def take(text: str) -> None:
            nonlocal left
            left -= len(text)
            if left < 0:
                text = f"the decision has more than {bounds.join_chars} characters (join_chars)"
                raise Unusable(Failure("DECISION_INVALID", text))
            parts.append(text)

        async def over(_: str) -> None:
            try:
                found.append(decision_of("".join(parts)))
            except DecisionProblem as problem:
                raise Unusable(Failure("DECISION_INVALID", str(problem))) from problem

        def restart() -> bool:
            nonlocal left
            parts.clear()  # nobody has seen it
            left = bounds.join_chars
            return True

        request = ModelRequest(self._compiler.prompts.join(situation), bounds.join_tokens, (END_OF_RESPONSE,))
        try:
            await self._requests.send(
                self._compiler.joiner,
                request,
                purpose=Purpose.JOIN,
                round_=number,
                take=take,
                over=over,
                restart=restart,
            )
        except ModelError as error:
            raise _failed(error, "the joiner") from error
        except TokensSpent as error:
            raise self._out_of_tokens() from error
        return found[0]

    def _situation(self, *, may_replan: bool = True, complaint: str = "") -> Situation:
        bounds = self._compiler.bounds
        return Situation(
            question=self._question,
            tools=list(self._tools.values()),
            rounds=list(self._rounds),
            first_number=self._numbers.last + 1,
            may_replan=may_replan,
            complaint=complaint,
            observation_chars=bounds.observation_chars,
            prompt_chars=bounds.prompt_chars,
        )

    def _out_of_tokens(self) -> _Failed:
        most = self._compiler.bounds.tokens
        return _Failed(Failure("BUDGET_EXHAUSTED", f"the run has used its {most} tokens (tokens)"))


def _failed(error: ModelError, who: str) -> _Failed:
    text = f"{who} gave no answer: {error.message}"
    return _Failed(Failure(error.reason, text, retry_after_seconds=error.retry_after_seconds))


def _nobody(_: Event) -> None:
    return
