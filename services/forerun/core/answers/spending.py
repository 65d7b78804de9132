"""The money of one search: reserved before, settled with the real cost after. Never above its cap."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.core.answers.model import Limit, Price, Worth


@dataclass(slots=True)
class Spending:
    """What was spent, and what may still be.

    What costs more than was reserved for it is booked, and blocks what comes after it.

    Attributes:
        cap: Money for all of it.
        worth: Whether further candidates pay.
        spent: Money that is gone.
        limited_by: Why something was not started.
    """

    cap: float
    worth: Worth
    spent: float = 0.0
    limited_by: Limit = Limit.NONE
    _reserved: dict[tuple[str, int], float] = field(default_factory=dict)
    _costs: dict[int, float] = field(default_factory=dict)

    @property
    def committed(self) -> float:
        """Spent and reserved."""
        return self.spent + sum(self._reserved.values())

    def cost(self, candidate: int) -> float:
        """What a candidate has cost so far."""
        return self._costs.get(candidate, 0.0)

    def reserve(self, what: str, candidate: int, price: Price, *, beside: float = 0.0) -> bool:
        """Takes what something may cost at most; False where the cap does not allow it.

        What is done again costs its price again, beside what was reserved for it already.

        Args:
            what: One reservation of a candidate.
            candidate: For whom.
            price: Its price.
            beside: Money that has to be left over.
        """
        if self.committed + price.most + beside > self.cap:
            self.limited_by = Limit.PRICE
            return False
        self._reserved[what, candidate] = self._reserved.get((what, candidate), 0.0) + price.most
        return True

    def pays(self, price: float) -> bool:
        """A further candidate of this price is worth it."""
        if self.worth.admits(price):
            return True
        self.limited_by = Limit.WORTH
        return False

    def settle(self, what: str, candidate: int, money: float) -> None:
        """Books what it has really cost."""
        self._reserved.pop((what, candidate), None)
        self.spent += money
        self._costs[candidate] = self._costs.get(candidate, 0.0) + money
