"""``fedclock sweep``: many runs as one command.

What is to be run is a :class:`~emulator.sweep.study.Study` (scenarios, seeds, varied values), from
which :mod:`~emulator.sweep.plan` makes the runs and their directories.
:mod:`~emulator.sweep.agenda` decides which is next and whose memo it gets, a crew carries it out,
each run in a process of its own (:mod:`~emulator.sweep.local` on this machine,
:mod:`~emulator.sweep.cluster` with Dask), and :mod:`~emulator.sweep.results` reads what became of
it from its directory. Nothing here imports torch but the processes in which runs are carried out.
"""
