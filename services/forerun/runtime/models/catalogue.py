"""Models of a policy file: from the contract's message to what requests use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from forerun.core import limits
from forerun.core.race import Race, race_problems
from forerun.core.tokens import TokenPrices
from forerun.runtime.models.port import Deadlines
from forerun.v1 import policy_pb2

SERVED_SCHEME: Final = "kserve"
"""Of addresses of models that are served here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One replica of a model.

    Attributes:
        name: Unique among all providers.
        url: Address without `/chat/completions`.
        model: The name by which it knows the model.
        secret: Name of the secret for its bearer token; empty for none.
        headers: Further headers, with `secret:NAME` for secrets.
        prices: What it asks for.
        deadlines: How long a request may take.
        max_output_tokens: Generated tokens of one request, at most.
        max_response_bytes: Bytes of one response, at most.
        concurrency: Requests at once.
        continues: It goes on with an assistant's message that is the last one.
    """

    name: str
    url: str
    model: str
    secret: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    prices: TokenPrices = field(default_factory=TokenPrices)
    deadlines: Deadlines = field(default_factory=Deadlines)
    max_output_tokens: int = limits.MODEL_OUTPUT_TOKENS
    max_response_bytes: int = limits.MODEL_RESPONSE_BYTES
    concurrency: int = limits.MODEL_REQUESTS
    continues: bool = False

    def most_output(self, asked: int | None) -> int:
        """Generated tokens of a request that asks for so many at most; None where it does not say."""
        return min(self.max_output_tokens, asked or self.max_output_tokens)


@dataclass(frozen=True, slots=True)
class Model:
    """A model, by the name that agents ask for.

    Attributes:
        name: Its name.
        providers: Its replicas, in the order of preference.
        race: When a second attempt is worth it; None never races.
        tenants: Who may use it; empty: all.
    """

    name: str
    providers: tuple[Provider, ...]
    race: Race | None = None
    tenants: frozenset[str] = field(default_factory=frozenset)

    def fits(self, tenant: str) -> bool:
        """This tenant may use it."""
        return not self.tenants or tenant in self.tenants


def models_of(messages: Iterable[policy_pb2.Model]) -> tuple[tuple[Model, ...], list[str]]:
    """The models that messages mean, and everything that makes them unusable."""
    models: list[Model] = []
    problems: list[str] = []
    for message in messages:
        where = f"model {message.name!r}"
        model = _model(message)
        if not message.name or len(message.name) > limits.NAME_CHARS:
            problems.append(f"{where}: needs a name of at most {limits.NAME_CHARS} characters")
        if any(one.name == model.name for one in models):
            problems.append(f"{where}: named twice")
        if not model.providers or len(model.providers) > limits.MODEL_REPLICAS:
            problems.append(f"{where}: needs 1 to {limits.MODEL_REPLICAS} providers")
        if model.race is not None:
            problems += [f"{where}: {one}" for one in race_problems(model.race)]
        known = [one.name for other in models for one in other.providers]
        for number, provider in enumerate(model.providers):
            at = f"{where}, provider {provider.name!r}"
            if provider.name in known or provider.name in [one.name for one in model.providers[:number]]:
                problems.append(f"{at}: named twice")
            problems += [f"{at}: {one}" for one in _problems(provider)]
        models.append(model)
    return tuple(models), problems


def race_of(message: policy_pb2.Race) -> Race:
    """When a second attempt starts, of a tool or of a model."""
    usual = Race()
    return Race(
        after_quantile=message.after_quantile if message.HasField("after_quantile") else usual.after_quantile,
        most_extra=message.most_extra if message.HasField("most_extra") else usual.most_extra,
    )


def _model(message: policy_pb2.Model) -> Model:
    race = race_of(message.race) if message.HasField("race") else None
    return Model(
        message.name,
        tuple(_provider(one, message.name) for one in message.providers),
        race,
        frozenset(message.tenants),
    )


def _provider(message: policy_pb2.ModelProvider, model: str) -> Provider:
    usual = Deadlines()
    bounds = Provider(name="", url="", model="")

    def chosen(name: str, default: float) -> float:
        return float(getattr(message, name)) if message.HasField(name) else default  # type: ignore[arg-type]

    return Provider(
        name=message.name,
        url=message.url.rstrip("/"),
        model=message.model or model,
        secret=message.secret,
        headers=tuple(sorted(message.headers.items())),
        prices=TokenPrices(message.input_price, message.output_price),
        deadlines=Deadlines(
            first_token=chosen("first_token_seconds", usual.first_token),
            between_tokens=chosen("between_tokens_seconds", usual.between_tokens),
            total=chosen("timeout_seconds", usual.total),
        ),
        max_output_tokens=int(chosen("max_output_tokens", bounds.max_output_tokens)),
        max_response_bytes=int(chosen("max_response_bytes", bounds.max_response_bytes)),
        concurrency=int(chosen("concurrency", bounds.concurrency)),
        continues=message.continues,
    )


def _problems(provider: Provider) -> list[str]:
    found: list[str] = []
    if not provider.name or len(provider.name) > limits.NAME_CHARS:
        found.append(f"needs a name of at most {limits.NAME_CHARS} characters")
    if (problem := _address_problem(provider.url)) is not None:
        found.append(problem)
    for name, value in (
        ("first_token_seconds", provider.deadlines.first_token),
        ("between_tokens_seconds", provider.deadlines.between_tokens),
        ("timeout_seconds", provider.deadlines.total),
    ):
        if not 0.0 < value <= limits.DEADLINE_MAX_SECONDS:
            found.append(f"{name}: must be above 0 and at most {limits.DEADLINE_MAX_SECONDS:g}")
    for name, price in (
        ("input_price", provider.prices.input_per_million),
        ("output_price", provider.prices.output_per_million),
    ):
        if not 0.0 <= price < float("inf"):
            found.append(f"{name}: must be a finite number that is not negative")
    for name, count, most in (
        ("max_output_tokens", provider.max_output_tokens, limits.MODEL_OUTPUT_TOKENS_MAX),
        ("max_response_bytes", provider.max_response_bytes, limits.RESULT_BYTES),
        ("concurrency", provider.concurrency, limits.MODEL_REQUESTS_MAX),
    ):
        if not 1 <= count <= most:
            found.append(f"{name}: must be 1 to {most}")
    return found


def _address_problem(url: str) -> str | None:
    try:
        address = urlsplit(url)
        if address.scheme == SERVED_SCHEME:
            whole = address.hostname and address.port and not (address.path or address.query or address.username)
            return None if whole else "url: kserve:// needs a host and a port, and nothing else"
        if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
            return "url: must be http:// or https:// with a host, without a query, or kserve://host:port"
        return "url: must not hold a password; use secret" if address.username or address.password else None
    except ValueError:
        return "url: is no address"
