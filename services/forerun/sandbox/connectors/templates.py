"""Fills arguments into the templates of endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from forerun.core.canonical import JsonValue, canonical
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import Invocation, rejected

# The kernel's bound for one element (MAX_ARG_STRLEN), less the NUL at its end.
_ELEMENT_BYTES: Final = 128 * 1024 - 1
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def text_of(value: JsonValue) -> str:
    """A string as it is; everything else as JSON."""
    return value if isinstance(value, str) else canonical(value).decode()


def placeholders(template: str) -> tuple[str, ...]:
    """Names in a template."""
    return tuple(_PLACEHOLDER.findall(template))


def session_text(template: str, invocation: Invocation) -> str:
    """A template in which only `{session}` is replaced."""
    return template.replace("{session}", invocation.session_label or invocation.session)


def fill_url(template: str, invocation: Invocation) -> str:
    """A URL. Values are percent-encoded whole, so that none can add a segment, a query or a host.

    Raises:
        ToolFault: An argument that the URL needs is absent.
    """
    known = {"session": invocation.session_label or invocation.session, "tool": invocation.tool.name}

    def fill(found: re.Match[str]) -> str:
        name = found.group(1)
        if name in invocation.arguments:
            encoded = quote(text_of(invocation.arguments[name]), safe="")
        elif name in known:
            encoded = quote(known[name], safe="")
        else:
            raise rejected(
                ErrorReason.ARGUMENTS_REFUSED, f"the address of {invocation.tool.name} needs the argument {name}",
                tool=invocation.tool.name, path=f"$.{name}",
            )  # fmt: skip
        # A segment of dots only would be resolved as a step in the path.
        return encoded.replace(".", "%2E") if not encoded.strip(".") else encoded

    return _PLACEHOLDER.sub(fill, template)


def fill_argv(argv: tuple[str, ...], invocation: Invocation) -> list[str]:
    """A command line. An element that is nothing but an absent argument is left out; elsewhere absent is empty.

    Raises:
        ToolFault: An argument holds a NUL character, which no command line can carry.
    """
    values: Mapping[str, JsonValue] = {
        "session": invocation.session_label or invocation.session, **invocation.arguments,
    }  # fmt: skip
    filled: list[str] = []
    for element in argv:
        whole = _PLACEHOLDER.fullmatch(element)
        if whole is not None and whole.group(1) not in values:
            continue
        text = _PLACEHOLDER.sub(lambda found: text_of(values.get(found.group(1), "")), element)
        if len(text.encode()) > _ELEMENT_BYTES:
            raise rejected(
                ErrorReason.ARGUMENTS_REFUSED,
                f"an argument is longer than the {_ELEMENT_BYTES} bytes that fit on a command line; give it on "
                "standard input (stdin_argument)",
                tool=invocation.tool.name,
            )
        if "\0" in text:
            raise rejected(
                ErrorReason.ARGUMENTS_REFUSED, "an argument holds a NUL character, which a command line cannot carry",
                tool=invocation.tool.name,
            )  # fmt: skip
        filled.append(text)
    return filled
