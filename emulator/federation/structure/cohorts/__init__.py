"""Cohorts: clients whose data are alike train a model of their own (Auxo, Liu et al., SoCC 2023).

``tree`` and ``affinity`` are the protocol without a clock, ``partition`` says when a cohort splits,
``pool`` holds who waits for which cohort, and ``coordinator`` is where it all happens in simulated
time. What gradients tell is computed in ``emulator/learning/methods/auxo.py``.
"""
