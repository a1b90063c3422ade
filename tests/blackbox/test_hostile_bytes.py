"""Scenarios and traces of bytes that no text file shows: packed, cut, hostile, endless."""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path

import pytest
from corpus import READERS, matcher, refused_scenario, refused_trace

from emulator.scenario import load_scenario
from traces import TraceError, read_devices

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
GOOD = CORPUS / "scenarios" / "good"


def _file(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


# --- scenarios ----------------------------------------------------------------------------------

ROUNDS = (GOOD / "rounds.yaml").read_text()

BYTES = {
    "empty": (b"", "1:1", "the file is empty; a scenario is a mapping of keys"),
    "a mark and nothing else": (b"\xef\xbb\xbf", "1:1", "the file is empty; …"),
    "Latin-1": (
        ROUNDS.replace("rounds", "ärger").encode("latin-1"),
        "2:7",
        "not UTF-8 (byte 0xe4: invalid continuation byte); save the file as UTF-8",
    ),
    "UTF-16": (ROUNDS.encode("utf-16"), "1:1", "not UTF-8 (byte 0xff: …"),
    "UTF-32": (ROUNDS.encode("utf-32"), "1:1", "not UTF-8 (byte 0xff: …"),
    "half a character": (
        ROUNDS.encode() + b"# \xc3",
        "30:3",
        "not UTF-8 (byte 0xc3: unexpected end of data); …",
    ),
    "NUL": (
        ROUNDS.replace("rounds", "rou\0nds").encode(),
        "2:10",
        "the character U+0000 is not allowed in YAML",
    ),
    "escape sequences": (
        ROUNDS.replace("rounds", "\x1b[31m").encode(),
        "2:7",
        "the character U+001B is not allowed in YAML",
    ),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "1:1", "not UTF-8 (byte 0x89: …"),
    "an archive": (b"PK\x03\x04", "1:3", "the character U+0003 is not allowed in YAML"),
    "a line of 10 MB": (
        b"name: " + b"x" * 10_000_000,
        "1:1",
        "larger than 1048576 bytes, too large for a scenario; …",
    ),
    "a line of 1 MB": (
        b"x" * 1_000_000,
        "1:1",
        "a scenario is a mapping of keys ('name: …'), found 'xxx…",
    ),
    "lists in lists": (b"a: " + b"[" * 100_000, "1:66", "nested deeper than 64 levels"),
    "mappings in mappings": (b"a: " + b"{a: " * 100_000, "1:252", "nested deeper than 64 levels"),
    "dashes": (b"- " * 100_000, "1:127", "nested deeper than 64 levels"),
    "an integer of 100,000 digits": (
        b"n: " + b"9" * 100_000,
        "1:4",
        "9999…: an integer out of range (±2^128)",
    ),
    "a number of 100,000 digits": (
        b"n: 0." + b"9" * 100_000 + b"e999999",
        "1:4",
        "0.99…: a number out of range of a 64-bit float",
    ),
    "aliases of aliases": (
        b"a: &a [x, x, x, x, x, x, x, x, x]\n"
        b"b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
        b"c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
        b"d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
        b"e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
        b"f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n",
        "6:8",
        "more than 100000 values (aliases count in full)",
    ),
    "one key 100,000 times": (
        b"k: 1\n" * 100_000,
        "2:1",
        "duplicate key 'k' (first on line 1); keep one of the two",
    ),
    "lines of old Macs": (
        b"seed: 1\rname: x\rseed: 2",
        "3:1",
        "duplicate key 'seed' (first on line 1); keep one of the two",
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_scenario(name: str, tmp_path: Path) -> None:
    raw, place, message = BYTES[name]
    path = tmp_path / "scenario.yaml"
    path.write_bytes(raw)
    said = refused_scenario(path)
    assert re.fullmatch(re.escape(f"{path}:{place}: ") + matcher(message), said), said[:300]


def test_a_byte_order_mark_and_dos_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "dos.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + ROUNDS.replace("\n", "\r\n").encode())
    loaded, _ = load_scenario(path)
    assert loaded == load_scenario(GOOD / "rounds.yaml")[0]


def test_what_yaml_1_1_readers_would_change_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(ROUNDS.replace("0.05", "5e-2").replace("name: rounds", "name: no"))
    loaded, _ = load_scenario(path)
    assert (loaded.local.optimizer.lr, loaded.name) == (0.05, "no")


@pytest.mark.parametrize("name", ["nothing.yaml", "", ".", "rounds.yaml/x", "x" * 300])
def test_a_scenario_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert refused_scenario(path).startswith(f"{path}: cannot be read: ")


# --- traces -------------------------------------------------------------------------------------

TABLE = (CORPUS / "traces" / "good" / "sessions.csv").read_text()

TABLES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("t.csv", b"", "FILE, line 1: the header is ''; it must be …"),
    "Latin-1": (
        "t.csv",
        TABLE.replace("1,300", "é,300").encode("latin-1"),
        "FILE, after line …: is not a whole CSV table: …",
    ),
    "UTF-16": ("t.csv", TABLE.encode("utf-16"), "FILE, after line 0: is not a whole CSV table: …"),
    "NUL": (
        "t.csv",
        TABLE.replace("1,300", "1,3\0").encode(),
        "FILE, line 4, column start_s: '3\\x00' is not a number",
    ),
    "a packed table by the name of a plain one": (
        "t.csv",
        gzip.compress(TABLE.encode()),
        "FILE, after line 0: is not a whole CSV table: …",
    ),
    "a plain table by the name of a packed one": (
        "t.csv.gz",
        TABLE.encode(),
        "FILE: cannot be read: Not a gzipped file (b'cl')",
    ),
    "a packed table that is cut": (
        "t.csv.gz",
        gzip.compress(TABLE.encode() * 99)[:60],
        "FILE, after line …: is not a whole CSV table: …",
    ),
    "a packed table with a wrong byte": (
        "t.csv.gz",
        gzip.compress(TABLE.encode())[:40] + b"\xff" + gzip.compress(TABLE.encode())[41:],
        "FILE…",
    ),
    "a cell of 1 MB": (
        "t.csv",
        TABLE.encode() + b"3," + b"9" * 1_000_000 + b",1,1200\n",
        "FILE, after line 5: is not a whole CSV table: field larger than field limit (131072)",
    ),
    "an unknown suffix": ("t.json", b"{}", "FILE: unknown suffix; a table ends in .csv or …"),
}


@pytest.mark.parametrize("name", TABLES)
def test_bytes_that_are_no_table(name: str, tmp_path: Path) -> None:
    file, raw, message = TABLES[name]
    path = _file(tmp_path / file, raw)
    said = refused_trace(path, "availability")
    assert re.fullmatch(matcher(message.replace("FILE", str(path))), said), said


@pytest.mark.parametrize(
    "raw",
    [
        TABLE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + TABLE.encode(),
        TABLE.replace("\n", "\n\n").encode(),
        TABLE.removesuffix("\n").encode(),
        TABLE.replace("1,300,1200", '"1", 300 ,"1.2e3"').encode(),
        TABLE.replace("0,0,600", "0,0.0,+600.").encode(),
    ],
    ids=["DOS lines", "a mark", "blank lines", "no end of line", "quotes and spaces", "forms"],
)
def test_what_programs_do_to_a_table_does_no_harm(raw: bytes, tmp_path: Path) -> None:
    rows = [[(0.0, 600.0), (700.0, 1100.0)], [(300.0, 1200.0)], []]
    sessions = READERS["availability"](_file(tmp_path / "t.csv", raw))
    assert [sessions.row(row) for row in range(3)] == rows


BEHAVIOUR = pickle.dumps(eval((CORPUS / "traces" / "good" / "behaviour.txt").read_text()))
CALL = (
    b"cos\nsystem\n",  # GLOBAL
    b"\x8c\x02os\x8c\x06system\x93",  # STACK_GLOBAL
)

PICKLES: dict[str, tuple[bytes, str]] = {
    "a call": (CALL[0] + b"(S'touch owned'\ntR.", "the pickle asks for os.system; …"),
    "a call in protocol 4": (
        b"\x80\x04" + CALL[1] + b"\x8c\x0btouch owned\x85R.",
        "the pickle asks for os.system; …",
    ),
    "a call by INST": (b"(S'touch owned'\nios\nsystem\n.", "the pickle asks for os.system; …"),
    "a call by OBJ": (b"(cos\nsystem\nS'touch owned'\no.", "the pickle asks for os.system; …"),
    "a call by NEWOBJ": (
        b"\x80\x02" + CALL[0] + b"(S'touch owned'\nt\x81.",
        "the pickle asks for os.system; …",
    ),
    "eval": (b"c__builtin__\neval\n(S'1'\ntR.", "the pickle asks for …eval; …"),
    "a call as a value": (
        b"}(K\x01}(X\x06\x00\x00\x00active" + CALL[0] + b"(S'touch owned'\ntRuu.",
        "the pickle asks for os.system; …",
    ),
    "a call after the end": (
        BEHAVIOUR[:-1] + b"0" + CALL[0] + b"(S'touch owned'\ntR.",
        "the pickle has the opcode POP at byte …",
    ),
    "a name with dots": (
        b"\x80\x04\x8c\x08builtins\x8c\x0deval.__call__\x93.",
        "the pickle asks for builtins.eval.__call__; …",
    ),
    "a registered extension": (b"\x80\x02\x82\x01.", "the pickle has the opcode EXT1 at byte 2; …"),
    "an object elsewhere": (b"Psomewhere\n.", "the pickle points to objects outside itself; …"),
    "a buffer elsewhere": (b"\x80\x05\x97.", "the pickle has the opcode NEXT_BUFFER at byte 2; …"),
    "another state": (b"}}b.", "the pickle has the opcode BUILD at byte 2; …"),
    "a call of nothing": (b"I1\n)R.", "the pickle has the opcode EMPTY_TUPLE at byte 3; …"),
    "tuples in tuples as a key": (
        b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s.",
        "the pickle has the opcode EMPTY_TUPLE at byte 3; …",
    ),
    "a tuple of itself twice, 64 times": (
        b"\x80\x04})" + b"\x94h\x00\x86" * 64 + b"K\x01s.",
        "the pickle has the opcode EMPTY_TUPLE at byte 3; …",
    ),
    "a set": (b"\x80\x04\x8f(K\x01\x90.", "the pickle has the opcode EMPTY_SET at byte 2; …"),
    "room for 2 thousand million objects": (
        b"\x80\x02}r\xff\xff\xff\x7f.",
        "the pickle, of 9 bytes, makes room for 2147483647 memoized objects",
    ),
    "room for them in text": (
        b"(dp999999999\n.",
        "the pickle, of 14 bytes, makes room for 999999999 memoized objects",
    ),
    "lists of lists of lists": (
        # A list of itself ten times, in a list of itself ten times, …: 10^20 numbers in 1 kB.
        b"\x80\x02}K\x01}(X\x06\x00\x00\x00active](]q\x00K\x00a"
        + b"".join(
            b"](" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1])
            for n in range(20)
        )
        + b"eX\x08\x00\x00\x00inactive](K\x01eX\x0b\x00\x00\x00finish_timeK\x0aus.",
        "client 1 (row 0)…",
    ),
    "20,000 lists in lists": (
        b"]" * 20_000 + b"a" * 19_999 + b".",
        "holds a list; FedScale's traces are a dict of clients",
    ),
    "a string of 9 million million million bytes": (
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        "the pickle ends within the BINUNICODE8 at byte 2",
    ),
    "a frame of 1 million million million bytes": (
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x0f.",
        "the pickle ends within the FRAME at byte 2",
    ),
    "bytes of a negative number": (
        b"T\xff\xff\xff\xff.",
        "the pickle ends within the BINSTRING at byte 0",
    ),
    "a key of 100,000 digits": (
        b"}\x8b\x00\x00\x10\x00" + b"\x7f" * 0x100000 + b"}s.",
        "row 0 has the key a huge int; …",
    ),
    "a list as a key": (b"}]K\x01s.", "is not a whole pickle of builtin containers (TypeError(…"),
    "an odd number of keys and values": (b"}(K\x01u.", "is not a whole pickle of builtin …"),
    "nothing on the stack": (b".", "is not a whole pickle of builtin containers (…"),
    "an object that was not memoized": (b"h\x00.", "is not a whole pickle of builtin …"),
    "half a pickle": (BEHAVIOUR[:60], "the pickle ends within the FRAME at byte 2"),
    "all but the last byte": (BEHAVIOUR[:-1], "the pickle ends within the FRAME at byte 2"),
    "empty": (b"", "is not a whole pickle of builtin containers (…"),
    "a protocol of the future": (b"\x80\xff}.", "is not a whole pickle of builtin containers (…"),
    "a table": (TABLE.encode(), "…"),
    "JSON": (b'{"1": {"active": [0]}}', "the pickle has the opcode b'{' at byte 0; …"),
    "a packed pickle": (gzip.compress(BEHAVIOUR), "…"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_hostile_pickle_is_refused_and_does_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw, message = PICKLES[name]
    path = _file(tmp_path / "trace.pkl", raw)
    said = refused_trace(path, "availability")
    assert re.fullmatch(re.escape(f"{path}: ") + matcher(message), said), said
    assert not (tmp_path / "owned").exists()
    with pytest.raises(TraceError):
        read_devices(path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_a_pickle_may_be_made_of(protocol: int, tmp_path: Path) -> None:
    entry = {
        **{"active": [0, 0.5, 300, 2**40], "inactive": [0.25, 100, 70_000, 2**41]},
        **{"finish_time": 2**62, "duration": -1, "model": "Größe 😀" * 50, "raw": b"\xff" * 300},
        **{"flags": [True, False, None], "nested": {"": [], "x": {}}, "long": 10**300, "text": "a"},
    }
    path = _file(
        tmp_path / "trace", pickle.dumps({key: dict(entry) for key in range(300)}, protocol)
    )
    if protocol < 3:  # bytes were a call then
        assert "asks for _codecs.encode" in refused_trace(path, "availability")
        del entry["raw"]
        _file(path, pickle.dumps({key: dict(entry) for key in range(300)}, protocol))
    sessions = READERS["availability"](path)
    assert len(sessions) == 300
    assert sessions.row(299) == list(zip(entry["active"], entry["inactive"], strict=True))
