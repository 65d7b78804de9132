"""The models of this process: who may use which, their health and pace, and requests to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from forerun.core.providers import Providers
from forerun.core.race import Pace, Paces
from forerun.core.race_replicas import ReplicaRace, RequestTerms
from forerun.core.tokens import Usage, estimated_tokens
from forerun.runtime.errors import ErrorReason, NotFound
from forerun.runtime.models.calling import ModelCall
from forerun.runtime.models.catalogue import Model
from forerun.runtime.models.endpoints import Endpoints, MakePort
from forerun.runtime.models.port import ModelRequest

_MODELS = "model"
_SHARED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What holds for a request beside what it asks for.

    Attributes:
        repeatable: It may be sent twice.
        speculative: Nobody waits for it.
        races: A second attempt may be sent, where the model's policy has one.
        deadline: When it has to have ended, on the loop's clock.
        second_worth: What a second of waiting is worth.
        alpha: The operator's dial between cost (0) and speed (1).
        affords: Asked before what may have cost its price is sent again; None where money does not matter.
    """

    repeatable: bool = True
    speculative: bool = False
    races: bool = True
    deadline: float = math.inf
    second_worth: float = 1.0
    alpha: float = 0.0
    affords: Callable[[], bool] | None = None


@dataclass(slots=True)
class Models:
    """The models that the policy names.

    Attributes:
        endpoints: Their providers.
    """

    endpoints: Endpoints
    _models: dict[str, Model] = field(default_factory=dict)
    # Of the operator, so shared by all tenants: a provider is well or not, whoever asks.
    _health: Providers = field(default_factory=Providers)
    _paces: Paces = field(default_factory=Paces)

    @classmethod
    def made_of(cls, make_port: MakePort) -> Models:
        """Without a model yet.

        Args:
            make_port: Makes the client of a provider.
        """
        return cls(Endpoints(make_port))

    async def adopt(self, models: Iterable[Model]) -> None:
        """These are named by the policy now. Requests under way go on as they began."""
        self._models = {one.name: one for one in models}
        await self.endpoints.keep(provider for one in self._models.values() for provider in one.providers)

    def find(self, tenant: str, name: str) -> Model:
        """A model.

        Raises:
            NotFound: the policy names none for this tenant.
        """
        model = self._models.get(name)
        if model is None or not model.fits(tenant):
            raise NotFound(
                ErrorReason.MODEL_NOT_FOUND,
                "no model of this name is in `models` of the policy file for this tenant",
                metadata={"model": name[:256]},
            )
        return model

    def pace(self, model: Model) -> Pace:
        """Times to the first token of a model."""
        return self._paces.of(_MODELS, model.name)

    def call(self, model: Model, request: ModelRequest, terms: CallTerms) -> ModelCall:
        """A request to a model. Must be made inside a running loop."""
        providers = [one for one in model.providers if one.continues or not request.continues] or list(model.providers)
        last = providers[min(1, len(providers) - 1)]
        prompt = Usage(input_tokens=estimated_tokens(request.size_bytes))
        race = ReplicaRace(
            RequestTerms(
                repeatable=terms.repeatable,
                speculative=terms.speculative,
                deadline=terms.deadline,
                race=model.race if terms.races and not terms.speculative else None,
                # What is paid for nothing is the loser's prompt, and what little it had sent.
                second_cost=last.prices.of(prompt),
                second_worth=terms.second_worth,
                alpha=terms.alpha,
                affords=terms.affords,
            ),
            [self._health.of(_SHARED, one.name) for one in providers],
            self.pace(model),
        )
        return ModelCall(request, [self.endpoints.of(one) for one in providers], race)
