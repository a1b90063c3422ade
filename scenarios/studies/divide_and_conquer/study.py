"""Divide-and-Conquer: which settings learn, what they cost beside the baselines, and when it pays.

    python scenarios/studies/divide_and_conquer/study.py [--out runs/dc] [--only search …]

Fashion-MNIST, 10,000 images at 16 collaborators (Dirichlet 0.5), all in every round; the files of
scenarios/divide_and_conquer/ with --set. Parts, each of which writes ``PART.csv`` beside this file,
one row a run:

- ``search``: split x pre-pass x epochs x rates x schedule, LeNet-5, 40 rounds, one seed.
- ``search_vgg9``: the same for VGG9 at an eighth of its width, 20 rounds.
- ``comparison``: the files as they are, three other seeds: accuracy, bytes and time to 70 %.
- ``pretrained``: from convolutions that know such images, and at random.
- ``cross_device``: phones that come and go, against FedAvg on the same phones.

Runs that are finished are not run again, and one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.curves import curve
from analysis.plots import accuracy_figure, save_figure
from analysis.result_rows import host_s, rounded, write_rows
from analysis.run_reader import Run, read_run
from analysis.spending import BYTES, TIME
from analysis.summary import summarize
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parents[1] / "divide_and_conquer"
SEARCH_SEED = 11
"""None of those of the comparison."""
SEEDS = (1, 2, 3)
METHODS = ("fedavg", "fedprox", "fedmax", "fedma", "divide_and_conquer")
COUNTED = "{deadline: none, epochs: 5, counts: true}"
DISCARDED = "{deadline: none, epochs: 5}"

Row = dict[str, Any]
Setting = dict[str, str]


def setting(
    split: int | str, feature: tuple[int, float], fine: tuple[int, float], *, prepass: str = "null",
    schedule: str = "[A, B]", momentum: float = 0.9,
) -> Setting:  # fmt: skip
    """What a setting sets in divide_and_conquer.yaml."""
    rule = f"{{kind: fixed, layer: {split}}}" if isinstance(split, int) else f"{{kind: {split}}}"
    payload = "federation.payload"
    return {
        f"{payload}.split": rule,
        f"{payload}.prepass": prepass,
        f"{payload}.schedule": schedule,
        f"{payload}.feature_learning": f"{{epochs: {feature[0]}, lr: {feature[1]}}}",
        f"{payload}.fine_tuning": f"{{epochs: {fine[0]}, lr: {fine[1]}}}",
        "local.optimizer.momentum": str(momentum),
    }


EVEN = ((1, 0.01), (1, 0.01))
LENET5 = [
    *(setting(s, *EVEN) for s in (1, 2, 3, 4)),
    *(setting(s, (2, 0.01), (1, 0.005)) for s in (1, 2, 3, 4)),
    *(setting(s, (1, 0.005), (1, 0.01)) for s in (1, 2, 3, 4)),
    *(setting(s, (1, 0.01), (2, 0.01)) for s in (1, 2, 3, 4)),
    setting(2, (5, 0.01), (2, 0.005)),
    setting(2, (10, 0.01), (2, 0.001)),
    setting(2, (1, 0.03), (1, 0.03)),
    setting(3, (1, 0.03), (1, 0.03)),
    *(setting(s, *EVEN, schedule="[A, A, B]") for s in (2, 3)),
    *(setting(s, *EVEN, schedule="[A, B, B]") for s in (2, 3)),
    *(setting(rule, *EVEN, prepass=COUNTED) for rule in ("threshold", "largest_jump")),
    setting("balanced_bytes", *EVEN, prepass=COUNTED),
    setting(2, *EVEN, prepass=COUNTED),
    setting(2, *EVEN, prepass=DISCARDED),
    setting(2, (1, 0.05), (1, 0.05), momentum=0.0),
    setting(3, (1, 0.05), (1, 0.05), momentum=0.0),
    # Around the best of those above.
    setting(1, (1, 0.01), (3, 0.01)),
    setting(1, (2, 0.01), (2, 0.01)),
    setting(1, (1, 0.005), (2, 0.01)),
    setting(1, *EVEN, schedule="[A, B, B]"),
    setting(1, (1, 0.01), (2, 0.01), prepass=COUNTED),
    setting(2, (1, 0.005), (2, 0.01)),
]
VGG9 = [
    *(setting(s, *EVEN) for s in (2, 4, 6, 7)),
    *(setting(s, (2, 0.01), (1, 0.005)) for s in (2, 4, 6)),
    *(setting(s, (1, 0.01), (2, 0.01)) for s in (2, 4, 6)),
    setting("threshold", *EVEN, prepass=COUNTED),
    setting(4, *EVEN, prepass=COUNTED),
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Divide-and-Conquer's studies.")
    parser.add_argument("--out", type=Path, default=Path("runs/dc"))
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    for part in options.only:
        rows: list[Row] = []
        for row in PARTS[part](options.out / part, options.overrides):
            rows.append(row)
            write_rows(options.results / f"{part}.csv", rows)


def done(out: Path, scenario: str, overrides: Sequence[str]) -> Run:
    """A run of scenarios/divide_and_conquer/``scenario``.yaml, finished now or before."""
    loaded, source = load_scenario(SCENARIOS / f"{scenario}.yaml", overrides)
    with ProgressLine(loaded, quiet=False) as progress:
        run(loaded, source, Options(out, workers=1), progress)
    return read_run(out)


def searched(
    out: Path, settings: Sequence[Setting], base: Sequence[str], overrides: Sequence[str]
) -> Iterator[Row]:
    """FedAvg, then every setting; accuracy is the mean of the last five evaluations, which are two
    rounds apart: behind a fine-tuning round each, with the plain schedule."""
    fedavg = done(out / "fedavg", "fedavg", [f"seed={SEARCH_SEED}", *base, *overrides])
    yield {"setting": "fedavg", **measured(fedavg)}
    for number, chosen in enumerate(settings):
        sets = [f"{key}={value}" for key, value in chosen.items()]
        found = done(
            out / str(number),
            "divide_and_conquer",
            [f"seed={SEARCH_SEED}", *base, *sets, *overrides],
        )
        yield {"setting": number, **measured(found), "chosen": " ".join(sets)}


def measured(found: Run) -> Row:
    values = curve(found).value
    summary = summarize(found, (0.6, 0.7))
    to_60_s, to_70_s = summary.time_to_target_s.values()
    layers = found.directory / "layers.csv"
    split = ""
    if layers.exists():
        with layers.open(newline="") as file:
            split = str(sum(row["part"] == "A" for row in csv.DictReader(file)))
    return {
        "split": split, "versions": summary.versions,
        "accuracy_mean_of_last_5": rounded(float(np.mean(values[-5:]))),
        "best": rounded(float(max(values))), "bytes": summary.bytes_down + summary.bytes_up,
        "sim_s": round(summary.simulated_s, 1), "sim_s_to_60": to_60_s, "sim_s_to_70": to_70_s,
        "bytes_to_70": None if to_70_s is None else bytes_until(found, to_70_s),
        "host_s": host_s(found), "chosen": "",
    }  # fmt: skip


def bytes_until(found: Run, time_s: float) -> int:
    """What the server has sent and received by then, both ways."""
    versions = found.versions
    by_then = versions["sim_time_s"] <= time_s
    return int((versions["bytes_down"] + versions["bytes_up"])[by_then].sum())


def search(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    yield from searched(out, LENET5, ["stop.versions=40"], overrides)


def search_vgg9(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    base = ["task.model={kind: vgg9, width: 0.125}", "stop.versions=20"]
    yield from searched(out, VGG9, base, overrides)


def comparison(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    """FedAvg also with two epochs, as a round of both phases has in the mean; FedMA's rounds are
    five versions each, of which it gets as many as end in about the time of the others."""
    longer = {"fedma": ["stop.versions=120"]}
    lines = [(name, name, longer.get(name, [])) for name in METHODS]
    lines.insert(1, ("fedavg, 2 epochs", "fedavg", ["local.epochs=2"]))
    for name, file_name, more in lines:
        for seed in SEEDS:
            here = out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            found = done(here, file_name, [f"seed={seed}", *more, *overrides])
            yield {"method": name, "seed": seed, **measured(found)}
    shown = [read_run(out / f"{name}-{SEEDS[0]}") for name in METHODS]
    for name, spent in (("time", TIME), ("bytes", BYTES)):
        save_figure(accuracy_figure(shown, (0.7,), spent), out / f"accuracy_by_{name}.png")


def pretrained(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    features = done(out / "features", "features", [])
    weights = features.directory.resolve() / "model.safetensors"
    for seed in SEEDS:
        for name, layers in (("at random", None), ("conv1", "[conv1]"), ("both", "[conv1, conv2]")):
            start = f"task.pretrained={{path: {weights}, layers: {layers}}}" if layers else None
            sets = [f"seed={seed}", "stop.versions=30", *([start] if start else []), *overrides]
            here = out / f"{name.replace(' ', '-')}-{seed}"
            yield {"convolutions": name, "seed": seed,
                   **measured(done(here, "divide_and_conquer", sets))}  # fmt: skip


def cross_device(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    for name, more in (("divide_and_conquer", []), ("fedavg", ["federation.payload={kind: full}"])):
        found = done(out / name, "cross_device", [*more, *overrides])
        yield {"method": name, **measured(found)}


PARTS = {
    "search": search,
    "search_vgg9": search_vgg9,
    "comparison": comparison,
    "pretrained": pretrained,
    "cross_device": cross_device,
}


if __name__ == "__main__":
    main()
