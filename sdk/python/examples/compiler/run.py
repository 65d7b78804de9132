"""The whole example with one command: tools, stand-in model and platform are started, asked and stopped again.

python sdk/python/examples/compiler/run.py [QUESTION...]
"""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLANS = HERE.parents[3] / "docs" / "examples" / "plans"
START_SECONDS = 60.0
QUESTIONS = [  # those that the stand-in knows
    "How many times as high as the Eiffel tower is Mont Blanc?",
    "Book the cheaper of the first rooms in Bergen and Oslo, and note the weather there.",
    "What is 6 times 7?",
]


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """A Python program of its own, stopped at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE, stderr=DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def address(process: Process) -> str:
    """What a server prints when it listens."""
    assert process.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        return (await process.stdout.readline()).decode().split()[-1]


async def until_up(platform: Process, data: Path) -> None:
    """Returns when the platform has written down where it is."""
    async with asyncio.timeout(START_SECONDS):
        while not (data / "run.json").exists():
            if platform.returncode is not None:
                raise SystemExit("`forerun up` has ended; `forerun up --check` says what is missing")
            await asyncio.sleep(0.05)


async def main(questions: list[str]) -> int:
    failed = 0
    async with running(str(PLANS / "tools.py"), "0") as tools, running(str(HERE / "standin_model.py"), "0") as model:
        with tempfile.TemporaryDirectory() as directory:
            data, policy = Path(directory) / "data", Path(directory) / "policy.yaml"
            text = (PLANS / "policy.yaml").read_text()
            policy.write_text(text.replace("http://127.0.0.1:8080", await address(tools)))
            environment = os.environ | {"FORERUN_DATA": str(data), "MODEL_URL": await address(model)}
            up = ["-m", "forerun.cli.main", "up", "--data", str(data), "--policy", str(policy), "--port", "0"]
            async with running(*up) as platform:
                await until_up(platform, data)
                for question in questions:
                    print(f"\n{question}", flush=True)
                    agent = await asyncio.create_subprocess_exec(
                        sys.executable, str(HERE / "agent.py"), question, env=environment
                    )
                    failed += bool(await agent.wait())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or QUESTIONS)))
