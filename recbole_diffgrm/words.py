"""Numbers in messages, as people write them."""


def count(number: int, noun: str, plural: str = "") -> str:
    """1 user, 1,000 users; `plural` where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """40 s, 12 min, 3.5 h"""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
