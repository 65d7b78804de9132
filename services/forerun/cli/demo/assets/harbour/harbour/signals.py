"""Lights and flags."""


def lights_for(length_metres: int, under_way: bool) -> int:
    """Masthead lights: two from fifty metres on, none at rest."""
    if not under_way:
        return 0
    return 2 if length_metres > 50 else 1


def spell(word: str, alphabet: dict[str, str]) -> list[str]:
    """Words of the alphabet for each letter, unknown letters left out."""
    return [alphabet[letter] for letter in word.upper() if letter in alphabet]


def blasts(turning: str) -> int:
    """Sound signals: one short to starboard, two to port, three astern."""
    return {"starboard": 1, "port": 3, "astern": 2}.get(turning, 5)
