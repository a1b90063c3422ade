"""Only for those who want the event loop compiled (see "A faster clock" in the README).

Without ``FEDCLOCK_COMPILE=1`` there is nothing to compile, and ``setup.cfg`` says all.
"""

from __future__ import annotations

import os

from setuptools import setup

EVENT_LOOP = [
    "emulator/simulation/clock.py",
    "emulator/simulation/conservation.py",
    "emulator/simulation/devices.py",
    "emulator/simulation/fair_sharing.py",
    "emulator/simulation/network.py",
    "emulator/simulation/participation.py",
    "emulator/simulation/participations.py",
    "emulator/simulation/population.py",
    "emulator/simulation/topology.py",
    "emulator/federation/pacing/asynchronous.py",
    "emulator/federation/pacing/buffered.py",
    "emulator/federation/payload/full.py",
    "emulator/federation/selection/random.py",
    "emulator/federation/structure/clustered/star.py",
    "emulator/federation/structure/star.py",
    "emulator/federation/structure/visits.py",
    "emulator/federation/tasks.py",
    "emulator/recording/recorder.py",
    "traces/availability.py",
]
"""Where every task passes through. Never the learning plane: its sources name the memo."""

choice = os.environ.get("FEDCLOCK_COMPILE", "0")
if choice not in ("0", "1"):
    raise SystemExit(f"FEDCLOCK_COMPILE is {choice!r}; 1 compiles the event loop, 0 does not")
extensions = []
if choice == "1":
    from mypyc.build import mypycify

    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    extensions = mypycify([*options, *EVENT_LOOP], opt_level="2")
setup(ext_modules=extensions)
