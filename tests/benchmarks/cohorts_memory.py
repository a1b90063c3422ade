"""Memory over 2,000 rounds of 100,000 clients in four cohorts, timing only, clusters planted.

    python tests/benchmarks/cohorts_memory.py [--clients 100000] [--versions 2000]

Prints the resident memory of the process at every tenth of the versions.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path

from emulator.manifest import memory_bytes
from emulator.run import Options, run
from emulator.scenario import load_scenario

SCENARIO = """
schema: 1
name: cohorts-memory
seed: 1
stop: {sim_time: 30 d, versions: VERSIONS}
task:
  dataset: {kind: declared, samples_per_client: 60}
  clients: CLIENTS
  planted: {kind: rotation, clusters: 4}
  model: {kind: declared, size: 3 MB, forward_macs: 1000000, backward_macs: 2000000}
system:
  devices: {kind: phones}
  availability: {kind: phones, days: 7}
  network: {client: {down: 35 Mbps, up: 8 Mbps, latency: 55 ms}}
  on_offline: drop
  drop_notice: at_once
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: synchronous, participants: 100, over_commitment: 1.3, deadline: none}
  structure:
    kind: cohorts
    retry: 10 min
    stand_in: planted
    clustering:
      kind: auxo
      partition: {at: [100, 200], known_share: 0}
evaluation: {every: {versions: EVERY}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--versions", type=int, default=2_000)
    given = parser.parse_args()
    shown = set[int]()

    def show(server: object, accuracy: float | None) -> None:
        tenth = 10 * server.version // given.versions  # type: ignore[attr-defined]
        if tenth not in shown:
            shown.add(tenth)
            gc.collect()
            print(
                f"version {server.version:,}, "  # type: ignore[attr-defined]
                f"{server.clock.now / 3600:.1f} h simulated, "  # type: ignore[attr-defined]
                f"{memory_bytes() / 2**20:,.0f} MiB",
                flush=True,
            )

    text = SCENARIO
    for key, value in (("CLIENTS", given.clients), ("VERSIONS", given.versions),
                       ("EVERY", max(1, given.versions // 10))):  # fmt: skip
        text = text.replace(key, str(value))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(text)
        scenario, source = load_scenario(path, [])
        manifest = run(scenario, source, Options(Path(folder) / "run", timing_only=True), show)
        print(f"host time {manifest['host']['total_s']:.0f} s")


if __name__ == "__main__":
    main()
