"""What goes wrong, on purpose; and the noise that keeps updates private.

A fault is drawn from a named stream of its own or happens at a scripted time, and every occurrence
is an event. What faults do to labels and updates is computed in ``emulator/learning/methods/``.
"""
