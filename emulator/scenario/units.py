"""Quantities with units, as a scenario writes them; inside there are seconds, bytes, bytes/s.

A quantity is a bare number (in the base unit) or a string of a number and one unit, ``"45 min"``.
The arithmetic is exact (rationals), and the result is rounded once: ``"55 ms"`` is the float
nearest to 0.055, and 1 Mbps is 125,000 bytes per second. Unit spellings are exact, since ``MB``
and ``Mb`` differ by a factor of eight; a near miss gets a hint.

The annotated types (:data:`Seconds`, :data:`PositiveBytes`, …) are for fields of pydantic models.
A value that they accept is the same in strict and lax mode; their JSON schema is number | string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, WithJsonSchema

from emulator.errors import nearest

__all__ = [
    "Bytes",
    "BytesPerSecond",
    "NonNegativeBytes",
    "NonNegativeRate",
    "NonNegativeSeconds",
    "PositiveBytes",
    "PositiveRate",
    "PositiveSeconds",
    "Seconds",
    "parse_bytes",
    "parse_rate",
    "parse_seconds",
]

_Number = TypeVar("_Number", int, float)

_UNSIGNED: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_QUANTITY: Final = re.compile(rf"\s*([-+]?{_UNSIGNED})\s*(.*?)\s*", re.ASCII)
_LONGEST_TEXT: Final = 80
# Sizes beyond this are mistakes, and would no longer be exact as 64-bit integers in a table.
_MOST_BYTES: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Dimension:
    """What a quantity measures: its units by spelling, in base units, and what people write."""

    noun: str
    bare: str
    example: str
    units: Mapping[str, Fraction]
    misspellings: Mapping[str, str]

    @property
    def allowed(self) -> str:
        return (
            f"allowed: {self.bare}, or a string such as '{self.example}' "
            f"with one of the units {', '.join(self.units)}"
        )


def _scaled(
    suffix: str, per_unit: Fraction, kilo: int, prefixes: tuple[str, ...]
) -> dict[str, Fraction]:
    return {prefix + suffix: per_unit * kilo**n for n, prefix in enumerate(prefixes)}


_DECIMAL: Final = ("", "k", "M", "G", "T")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti")
_ONE: Final = Fraction(1)
_BITS: Final = ("b/s", "bit/s", "bits/s", "bit", "bits")

_TIME: Final = _Dimension(
    noun="duration",
    bare="a number of seconds",
    example="45 min",
    units={
        "us": Fraction(1, 10**6),
        "ms": Fraction(1, 10**3),
        "s": _ONE,
        "min": Fraction(60),
        "h": Fraction(3600),
        "d": Fraction(86400),
    },
    misspellings={
        **dict.fromkeys(("µs", "μs", "usec", "microsecond", "microseconds"), "us"),
        **dict.fromkeys(("msec", "millisecond", "milliseconds"), "ms"),
        **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
        **dict.fromkeys(("m", "mins", "minute", "minutes"), "min"),
        **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
        **dict.fromkeys(("day", "days"), "d"),
    },
)
_SIZE: Final = _Dimension(
    noun="size",
    bare="a whole number of bytes",
    example="3 MiB",
    units=_scaled("B", _ONE, 1000, _DECIMAL) | _scaled("B", _ONE, 1024, _BINARY),
    misspellings=dict.fromkeys(("byte", "bytes"), "B"),
)
_RATE: Final = _Dimension(
    noun="rate",
    bare="a number of bytes per second",
    example="20 Mbps",
    units=_scaled("bps", Fraction(1, 8), 1000, _DECIMAL)
    | _scaled("B/s", _ONE, 1000, _DECIMAL)
    | _scaled("B/s", _ONE, 1024, _BINARY),
    misspellings={
        **{f"{p}Bps": f"{p}B/s' or '{p}bps" for p in _DECIMAL},
        **{f"{p}{suffix}": f"{p}bps" for p in _DECIMAL for suffix in _BITS},
        **{f"{p}B": f"{p}B/s" for p in _DECIMAL + _BINARY},
    },
)


def parse_seconds(value: object) -> float:
    """Seconds from a finite number or a string with a unit, such as ``"45 min"``; any sign.

    Raises ValueError with the value, the allowed units and the nearest spelling.
    """
    return _as_float(value, _TIME)


def parse_bytes(value: object) -> int:
    """Whole bytes from a whole number or a string with a unit, such as ``"3 MiB"``; any sign.

    Raises ValueError with the value, the allowed units and the nearest spelling; a fraction of
    a byte (``"1.0001 kB"``) is refused, never rounded.
    """
    amount = _exact(value, _SIZE)
    if amount.denominator != 1:
        raise ValueError(
            f"{_shown(value)} is not a whole number of bytes ({float(amount)!r}); {_SIZE.allowed}"
        )
    if abs(amount.numerator) > _MOST_BYTES:
        raise ValueError(f"{_shown(value)} is too large for a size; at most {_MOST_BYTES} bytes")
    return amount.numerator


def parse_rate(value: object) -> float:
    """Bytes per second from a finite number or a string, such as ``"20 Mbps"``; any sign.

    Raises ValueError with the value, the allowed units and the nearest spelling.
    """
    return _as_float(value, _RATE)


def _exact(value: object, dimension: _Dimension) -> Fraction:
    """The quantity in base units, unrounded."""
    if isinstance(value, str):
        return _from_text(value, dimension)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is not a {dimension.noun}; {dimension.allowed}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{_shown(value)} is not a finite {dimension.noun}; {dimension.allowed}")
    return Fraction(value)


def _from_text(text: str, dimension: _Dimension) -> Fraction:
    # The length (and the exponent's, in the pattern) bound the size of the exact rational.
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise ValueError(f"{_shown(text)} is not a {dimension.noun}; {dimension.allowed}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(
            f"{_shown(text)} has no unit: add one, or leave out the quotes; {dimension.allowed}"
        )
    if unit not in dimension.units:
        raise ValueError(
            f"{_shown(text)} has the unknown unit '{unit}'{_unit_hint(unit, dimension)}; "
            f"{dimension.allowed}"
        )
    return Fraction(number) * dimension.units[unit]


def _unit_hint(unit: str, dimension: _Dimension) -> str:
    if unit in dimension.misspellings:
        return f" (did you mean '{dimension.misspellings[unit]}'?)"
    for known in dimension.units:
        if known.casefold() == unit.casefold():
            return f" (did you mean '{known}'?)"
    for spelling, known in dimension.misspellings.items():
        if spelling.casefold() == unit.casefold():
            return f" (did you mean '{known}'?)"
    return nearest(unit, dimension.units)


def _as_float(value: object, dimension: _Dimension) -> float:
    amount = _exact(value, dimension)
    try:
        result = float(amount)
    except OverflowError:
        raise ValueError(
            f"{_shown(value)} is too large for a {dimension.noun}; {dimension.allowed}"
        ) from None
    if amount and not result:
        raise ValueError(f"{_shown(value)} is too small for a {dimension.noun}: it rounds to 0")
    return result


def _shown(value: object) -> str:
    """The value for a message, cut: an unbounded integer has an unbounded text."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _positive(parse: Callable[[object], _Number]) -> Callable[[object], _Number]:
    def parse_positive(value: object) -> _Number:
        result = parse(value)
        if result <= 0:
            raise ValueError(f"{_shown(value)} is not allowed; allowed: greater than 0")
        return result

    return parse_positive


def _non_negative(parse: Callable[[object], _Number]) -> Callable[[object], _Number]:
    def parse_non_negative(value: object) -> _Number:
        result = parse(value)
        if result < 0:
            raise ValueError(f"{_shown(value)} is not allowed; allowed: 0 or more")
        return result

    return parse_non_negative


def _schema(dimension: _Dimension, bound: str = "") -> WithJsonSchema:
    """number | string; JSON Schema applies a bound to numbers and the pattern to strings only."""
    units = "|".join(re.escape(unit) for unit in dimension.units)
    sign = "[+]?" if bound else "[-+]?"
    schema: dict[str, Any] = {
        "type": ["integer" if dimension is _SIZE else "number", "string"],
        "pattern": rf"^\s*{sign}{_UNSIGNED}\s*(?:{units})\s*$",
        "description": f"{dimension.noun}: {dimension.allowed.removeprefix('allowed: ')}",
        "examples": [dimension.example],
    }
    if bound:
        schema[bound] = 0
    return WithJsonSchema(schema)


_ABOVE_0: Final = "exclusiveMinimum"
_FROM_0: Final = "minimum"

Seconds = Annotated[float, BeforeValidator(parse_seconds), _schema(_TIME)]
PositiveSeconds = Annotated[
    float, BeforeValidator(_positive(parse_seconds)), _schema(_TIME, _ABOVE_0)
]
NonNegativeSeconds = Annotated[
    float, BeforeValidator(_non_negative(parse_seconds)), _schema(_TIME, _FROM_0)
]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _schema(_SIZE)]
PositiveBytes = Annotated[int, BeforeValidator(_positive(parse_bytes)), _schema(_SIZE, _ABOVE_0)]
NonNegativeBytes = Annotated[
    int, BeforeValidator(_non_negative(parse_bytes)), _schema(_SIZE, _FROM_0)
]
BytesPerSecond = Annotated[float, BeforeValidator(parse_rate), _schema(_RATE)]
PositiveRate = Annotated[float, BeforeValidator(_positive(parse_rate)), _schema(_RATE, _ABOVE_0)]
NonNegativeRate = Annotated[
    float, BeforeValidator(_non_negative(parse_rate)), _schema(_RATE, _FROM_0)
]
