"""An agent that plans its calls. Needs `forerun up`, and a model: MODEL_URL, MODEL_NAME and MODEL_KEY say which."""

import asyncio
import os
import sys
import time

from forerun.client import AsyncClient, ForerunClientError
from forerun.client.compiler import (
    Bounds,
    Compiler,
    Decided,
    Event,
    OpenAiModel,
    PlanBroken,
    Progressed,
    TaskEnded,
    TaskKept,
    TaskPlanned,
    Thought,
)

model = OpenAiModel(
    os.environ.get("MODEL_URL", "http://127.0.0.1:8081/v1"),
    os.environ.get("MODEL_NAME", "stand-in"),
    api_key=os.environ.get("MODEL_KEY"),
)
compiler = Compiler(model, bounds=Bounds(replans=2))


def show(event: Event, began: float) -> None:
    match event:
        case Thought(text=text):
            said = f"thought  {text}"
        case TaskPlanned(task=task):
            said = f"planned  {task.id}. {task.tool} {task.arguments!s}"
        case TaskKept(task=task, same_as=same_as):
            said = f"kept     {task.id}. {task.tool}: that is {same_as}, which is done"
        case TaskEnded(result=result):
            content = str(result.content, "utf-8")[:80]
            said = f"{result.status.value:8} {result.id}. {content}"
        case PlanBroken(failure=failure):
            said = f"stopped  {failure.message}"
        case Progressed(running=running) if running:
            said = f"running  {running}"
        case Decided(finish=finish, text=text):
            said = f"{'answer' if finish else 'replan':8} {text}"
        case _:
            return
    print(f"{time.monotonic() - began:6.2f} s  {said}")  # noqa: TID251  (an example, not a decision)


async def main(question: str) -> None:
    async with AsyncClient() as client, client.session("compiler-example") as session:
        began = time.monotonic()  # noqa: TID251
        result = await compiler.run(session, question, on_event=lambda event: show(event, began), deadline_seconds=60.0)
    tools = sum(one.seconds for one in result.tasks)
    models = sum(one.seconds for one in result.requests)
    print(f"tools took {tools:.2f} s and models {models:.2f} s; together it took {time.monotonic() - began:.2f} s")  # noqa: TID251
    spent = result.spent
    tokens = f"at least {spent.tokens}" if spent.at_least else f"{spent.tokens}"
    print(f"{tokens} tokens in {len(result.requests)} requests, {spent.wasted_tokens} of them wasted")
    print(result.raise_for_status().answer)


try:
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "How many times as high as the Eiffel tower is Mont Blanc?"))
except ForerunClientError as error:  # no platform, or a run without an answer: the message says what to do
    sys.exit(f"{error}")
