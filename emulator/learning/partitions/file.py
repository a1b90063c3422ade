"""Who holds what, written in a file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.partitions.owners import Indices, by_owner, check_positive

HEADER = ["sample", "client"]
FEDSCALE_HEADER = ["client_id", "sample_path", "label_name", "label_id"]


def from_file(
    labels: NDArray[np.int64], clients: int, rng: np.random.Generator, *, path: str | Path
) -> list[Indices]:
    """The partition in a CSV file, of one of two forms that its header tells apart.

    ``sample,client``: positions in the training set and clients, both from 0, in any order;
    samples that are not named are nobody's. FedScale's ``client_id,sample_path,label_name,
    label_id``: row i is training sample i, so there are as many rows as samples, and the label
    must be the sample's; client ids are anything, numbered by their first appearance. Raises
    ScenarioError, naming the file and the line. Draws nothing.
    """
    check_positive("clients", clients)
    owner = np.full(len(labels), -1)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if header == HEADER:
                _read(path, rows, owner, clients)
            elif header == FEDSCALE_HEADER:
                _read_fedscale(path, rows, owner, labels, clients)
            else:
                raise ScenarioError(
                    f"{path}, line 1: the header is {','.join(header)!r}; write "
                    f"{','.join(HEADER)}, or FedScale's {','.join(FEDSCALE_HEADER)}"
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as a CSV file ({error})") from None
    if not (owner >= 0).any():
        raise ScenarioError(f"{path}: names no sample; every client would be without data")
    return by_owner(owner, clients)


def _lines(
    path: str | Path, rows: Iterator[list[str]], columns: list[str]
) -> Iterator[tuple[str, list[str]]]:
    """For each row that is not empty: where it is, for messages, and its cells."""
    for line, cells in enumerate(rows, start=2):
        if cells:
            where = f"{path}, line {line}"
            if len(cells) != len(columns):
                raise ScenarioError(
                    f"{where}: {len(cells)} cells; {len(columns)} are expected: {','.join(columns)}"
                )
            yield where, cells


def _read(path: str | Path, rows: Iterator[list[str]], owner: Indices, clients: int) -> None:
    for where, (sample_cell, client_cell) in _lines(path, rows, HEADER):
        sample = _integer(where, "sample", sample_cell)
        client = _integer(where, "client", client_cell)
        if not 0 <= sample < len(owner):
            raise ScenarioError(
                f"{where}, column sample: there is no sample {sample}; the training set has the "
                f"samples 0 to {len(owner) - 1}"
            )
        if not 0 <= client < clients:
            raise ScenarioError(
                f"{where}, column client: there is no client {client}; with task.clients "
                f"{clients} they are 0 to {clients - 1}"
            )
        if owner[sample] >= 0:
            raise ScenarioError(
                f"{where}, column sample: sample {sample} is named twice; client {owner[sample]} "
                "holds it already"
            )
        owner[sample] = client


def _read_fedscale(
    path: str | Path,
    rows: Iterator[list[str]],
    owner: Indices,
    labels: NDArray[np.int64],
    clients: int,
) -> None:
    numbers: dict[str, int] = {}
    sample = -1
    for sample, (where, cells) in enumerate(_lines(path, rows, FEDSCALE_HEADER)):
        if sample >= len(labels):
            raise ScenarioError(
                f"{where}: a row for sample {sample}, and the training set has {len(labels)} "
                "samples; row i is training sample i"
            )
        label = _integer(where, "label_id", cells[3])
        if label != labels[sample]:
            raise ScenarioError(
                f"{where}, column label_id: {label}, and training sample {sample} has the label "
                f"{labels[sample]}; the rows must be in the order of the training set, and count "
                "the labels as the data set does"
            )
        client = numbers.setdefault(cells[0], len(numbers))
        if client >= clients:
            raise ScenarioError(
                f"{where}, column client_id: {cells[0]!r} is client number {client + 1} in the "
                f"file, and task.clients is {clients}; take more clients"
            )
        owner[sample] = client
    if sample + 1 != len(labels):
        raise ScenarioError(
            f"{path}: {sample + 1} rows, and the training set has {len(labels)} samples; row i is "
            "training sample i"
        )


def _integer(where: str, column: str, cell: str) -> int:
    try:
        return int(cell)
    except ValueError:
        raise ScenarioError(f"{where}, column {column}: {cell!r} is not an integer") from None
