"""The Triton model that makes a prompt of a conversation: the model's own chat template, then its tokenizer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.serving.backend.sequences import Refused

_MOST_BYTES: Final = 8 * 1024 * 1024
_EXPECTED_TOKENS: Final = 2_048


class _Encoder(Protocol):
    def encode(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        """Tokens of the prompt that the model answers to."""
        ...

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text that the model may answer with."""
        ...


class TritonPythonModel:
    """What the Python backend starts."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Loads template and tokenizer."""
        settings = json.loads(json.loads(args["model_config"])["parameters"]["settings"]["string_value"])
        engine = settings["engine"]
        self._encoder: _Encoder = _ToyEncoder(engine["vocabulary"]) if engine["kind"] == "toy" else _Template(engine)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One prompt for each request."""
        return [self._one(request) for request in requests]

    def _one(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "REQUEST").as_numpy().reshape(-1)[0]
        try:
            if len(text) > _MOST_BYTES:
                raise Refused(f"a conversation of more than {_MOST_BYTES} bytes")
            asked = json.loads(text)
            tokens = self._encoder.encode(asked["messages"], asked.get("tools") or [])
            expected = [self._encoder.tokens(one)[:_EXPECTED_TOKENS] for one in asked.get("expected", ())]
        except Refused as refused:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"refused: {refused}"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"refused: no conversation: {error}"))
        texts = np.array([json.dumps(expected)], dtype=np.object_)
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("TOKENS", np.array(tokens, np.int32)),
                pb_utils.Tensor("EXPECTED", texts),
            ]
        )


class _ToyEncoder:
    """Words as a toy writes them are its tokens; any other word is one of them, the same each time."""

    def __init__(self, size: int) -> None:
        self._size = size

    def encode(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        if tools:
            raise Refused("a toy has no tools")
        return [self._token(word) for one in messages for word in f"{one['role']} {one.get('content') or ''}".split()]

    def tokens(self, text: str) -> list[int]:
        return [self._token(word) for word in text.split()]

    def _token(self, word: str) -> int:
        number = int(word[1:]) if word[:1] == "w" and word[1:].isdigit() else 0
        return number if 0 < number < self._size else 1 + zlib.crc32(word.encode()) % (self._size - 1)


class _Template:
    """The template that came with the weights, in a sandbox: it is data from outside."""

    def __init__(self, engine: Mapping[str, Any]) -> None:
        import gguf
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        fields = gguf.GGUFReader(engine["weights"]).fields
        source = fields["tokenizer.chat_template"].contents() if "tokenizer.chat_template" in fields else ""
        if not source:
            raise ValueError(f"{Path(engine['weights']).name} has no chat template")
        names = fields["tokenizer.ggml.tokens"].contents()
        self._specials = {
            name: names[int(fields[f"tokenizer.ggml.{name}_id"].contents())]
            for name in ("bos_token", "eos_token")
            if f"tokenizer.ggml.{name}_id" in fields
        }
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)
        self._knows_tools = "tools" in source
        self._tokenizer = Tokenizer.from_file(engine["tokenizer"])

    def encode(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        import jinja2

        if tools and not self._knows_tools:
            raise Refused("this model's chat template has no tools: leave them out, or serve a model that has them")
        extra = {"tools": list(tools)} if tools else {}
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._specials, **extra)
        except jinja2.TemplateError as error:
            raise Refused(f"the model's chat template does not take this conversation: {error}") from error
        return self.tokens(text)

    def tokens(self, text: str) -> list[int]:
        return [int(one) for one in self._tokenizer.encode(text, add_special_tokens=False).ids]


def _refuse(message: str) -> None:
    raise Refused(f"the model's chat template: {message}")
