"""``python -m emulator`` is ``fedclock``."""

from emulator.cli import main

main()
