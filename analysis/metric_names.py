"""Metrics by the name that a user gives: ``accuracy`` of the test split, ``members/accuracy`` of
another one (with cohorts: the clients that their cohort knows)."""

from __future__ import annotations

from analysis.human_units import target_text


def split_and_name(metric: str) -> tuple[str, str]:
    """``("members", "accuracy")`` of ``members/accuracy``."""
    split, _, name = metric.rpartition("/")
    return split or "test", name


def metric_text(metric: str) -> str:
    """``test accuracy``, ``members accuracy``."""
    return " ".join(split_and_name(metric))


def is_accuracy(metric: str) -> bool:
    """Whether its values are shares from 0 to 1."""
    return split_and_name(metric)[1] == "accuracy"


def lower_is_better(metric: str) -> bool:
    """Whether it meets a target from above."""
    return split_and_name(metric)[1] == "loss"


def value_text(value: float, metric: str) -> str:
    """``80 %``; of another metric than accuracy the number."""
    return target_text(value) if is_accuracy(metric) else f"{value:.4g}"
