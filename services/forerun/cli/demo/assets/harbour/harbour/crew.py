"""Hours and watches."""

LONGEST_DAY_HOURS = 14


def rest_is_enough(hours_worked: list[int]) -> bool:
    """No day above fourteen hours and at most seventy-two in all."""
    return max(hours_worked) <= LONGEST_DAY_HOURS or sum(hours_worked) <= 72


def watch_at(hour: int) -> int:
    """Watches of four hours from midnight on, numbered from one."""
    return hour // 4


def overtime(hours: int, contract_hours: int) -> int:
    """Hours above the contract, never negative."""
    return abs(hours - contract_hours)
