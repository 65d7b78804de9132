"""A stand-in for a model: an OpenAI-compatible server that answers three questions from a script.

It thinks of nothing. What is real is the wire: HTTP, `POST /v1/chat/completions`, server-sent events, one token after
the other at a model's pace, and usage at the end. Values in its decisions come from the results in the prompt.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

FIRST_TOKEN_SECONDS: Final = 0.3
TOKEN_SECONDS: Final = 0.02
END_OF_PLAN: Final = "<END_OF_PLAN>"


@dataclass(frozen=True)
class Script:
    """What is said to one question.

    Attributes:
        plans: One for each round.
        decisions: Likewise. `{4.value}` stands for something in the result of call 4.
    """

    plans: Sequence[str]
    decisions: Sequence[str]


SCRIPTS: Final = {
    "How many times as high as the Eiffel tower is Mont Blanc?": Script(
        plans=[
            "Thought: two look-ups that do not need each other, their ratio, and a note of it\n"
            '1. search("height of Mont Blanc in metres")\n'
            '2. search("height of the Eiffel tower in metres")\n'
            '3. calculate("$1.results[0].metres / $2.results[0].metres")\n'
            '4. write_file("report.md", "Mont Blanc is $3.value times as high.")\n'
            '5. read_file("report.md")\n'
            "6. join()"
        ],
        decisions=[
            "Thought: the ratio is {3.value}, and the note is written\n"
            "Action: Finish(Mont Blanc is {3.value} times as high as the Eiffel tower. Noted: {5.text})"
        ],
    ),
    "Book the cheaper of the first rooms in Bergen and Oslo, and note the weather there.": Script(
        plans=[
            "Thought: which room is the cheaper one nobody knows yet\n"
            '1. find_rooms("Bergen")\n2. find_rooms("Oslo")\n3. weather("Bergen")\n4. weather("Oslo")\n5. join()',
            # A model that repeats what is done: the booking is asked for twice and made once.
            '6. book_room("Oslo", $2.rooms[0].id)\n7. write_file("trip.md", "$6.booked, $4.summary")\n8. join()',
            '9. book_room("Oslo", $2.rooms[0].id)\n10. read_file("trip.md")\n11. join()',
        ],
        decisions=[
            "Thought: {1.rooms[0].price} in Bergen and {2.rooms[0].price} in Oslo\n"
            "Action: Replan(book the one in Oslo, and note it)",
            "Thought: booked, but is it noted?\nAction: Replan(read the note)",
            "Action: Finish(Booked {6.booked}. The note says: {10.text})",
        ],
    ),
    "What is 6 times 7?": Script(
        plans=["1. multiply(6, 7)\n2. join()", '1. calculate("6 * 7")\n2. join()'],
        decisions=["", "Thought: one call was enough\nAction: Finish({1.value})"],
    ),
}
RESULT: Final = re.compile(r"^(\d+)\. .*\n   = (.*)$", re.MULTILINE)
STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
PLACE: Final = re.compile(r"\{(\d+)((?:\.\w+|\[\d+\])+)\}")


def filled(text: str, prompt: str) -> str:
    """A decision with the values that the prompt's results have."""
    results = {number: json.loads(said) for number, said in RESULT.findall(prompt) if said.startswith("{")}

    def value(found: re.Match[str]) -> str:
        one: Any = results.get(found[1], {})
        for name, index in STEP.findall(found[2]):
            one = one[name] if name else one[int(index)]
        return str(one)

    return PLACE.sub(value, text)


def answer_to(request: dict[str, Any]) -> str | None:
    """What the script says to a request; None to a question that it does not know."""
    prompt = str(request["messages"][-1]["content"])
    script = next((one for question, one in SCRIPTS.items() if question in prompt), None)
    if script is None:
        return None
    # Every round that has ended closes with what the joiner, or the client, said of it.
    rounds = prompt.count("\nAfter that: ")
    if END_OF_PLAN in request.get("stop", []):
        return script.plans[min(rounds, len(script.plans) - 1)]
    return filled(script.decisions[min(rounds, len(script.decisions) - 1)], prompt)


async def events(request: dict[str, Any], answer: str) -> AsyncIterator[dict[str, Any]]:
    """The chunks of an answer, at a model's pace."""
    tokens = re.findall(r"\s*\w+|\s*[^\w\s]|\s+", answer)
    await asyncio.sleep(FIRST_TOKEN_SECONDS)
    for token in tokens:
        yield chunk(request, delta={"content": token})
        await asyncio.sleep(TOKEN_SECONDS)
    yield chunk(request, delta={}, finish_reason="stop")
    prompt_tokens = sum(len(re.findall(r"\w+|[^\w\s]", one["content"])) for one in request["messages"])
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(tokens)}
    yield {"object": "chat.completion.chunk", "model": request["model"], "choices": [], "usage": usage}


def chunk(request: dict[str, Any], *, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    """One chunk as OpenAI writes it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "model": request["model"], "choices": [choice]}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if not head.startswith("POST /v1/chat/completions "):
            respond(writer, 404, {"error": {"message": "there is POST /v1/chat/completions only"}})
            return
        request = json.loads(body)
        answer = answer_to(request)
        if answer is None:
            known = ", ".join(repr(question) for question in SCRIPTS)
            about = {"message": f"this stand-in only knows {known}", "code": "unknown_question"}
            respond(writer, 400, {"error": about})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        async for event in events(request, answer):
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")
    except (OSError, EOFError):
        return  # whoever asked has hung up
    finally:
        writer.close()


def respond(writer: asyncio.StreamWriter, status: int, value: dict[str, Any]) -> None:
    """A short answer."""
    content = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print(f"stand-in model at http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8081))
