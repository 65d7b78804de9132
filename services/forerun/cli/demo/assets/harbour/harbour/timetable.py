"""Departures and delays."""


def clock(minutes: int) -> str:
    """Minutes since midnight as HH:MM, over midnight too."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def missed_connections(arrival: int, departures: list[int], change: int) -> int:
    """How many departures leave before the change is done."""
    return sum(1 for departure in departures if departure <= arrival + change)


def mean_delay(delays: list[int]) -> int:
    """Mean of the late ones in whole minutes; early ones count as none late."""
    late = [delay for delay in delays if delay > 0]
    return sum(late) // len(delays) if late else 0
