"""Timing only, 1,000,000 clients with about 20 sessions each, 1,000 in flight, all records written.

    python tests/benchmarks/million_clients.py [--participations 300000]

Measures the fedclock that is installed beside the Python that runs it, and says whether its event
loop is compiled (see "A faster clock" in the README). Prints participations per host second for
unshared links, for a shared server link with equal client caps, and with FedScale's spread of caps,
and the memory of the population.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCENARIO = """
schema: 1
name: million
seed: 1
stop: {sim_time: 30 d, versions: VERSIONS}
task:
  dataset: {kind: declared, samples_per_client: 60}
  clients: 1000000
  model: {kind: declared, size: 3 MB, forward_macs: 1000000, backward_macs: 2000000}
system:
  devices: {kind: phones}
  availability:
    kind: renewal
    on: {dist: lognormal, median: 30 min, sigma: 1.0}
    off: {dist: lognormal, median: 60 min, sigma: 1.0}
    horizon: 49 h
    at_end: wrap
  network: NETWORK
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: buffered, in_flight: 1000, buffer: 10}
evaluation: {every: {versions: 1000}}
"""
EQUAL = "client: {down: 35 Mbps, up: 8 Mbps, latency: 55 ms}"
NETWORKS = {
    "unshared": f"{{{EQUAL}}}",
    "shared server link, equal caps": f"{{{EQUAL}, server: {{down: 1 Gbps, up: 1 Gbps}}}}",
    "shared server link, FedScale caps": "{client: {down: devices, up: devices, latency: 55 ms}, "
    "server: {down: 1 Gbps, up: 1 Gbps}}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participations", type=int, default=300_000)
    versions = parser.parse_args().participations // 10
    for name, network in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scenario.yaml"
            path.write_text(SCENARIO.replace("NETWORK", network).replace("VERSIONS", str(versions)))
            subprocess.run(
                [Path(sys.executable).with_name("fedclock"), "run", str(path), "--timing-only",
                 "--quiet", "--out", f"{folder}/run"],
                check=True, cwd=folder,
            )  # fmt: skip
            manifest = json.loads((Path(folder) / "run/manifest.json").read_text())
            with open(Path(folder) / "run/updates.csv") as table:
                rows = sum(1 for _ in table) - 1
            host = manifest["host"]
            print(
                f"{name}, {host['event_loop']}: "
                f"{rows} participations in {host['simulation_s']:.1f} s = "
                f"{rows / host['simulation_s']:,.0f} per host second "
                f"(whole run {host['total_s']:.1f} s, population "
                f"{manifest['population_bytes'] / 2**30:.2f} GiB, "
                f"peak memory {host['peak_memory_bytes'] / 2**30:.2f} GiB)",
                flush=True,
            )


if __name__ == "__main__":
    main()
