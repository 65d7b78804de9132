"""The Triton model that clients ask: it couples target and draft through the server, and streams what they give.

One process serves all texts: threads that take turns decode them, and an event loop tells their clients, beside the
passes. A request's options and events are JSON, its prompt token ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.core.tokens.ceiling import CeilingSource
from forerun.core.tokens.depth import DepthController, StepTable
from forerun.core.tokens.evidence import EvidenceWeights
from forerun.core.tokens.recall import RecallDrafter
from forerun.core.tokens.stopping import Answer, Finish
from forerun.serving.backend import metering
from forerun.serving.backend.admission import Admission, Left
from forerun.serving.backend.coupling import PassFailed, ServedDraft, ServedTarget, text_of
from forerun.serving.backend.deciding import ModelOptions
from forerun.serving.backend.drafts import MODEL, RECALL, Depth, Drafts, ModelDrafter
from forerun.serving.backend.loop import ROWS, Loop, Step
from forerun.serving.backend.metering import Family, Meter, Sample
from forerun.serving.backend.options import Options, read_options
from forerun.serving.backend.orders import Bounds, Orders, known_erasures
from forerun.serving.backend.remembering import Erased, Memory
from forerun.serving.backend.sequences import Refused
from forerun.serving.backend.table import TableFile
from forerun.serving.backend.turns import Turns
from forerun.serving.backend.vocabulary import Vocabulary, compare, from_tokenizer, of_toy, token_bytes, toy_bytes


class TritonPythonModel:
    """What the Python backend starts."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Reads the settings and compares the vocabularies of target and draft.

        Raises:
            ValueError: They cannot be coupled; the message names the first differences.
        """
        self._settings = json.loads(json.loads(args["model_config"])["parameters"]["settings"]["string_value"])
        vocabulary = _vocabulary("target", self._settings["target"])
        if self._settings["draft"] is not None:
            _check_same(vocabulary, _vocabulary("draft", self._settings["draft"]))
        toy = "toy" in self._settings["target"]
        self._bytes = toy_bytes(vocabulary.real) if toy else token_bytes(vocabulary)
        self._real = vocabulary.real
        self._ends = frozenset(vocabulary.special[one] for one in self._settings["ends"] if one in vocabulary.special)
        self._model = hashlib.sha256(json.dumps(list(vocabulary.tokens)).encode()).hexdigest()
        self._weights = EvidenceWeights()
        folder, orders = (
            None if self._settings[name] is None else Path(self._settings[name])
            for name in ("history_folder", "orders")
        )
        self._memory = Memory(
            self._model,
            tokens_each=self._settings["history_tokens"],
            most=self._settings["histories"],
            most_of_tenant=self._settings["tenant_histories"],
            folder=folder,
            erasures=known_erasures(orders),
        )
        self._depth = Depth(DepthController(StepTable({}), self._settings["max_depth"]))
        self._table = TableFile(self._settings["table"], self._depth.controller)
        self._sequences = itertools.count(1)
        self._running_on: asyncio.AbstractEventLoop | None = None
        self._turns = Turns(self._settings["slots"])
        self._meter = Meter(
            _sample,
            {
                metering.PROPOSED: [*self._settings["drafters"], "other"],
                metering.ACCEPTED: [*self._settings["drafters"], "other"],
                metering.PASSES: [str(depth) for depth in range(self._settings["max_depth"] + 1)],
                metering.REQUESTS: metering.ENDS,
                metering.CEILING_SOURCE: [source.value for source in CeilingSource],
            },
            time.monotonic,
        )
        self._orders = Orders(orders, time.monotonic, bounded=self._show_bounds, erased=self._memory.hear)
        self._show_bounds(self._orders.bounds)
        self._admission = Admission(self._settings["slots"], self._settings["queued"], self._changed)

    async def execute(self, requests: Sequence[Any]) -> None:
        """Serves requests; returns when all of them have ended."""
        self._running_on = asyncio.get_running_loop()
        await asyncio.gather(*(self._serve(one) for one in requests))

    def finalize(self) -> None:
        """Saves histories, and lets the event loop end, which the server's own way of stopping it does not wake."""
        with self._turns:
            self._orders.look(at_once=True)  # what was erased is not written again
            self._memory.save()
        if self._running_on is not None:
            self._running_on.call_soon_threadsafe(self._running_on.stop)
        self._turns.end()

    async def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        end = "failed"
        try:
            end = await self._answer(request, sender)
        except Refused as refused:
            end = "refused"
            _fail(sender, f"refused: {refused}")
        except PassFailed as failed:
            _fail(sender, str(failed))
        except Left:
            end = "cancelled"
        finally:
            self._meter.add(metering.REQUESTS, label=end)
            self._meter.flush()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        await self._memory.tend(self._turns)  # after the answer's end, which clients wait for

    async def _answer(self, request: Any, sender: Any) -> str:
        prompt = [int(one) for one in pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)]
        options = read_options(
            text_of(pb_utils.get_input_tensor_by_name(request, "OPTIONS")),
            ends=self._ends,
            most_tokens=self._settings["max_output_tokens"],
        )
        with self._turns:
            self._orders.look(at_once=True)
            erased = self._erase(options) if options.erase else None
        if erased is not None:
            sender.send(_response({"erased": asdict(erased)}))
            return Finish.STOP.value
        self._check(prompt, options)
        await self._admission.enter(sender.is_cancelled)
        spoken: list[int] = []
        era = self._memory.era(options.tenant)
        try:
            with self._turns:
                loop = self._loop(prompt, options)
            async with aclosing(self._turns.steps(loop.run(prompt))) as steps:
                async for step in steps:
                    if sender.is_cancelled():
                        return "cancelled"
                    sender.send(self._event(step, loop, len(prompt)))
                    spoken += step.tokens
                    if step.finish is not None:
                        return step.finish.value
        finally:
            self._admission.leave()
            if options.history:
                with self._turns:
                    self._memory.append(options.tenant, options.agent, prompt, spoken, era)
        return "failed"

    def _erase(self, options: Options) -> Erased:
        try:
            return self._memory.erase(options.tenant, options.erasure)
        except OSError as error:
            raise PassFailed(f"files of the tenant are still there: {error}") from error

    def _check(self, prompt: list[int], options: Options) -> None:
        if not prompt:
            raise Refused("the prompt is empty")
        if len(prompt) >= self._settings["context_tokens"] - ROWS:
            raise Refused(f"a prompt of {len(prompt)} tokens leaves no room in {self._settings['context_tokens']}")
        given = itertools.chain(prompt, *options.expected)  # drafts go into a pass with those of other texts
        strange = next((one for one in given if not 0 <= one < self._real), None)
        if strange is not None:
            raise Refused(f"the model has no token {strange}; it has {self._real}")

    def _loop(self, prompt: list[int], options: Options) -> Loop:
        settings, sequence = self._settings, next(self._sequences)
        seed = options.sampling.seed
        passed_on = ModelOptions(
            options.sampling,
            secrets.randbits(63) if seed is None else seed,
            options.coupled,
            options.logprobs,
            options.calls,
            options.call,
            tuple(sorted(self._ends)) if options.calls else (),
        ).text()
        wanted = set(settings["drafters"]) if options.drafters is None else options.drafters & set(settings["drafters"])
        with_model = MODEL in wanted and settings["draft"] is not None and options.speculate
        model = (
            ModelDrafter(ServedDraft(settings["draft_model"], sequence, passed_on, self._turns.away))
            if with_model
            else None
        )
        self._table.look()
        recall = self._recall(options) if RECALL in wanted else None
        return Loop(
            ServedTarget(settings["target_model"], sequence, passed_on, self._turns.away),
            Drafts(recall, model, self._depth, options.depth, self._branches(options)),
            Answer(options.stop, self._bytes.__getitem__),
            options.speculate,
            lambda: self._admission.live,
            settings["context_tokens"] - ROWS,
            lambda: self._most(options),
        )

    def _most(self, options: Options) -> int:
        """Tokens drafted for the next pass of a text, at most."""
        most = int(self._settings["max_depth"])
        return self._orders.look().most(options.tenant, most if options.cap is None else min(most, options.cap))

    def _show_bounds(self, bounds: Bounds) -> None:
        self._meter.set(metering.CEILING, bounds.most("", self._settings["max_depth"]))
        for source in CeilingSource:
            self._meter.set(metering.CEILING_SOURCE, source is bounds.ceiling.source, source.value)

    def _branches(self, options: Options) -> int:
        most = int(self._settings["branches"])
        return most if options.branches is None else max(1, min(most, options.branches))

    def _recall(self, options: Options) -> RecallDrafter:
        histories = self._memory.of(options.tenant, options.agent) if options.history else []
        drafter = RecallDrafter(self._weights, histories, limit=self._settings["context_tokens"])
        if options.expected:
            drafter.expect(options.expected)
        return drafter

    def _event(self, step: Step, loop: Loop, prompt: int) -> Any:
        event: dict[str, Any] = {"tokens": list(step.tokens), "text": step.text, "seconds": step.seconds}
        if step.logprobs is not None:
            event["logprobs"] = list(step.logprobs)
        self._meter.add(metering.TOKENS, len(step.tokens))
        self._meter.add(metering.PASSES, label=str(step.drafted))
        self._meter.add(metering.PASS_SECONDS, step.seconds)
        self._meter.add(metering.PROPOSED, step.drafted, step.drafter)
        self._meter.add(metering.ACCEPTED, step.accepted, step.drafter)
        if step.finish is not None:
            counts = loop.counts
            event["finish"] = step.finish.value
            event["usage"] = {
                "prompt": prompt,
                "generated": counts.tokens,
                "passes": counts.passes,
                "proposed": counts.proposed,
                "accepted": counts.accepted,
                "seconds": counts.seconds,
            }
        return _response(event)

    def _changed(self, live: int, waiting: int) -> None:
        self._meter.set(metering.SLOTS, live)
        self._meter.set(metering.QUEUE, waiting)


def _response(event: Mapping[str, Any]) -> Any:
    text = np.array([json.dumps(event)], dtype=np.object_)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("EVENT", text)])


def _fail(sender: Any, message: str) -> None:
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message)))


def _vocabulary(name: str, settings: Mapping[str, Any]) -> Vocabulary:
    if "toy" in settings:
        return of_toy(name, settings["toy"])
    return from_tokenizer(name, Path(settings["tokenizer"]))


def _check_same(target: Vocabulary, draft: Vocabulary) -> None:
    found = compare(target, draft)
    if not found.same:
        shown = "; ".join(found.differences)
        raise ValueError(f"target and draft differ in {found.count} tokens: {shown}")


def _sample(family: Family, labels: Mapping[str, str]) -> Sample:
    kind = pb_utils.MetricFamily.GAUGE if family.gauge else pb_utils.MetricFamily.COUNTER
    made = _FAMILIES.get(family)
    if made is None:
        made = _FAMILIES[family] = pb_utils.MetricFamily(name=family.name, description=family.help, kind=kind)
    sample: Sample = made.Metric(labels=dict(labels))
    return sample


_FAMILIES: dict[Family, Any] = {}
"""The server keeps a family as long as this process refers to it."""
