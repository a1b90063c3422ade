"""Quantities: exact, strict, and refused with the nearest spelling."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from emulator.scenario.units import (
    Bytes,
    BytesPerSecond,
    NonNegativeBytes,
    NonNegativeRate,
    NonNegativeSeconds,
    PositiveBytes,
    PositiveRate,
    PositiveSeconds,
    Seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("45 min", 2700.0),
        ("48 h", 172_800.0),
        ("55 ms", 0.055),
        ("2 d", 172_800.0),
        ("90 s", 90.0),
        ("10us", 1e-05),
        ("1.5e1 s", 15.0),
        (" .5 h ", 1800.0),
        ("-3 s", -3.0),
        (90, 90.0),
        (0.1, 0.1),
        (0, 0.0),
    ],
)
def test_seconds(written: object, seconds: float) -> None:
    parsed = parse_seconds(written)
    assert parsed == seconds
    assert type(parsed) is float


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("3 MiB", 3 * 1024**2),
        ("10 MB", 10_000_000),
        ("500 kB", 500_000),
        ("1 KiB", 1024),
        ("0 B", 0),
        ("1.5 KiB", 1536),
        ("2TB", 2 * 10**12),
        (17, 17),
        (1e6, 1_000_000),
    ],
)
def test_bytes(written: object, size_bytes: int) -> None:
    parsed = parse_bytes(written)
    assert parsed == size_bytes
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("written", "bytes_per_s"),
    [
        ("1 Mbps", 125_000.0),
        ("20 Mbps", 2_500_000.0),
        ("8 kbps", 1000.0),
        ("1 Gbps", 125_000_000.0),
        ("1 bps", 0.125),
        ("10 MB/s", 10_000_000.0),
        ("2 MiB/s", 2 * 1024.0**2),
        (3, 3.0),
    ],
)
def test_rates(written: object, bytes_per_s: float) -> None:
    assert parse_rate(written) == bytes_per_s


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["us", "ms", "s", "min", "h", "d"]))
def test_seconds_are_rounded_once(count: int, unit: str) -> None:
    per_second = {"us": 10**6, "ms": 10**3}.get(unit, 1)
    seconds = {"min": 60, "h": 3600, "d": 86400}.get(unit, 1)
    assert parse_seconds(f"{count} {unit}") == count * seconds / per_second


NO_QUANTITY: list[object] = [True, False, None, math.nan, math.inf, -math.inf, [1], {}, 10**400]
NO_QUANTITY += ["", "x", "s", "nan s", "inf", "١ s", "1 s s", "1,5 s", "0x10 B", "9" * 5000]
NO_QUANTITY += ["1e400 s", "1e400 B", "1e9999 B/s"]


@pytest.mark.parametrize("parse", [parse_seconds, parse_bytes, parse_rate])
@pytest.mark.parametrize("value", NO_QUANTITY)
def test_what_is_no_quantity_is_refused(parse: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r"allowed|too large"):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "written", "hint"),
    [
        (parse_rate, "20 mbps", "did you mean 'Mbps'?"),
        (parse_rate, "20 MBps", "did you mean 'MB/s' or 'Mbps'?"),
        (parse_rate, "20 Mbit/s", "did you mean 'Mbps'?"),
        (parse_rate, "20 MB", "did you mean 'MB/s'?"),
        (parse_rate, "20 mib/s", "did you mean 'MiB/s'?"),
        (parse_seconds, "5 minutes", "did you mean 'min'?"),
        (parse_seconds, "5 m", "did you mean 'min'?"),
        (parse_seconds, "5 µs", "did you mean 'us'?"),
        (parse_seconds, "5 S", "did you mean 's'?"),
        (parse_bytes, "5 KB", "did you mean 'kB'?"),
        (parse_bytes, "5 mib", "did you mean 'MiB'?"),
        (parse_seconds, "12", "add one, or leave out the quotes"),
    ],
)
def test_a_near_miss_gets_a_hint(parse: Any, written: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)) as caught:
        parse(written)
    assert repr(written) in str(caught.value)
    assert "with one of the units" in str(caught.value)


@pytest.mark.parametrize("value", [1.5, "1.5 B", "1.0001 kB", "1 B.", 0.1])
def test_fractions_of_a_byte_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_bytes(value)


def test_a_size_is_a_64_bit_integer() -> None:
    assert parse_bytes(2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match="too large"):
        parse_bytes(2**63)


def test_no_value_vanishes_by_rounding() -> None:
    with pytest.raises(ValueError, match="rounds to 0"):
        parse_seconds("1e-400 s")


class Link(BaseModel):
    model_config = ConfigDict(strict=True)

    duration: Seconds
    size: Bytes
    rate: BytesPerSecond


def test_fields_of_a_strict_model() -> None:
    link = Link.model_validate({"duration": "1 min", "size": "1 kB", "rate": "8 kbps"})
    assert (link.duration, link.size, link.rate) == (60.0, 1000, 1000.0)
    assert json.loads(link.model_dump_json()) == {"duration": 60.0, "size": 1000, "rate": 1000.0}
    assert Link.model_validate(link.model_dump()) == link


@pytest.mark.parametrize(
    ("annotation", "zero", "minus"),
    [
        (Seconds, True, True),
        (NonNegativeSeconds, True, False),
        (PositiveSeconds, False, False),
        (Bytes, True, True),
        (NonNegativeBytes, True, False),
        (PositiveBytes, False, False),
        (BytesPerSecond, True, True),
        (NonNegativeRate, True, False),
        (PositiveRate, False, False),
    ],
)
def test_bounds(annotation: Any, zero: bool, minus: bool) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    unit = {"duration": " s", "size": " B", "rate": " B/s"}[
        adapter.json_schema()["description"].partition(":")[0]
    ]
    for value, allowed in ((1, True), (0, zero), (-1, minus)):
        for written in (value, f"{value}{unit}"):
            if allowed:
                assert adapter.validate_python(written) == value
            else:
                with pytest.raises(ValidationError, match=r"allowed: (greater than 0|0 or more)"):
                    adapter.validate_python(written)


@pytest.mark.parametrize(
    ("annotation", "number", "good", "bad"),
    [
        (Seconds, "number", ["45 min", "-1 s", "10us"], ["45", "45 mins", "x"]),
        (PositiveBytes, "integer", ["3 MiB", "1 B"], ["-3 MiB", "3 mib"]),
        (NonNegativeRate, "number", ["20 Mbps", "2 MiB/s"], ["-2 Mbps", "2 MiBps"]),
    ],
)
def test_json_schema(annotation: Any, number: str, good: list[str], bad: list[str]) -> None:
    schema = TypeAdapter(annotation).json_schema()
    assert schema["type"] == [number, "string"]
    assert all(re.search(schema["pattern"], text) for text in good)
    assert not any(re.search(schema["pattern"], text) for text in bad)
    bounds = {PositiveBytes: ("exclusiveMinimum", 0), NonNegativeRate: ("minimum", 0)}
    if annotation in bounds:
        key, value = bounds[annotation]
        assert schema[key] == value


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.booleans())
def test_any_value_is_parsed_or_refused(value: object) -> None:
    for parse in (parse_seconds, parse_bytes, parse_rate):
        try:
            assert math.isfinite(parse(value))
        except ValueError:
            continue
