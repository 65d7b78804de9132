"""The tools of these examples behind HTTP, on port 8080 of this machine: each call takes 0.3 s, files are in memory."""

import ast
import json
import operator
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SECONDS = 0.3
HEIGHTS = {"mont blanc": (4806, "France"), "eiffel": (330, "France")}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

files: dict[str, str] = {}
booked: list[str] = []


def rooms(city: str) -> dict[str, Any]:
    """The rooms of a city that are free."""
    offered = [{"id": f"{city.lower()}-{number}", "price": 80 + 20 * number + len(city)} for number in (1, 2)]
    return {"city": city, "rooms": [room for room in offered if room["id"] not in booked]}


def search(query: str) -> dict[str, Any]:
    """What is known of a mountain or a tower."""
    found = [(metres, country) for name, (metres, country) in HEIGHTS.items() if name in query.lower()]
    return {"results": [{"metres": metres, "country": country} for metres, country in found]}


def calculate(expression: str) -> dict[str, Any]:
    """The value of a sum, difference, product or quotient."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            result: float = OPERATORS[type(node.op)](value(node.left), value(node.right))
            return result
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        raise ValueError("only numbers and + - * /")

    return {"value": round(value(ast.parse(expression, mode="eval").body), 2)}


class Tools(BaseHTTPRequestHandler):
    """One request is one call."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Answers whatever method it is."""
        time.sleep(SECONDS)  # noqa: TID251  (what a tool takes; every request has a thread of its own)
        target = urlsplit(self.path)
        path = [unquote(part) for part in target.path.split("/") if part]
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        given = query | (json.loads(body) if body else {})
        try:
            result = self.call(path, given)
        except (KeyError, ValueError, SyntaxError) as error:
            self.send(400, {"error": str(error)})
        else:
            self.send(200, result)

    do_GET = do_POST = do_PUT = answer  # noqa: N815  (the names of the standard library)

    def call(self, path: list[str], given: dict[str, Any]) -> Any:
        """The tool that a path names."""
        match path:
            case ["search"]:
                return search(given["query"])
            case ["calculate"]:
                return calculate(given["expression"])
            case ["weather", city]:
                return {"city": city, "summary": "rain" if city == "Bergen" else "sun"}
            case ["rooms", city, "book"]:
                booked.append(given["room"])
                return {"booked": given["room"], "city": city}
            case ["rooms", city]:
                return rooms(city)
            case ["files"]:
                name = given["path"].removeprefix("./")
                if self.command == "PUT":
                    files[name] = given["text"]
                    return {"path": name, "bytes": len(given["text"])}
                return {"path": name, "text": files[name]}
        raise KeyError(f"no tool at {self.path}")

    def send(self, status: int, value: Any) -> None:
        """Sends a value as JSON."""
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """One line for each call."""
        sys.stderr.write(f"{self.command} {self.path}\n")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Tools)
    print(f"tools at http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
    server.serve_forever()
