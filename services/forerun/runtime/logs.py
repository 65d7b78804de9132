"""Structured logs on standard error, one JSON object a line, without content of sessions.

Our own messages are fixed texts with fields (`extra={"fields": {...}}`), which pass the redaction. Exceptions are shown
by type and stack; their texts only where they are ours (`ForerunError` texts hold no content by contract). Texts of
other libraries may quote what they process, so they are withheld unless a person asks for them.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from forerun.runtime.errors import ForerunError
from forerun.runtime.redaction import redacted
from forerun.runtime.tracing import current_trace

_OWN_PREFIX: Final = "forerun"
_MAX_FRAMES: Final = 30
_MAX_CHAIN: Final = 5


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Args:
        service: Goes into every line.
        library_text: Whether messages of other libraries and texts of their exceptions are shown.
    """

    def __init__(self, service: str, *, library_text: bool) -> None:
        super().__init__()
        self._service = service
        self._library_text = library_text

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": self._message(record),
        }
        context = current_trace()
        if context is not None:
            line["trace_id"] = context[3:35]
        fields = getattr(record, "fields", None)
        if fields:
            line["fields"] = redacted(fields)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._exception(record.exc_info[1], _MAX_CHAIN)
        return json.dumps(line, ensure_ascii=False)

    def _message(self, record: logging.LogRecord) -> str:
        if self._library_text or record.name.partition(".")[0] == _OWN_PREFIX:
            return record.getMessage()
        # A template with its arguments left out says what happened and nothing about whom.
        return str(record.msg) if record.args else f"{record.module}.{record.funcName}: text withheld"

    def _exception(self, error: BaseException, chain: int) -> dict[str, Any]:
        told: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
        if isinstance(error, ForerunError):
            told["reason"], told["text"] = error.reason.value, error.message
        elif isinstance(error, OSError):
            told["text"] = error.strerror  # without the file's name
        elif self._library_text:
            told["text"] = str(error)
        frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
        told["stack"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if chain > 0:
            if cause is not None:
                told["cause"] = self._exception(cause, chain - 1)
            if isinstance(error, BaseExceptionGroup):
                told["group"] = [self._exception(part, chain - 1) for part in error.exceptions[:_MAX_FRAMES]]
        return told


def configure_logs(service: str, level: str, *, library_text: bool = False, stream: TextIO | None = None) -> None:
    """Sends all logs of the process to one stream.

    Args:
        service: Goes into every line.
        level: Name of the lowest level of our own logs; other libraries start at WARNING.
        library_text: Whether texts of other libraries are shown; they may quote content.
        stream: Standard error if None.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter(service, library_text=library_text))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_OWN_PREFIX).setLevel(level.upper())
