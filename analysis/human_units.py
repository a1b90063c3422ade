"""Durations, sizes and shares as people read them; the exact numbers stay with the caller."""

from __future__ import annotations

import math

BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

# (unit, seconds in it, the longest range in seconds for which it is chosen)
TIME_UNITS = (
    ("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, 96 * 3600.0),
    ("d", 86400.0, math.inf),
)  # fmt: skip


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit for an axis that goes up to so many simulated seconds, and the seconds in it."""
    return next((unit, unit_s) for unit, unit_s, up_to_s in TIME_UNITS if longest_s <= up_to_s)


def byte_unit(most_bytes: float) -> tuple[str, float]:
    """The unit for an axis that goes up to so many bytes, and the bytes in it."""
    power = 0
    while most_bytes >= 1000 ** (power + 1) and power + 1 < len(BYTE_UNITS):
        power += 1
    return BYTE_UNITS[power], 1000.0**power


def duration_text(duration_s: float) -> str:
    """``"3 h 12 min"``: a non-negative duration in seconds, rounded to two units.

    Days begin after four of them, because results in this field are compared in hours.
    """
    if duration_s < 59.5:
        return f"{duration_s:.3g} s"
    # Each unit is rounded before its branch is chosen, so that 59 min 59.8 s becomes 1 h.
    seconds, minutes, hours = (round(duration_s / unit_s) for unit_s in (1, 60, 3600))
    if seconds < 3600:
        return _two_units(seconds, 60, "min", "s")
    if minutes < 96 * 60:
        return _two_units(minutes, 60, "h", "min")
    return _two_units(hours, 24, "d", "h")


def bytes_text(size_bytes: float) -> str:
    """``"41.3 MB"``: three significant digits, decimal units (1 MB is 10^6 bytes)."""
    scaled = float(size_bytes)
    for unit in BYTE_UNITS:
        # 999.5 would print as 1e+03 with three digits.
        if scaled < 999.5 or unit == BYTE_UNITS[-1]:
            break
        scaled /= 1000
    return f"{scaled:.0f} {unit}" if scaled >= 999.5 else f"{scaled:.3g} {unit}"


def count_text(count: float) -> str:
    """``"1,250"``: a whole number; a mean of several with a digit more."""
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def percent_text(share: float, digits: int = 1) -> str:
    """``"81.2 %"`` for a share of 0.812."""
    return f"{100 * share:.{digits}f} %"


def target_text(target: float) -> str:
    """``"80 %"`` for a target of 0.8, with no more digits than it has (up to four)."""
    return f"{100 * target:.4g} %"


def _two_units(count: int, per_large: int, large: str, small: str) -> str:
    whole, rest = divmod(count, per_large)
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"
