"""The models of a policy file, and what it allows of candidates, for `forerun policy check`. No secret is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Column, Table

from forerun.core.answers import AnswerPolicy
from forerun.runtime.models.catalogue import Model, Provider


def answers_as_json(answers: AnswerPolicy) -> dict[str, object]:
    """What a policy allows of candidates; no limit is null."""
    return asdict(answers) | {"max_cost": None if math.isinf(answers.max_cost) else answers.max_cost}


def candidates_in_words(answers: AnswerPolicy) -> str:
    """The same for people."""
    if not answers.on:
        return "off"
    cap = "without a cap of its own" if math.isinf(answers.max_cost) else f"for {answers.max_cost:g} at most"
    return f"up to {answers.max_candidates}, {cap}, a better answer is worth {answers.worth:g}"


def models_as_json(models: Sequence[Model]) -> list[dict[str, object]]:
    """The models with every default written out; secrets by their names."""
    return [
        {
            "name": model.name,
            "tenants": sorted(model.tenants),
            "race": None if model.race is None else asdict(model.race),
            "providers": [_provider(one) for one in model.providers],
        }
        for model in models
    ]


def _provider(provider: Provider) -> dict[str, object]:
    return {
        "name": provider.name,
        "url": provider.url,
        "model": provider.model,
        "secret": provider.secret,
        "headers": dict(provider.headers),
        "input_price": provider.prices.input_per_million,
        "output_price": provider.prices.output_per_million,
        "first_token_seconds": provider.deadlines.first_token,
        "between_tokens_seconds": provider.deadlines.between_tokens,
        "timeout_seconds": provider.deadlines.total,
        "max_output_tokens": provider.max_output_tokens,
        "max_response_bytes": provider.max_response_bytes,
        "concurrency": provider.concurrency,
        "continues": provider.continues,
    }


def show_models(models: Sequence[Model], console: Console) -> None:
    """Prints the models as a table, one line for each provider."""
    if not models:
        return
    table = Table(
        *(Column(name, no_wrap=True) for name in ("model", "provider", "address", "known as", "secret")),
        *("price in/out", "first/next/all", "tokens", "at once", "also"),
        box=None,
        pad_edge=False,
    )
    for model in models:
        for number, provider in enumerate(model.providers):
            prices, deadlines = provider.prices, provider.deadlines
            table.add_row(
                "" if number else model.name,
                provider.name,
                provider.url,
                provider.model,
                provider.secret or "none",
                f"{prices.input_per_million:g}/{prices.output_per_million:g}",
                f"{deadlines.first_token:g}/{deadlines.between_tokens:g}/{deadlines.total:g} s",
                str(provider.max_output_tokens),
                str(provider.concurrency),
                ", ".join(_also(model, provider, number)),
            )
    console.print("models; prices for a million tokens", markup=False)
    console.print(table)


def _also(model: Model, provider: Provider, number: int) -> list[str]:
    found = []
    if number == 0 and model.race is not None:
        found.append(f"second attempts, at most {model.race.most_extra:.0%} of the requests")
        if len(model.providers) == 1:
            found.append("never, with one provider")
    if number == 0 and model.tenants:
        found.append("for " + ", ".join(sorted(model.tenants)))
    if provider.continues:
        found.append("continues")
    return found
