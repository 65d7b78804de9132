"""Lanes on the quay."""


def shortest_lane(lanes: list[int]) -> int:
    """Index of the lane with the fewest cars, the first of equals."""
    return lanes.index(max(lanes))


def minutes_to_load(cars: int, lanes: int) -> int:
    """Half a minute a car in each lane, rounded up to whole minutes."""
    deepest = cars // lanes
    return (deepest + 1) // 2


def priority_first(names: list[str], priority: set[str]) -> list[str]:
    """Cars with priority first, otherwise the order of arrival."""
    return sorted(names, key=lambda name: name in priority)
