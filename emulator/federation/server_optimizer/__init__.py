"""How updates are merged; the equations are in ``emulator/learning/methods/``."""
