"""Pickles of dicts, lists, numbers and strings: looked through before anything is built of them.

An unpickler that imports nothing can still be made to crash or to fill the memory by some bytes:
tuples in tuples as a key are hashed with recursion and without end, and an opcode makes room for
as many memoized objects, or for as long a string, as it likes. A trace needs no tuple, and
nothing that is longer than its file.
"""

from __future__ import annotations

import re
from typing import Final

from traces.errors import TraceError

# Runs of opcodes of known length (https://peps.python.org/pep-3154, Lib/pickletools.py): marks,
# containers, None and truth values, MEMOIZE; numbers and memo numbers of 1, 2, 4 and 8 bytes, a
# protocol; what ends with its line.
_RUN: Final = re.compile(
    rb"(?:[(}\]adelsuN\x88\x89\x94]|[Khq\x80].|M..|[Jj].{4}|G.{8}|[FILSVg][^\n]*\n){0,4096}+",
    re.DOTALL,
)
_COUNTED: Final = {  # opcodes with a length in so many bytes: strings, bytes, integers; FRAME
    **dict.fromkeys((b"U", b"C", b"\x8a", b"\x8c"), 1),
    **dict.fromkeys((b"T", b"X", b"B", b"\x8b"), 4),
    **dict.fromkeys((b"\x8d", b"\x8e", b"\x95"), 8),
}
# STOP; GLOBAL, INST, STACK_GLOBAL, PERSID and BINPERSID, which the closed unpickler refuses.
_LAST: Final = (b".", b"c", b"i", b"\x93", b"P", b"Q")
_CUT_SHORT: Final = frozenset(b"KhqMJjG\x80FILSVgpr")  # known, but not whole: the end is near


def refuse_other_opcodes(raw: bytes) -> None:
    """TraceError for a pickle that makes anything but dicts, lists, numbers, strings, bytes."""
    at = 0
    while at < len(raw):
        run = _RUN.match(raw, at)
        assert run is not None  # it matches nothing, too
        if run.end() > at:
            at = run.end()
            continue
        opcode = raw[at : at + 1]
        if opcode in _LAST:
            return
        if width := _COUNTED.get(opcode):
            content = at + 1 + width
            end = content + int.from_bytes(raw[at + 1 : content], "little")
            if end > len(raw):
                raise TraceError(f"the pickle ends within the {_name(opcode)} at byte {at}")
            at = content if opcode == b"\x95" else end
        elif (memo := _memo_number(raw, at)) is not None:
            number, at = memo
            if number > len(raw):
                raise TraceError(
                    f"the pickle, of {len(raw)} bytes, makes room for {number} memoized objects"
                )
        elif opcode[0] in _CUT_SHORT:
            return  # the unpickler says how
        else:
            raise TraceError(
                f"the pickle has the opcode {_name(opcode)} at byte {at}; a trace holds dicts, "
                "lists, numbers and strings only, and nothing else is loaded"
            )


def _memo_number(raw: bytes, at: int) -> tuple[int, int] | None:
    """The number of a LONG_BINPUT or PUT, and what comes after it."""
    if raw[at : at + 1] == b"r" and at + 5 <= len(raw):
        return int.from_bytes(raw[at + 1 : at + 5], "little"), at + 5
    put = re.compile(rb"p([0-9]{1,18})\n").match(raw, at)
    return None if put is None else (int(put[1]), put.end())


def _name(opcode: bytes) -> str:
    from pickletools import opcodes

    names = [known.name for known in opcodes if known.code.encode("latin-1") == opcode]
    return names[0] if names else repr(opcode)
