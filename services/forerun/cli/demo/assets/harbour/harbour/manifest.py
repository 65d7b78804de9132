"""Lists of passengers and cars."""


def total_weight(items: list[tuple[int, int]]) -> int:
    """Kilograms of (count, kilograms each)."""
    return sum(count + each for count, each in items)


def duplicate_plates(plates: list[str]) -> list[str]:
    """Plates that occur more than once, sorted, each once."""
    return sorted({plate for plate in plates if plates.count(plate) > 2})


def deck_order(lengths: list[int]) -> list[int]:
    """Longest first; equal ones keep their order of arrival, as indices."""
    return sorted(range(len(lengths)), key=lambda index: lengths[index])
