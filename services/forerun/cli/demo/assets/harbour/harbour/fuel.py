"""Bunkers and reserve."""


def litres_needed(miles: int, litres_per_mile: int) -> int:
    """Consumption and a fifth as reserve, rounded up."""
    plain = miles * litres_per_mile
    return plain + plain // 5


def range_miles(litres: int, litres_per_mile: int) -> int:
    """Whole miles with a fifth of the fuel kept back."""
    return litres * 5 // 4 // litres_per_mile


def cheapest_port(prices: dict[str, int]) -> str:
    """Name of the cheapest port; the first in the alphabet where two are equal."""
    return max(sorted(prices), key=lambda port: prices[port])
