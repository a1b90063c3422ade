"""Figures of traces: when clients are online, how long, how evenly; how fast devices are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from analysis.plots import PALETTE, axes_for, save_figure, style_axes
from traces.devices import DeviceTable
from traces.sessions import Sessions
from traces.statistics import duty_cycle, online_share_by_hour

MOST_POINTS = 5_000  # in a scatter or a step curve: beyond, a figure shows no more, only grows

_COMPUTATION = "computation (ms a sample)"
_COMMUNICATION = "communication (kbit/s)"
_DURATION_TICKS = {1: "1 s", 60: "1 min", 3600: "1 h", 86400: "1 d"}


def plot_trace(trace: Sessions | DeviceTable, path: str | Path, title: str) -> None:
    """Write the figure of a trace to ``path`` (.png, .pdf or .svg).

    Raises ``AnalysisError`` for another suffix, or a file that cannot be written.
    """
    figure = (
        devices_figure(trace, title)
        if isinstance(trace, DeviceTable)
        else availability_figure(trace, title)
    )
    save_figure(figure, path)


def availability_figure(sessions: Sessions, title: str) -> Figure:
    """The share online over the day, the CDF of session lengths, the histogram of duty cycles."""
    figure = _figure(title)
    for plot, axes in zip(
        (plot_online_share, plot_session_lengths, plot_duty_cycles), figure.subplots(1, 3),
        strict=True,
    ):  # fmt: skip
        plot(sessions, axes)
    return figure


def plot_online_share(sessions: Sessions, ax: Axes | None = None) -> Axes:
    """The mean share of clients that are online in each hour of the day."""
    day = axes_for(ax)
    share = online_share_by_hour(sessions)
    day.stairs(100 * share, np.arange(25), baseline=None, color=PALETTE[0], linewidth=1.5)
    highest = float(np.nanmax(share, initial=0.0))
    day.set(xlim=(0, 24), xticks=range(0, 25, 6), ylim=(0, 110 * highest or 1))
    _label(day, "hour of the day (time 0 is 0 h)", "clients online")
    day.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    return day


def plot_session_lengths(sessions: Sessions, ax: Axes | None = None) -> Axes:
    """The share of sessions that are no longer; time is logarithmic."""
    lengths = axes_for(ax)
    lengths.set_xscale("log")
    _cdf(lengths, sessions.ends_s - sessions.starts_s)
    low, high = lengths.get_xlim()
    ticks = {at: text for at, text in _DURATION_TICKS.items() if low <= at <= high}
    if len(ticks) > 1:
        lengths.set_xticks(list(ticks), list(ticks.values()))
    _label(lengths, "length of a session", "sessions not longer")
    return lengths


def plot_duty_cycles(sessions: Sessions, ax: Axes | None = None) -> Axes:
    """How many clients are online for which share of their time."""
    duties = axes_for(ax)
    bins = np.linspace(0, 1, 41).tolist()
    duty = duty_cycle(sessions)
    duties.hist(duty, bins, weights=np.full(len(duty), 100 / len(duty)), color=PALETTE[0])
    duties.axvline(float(duty.mean()), color=PALETTE[1], linewidth=1.2)
    duties.annotate(
        f" mean {100 * duty.mean():.1f} %", (float(duty.mean()), 1), va="top", color=PALETTE[1],
        xycoords=duties.get_xaxis_transform(), fontsize=9,
    )  # fmt: skip
    duties.set_xlim(0, 1)
    duties.xaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    duties.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    _label(duties, "duty cycle of a client", "clients")
    return duties


def devices_figure(devices: DeviceTable, title: str) -> Figure:
    """The CDFs of both columns, and one against the other."""
    figure = _figure(title)
    computation, communication, both = figure.subplots(1, 3)
    plot_computation(devices, computation)
    plot_communication(devices, communication)
    plot_devices(devices, both)
    return figure


def plot_computation(devices: DeviceTable, ax: Axes | None = None) -> Axes:
    """The share of devices that are no slower; time is logarithmic."""
    return _plot_column(devices.computation_ms_per_sample, _COMPUTATION, ax)


def plot_communication(devices: DeviceTable, ax: Axes | None = None) -> Axes:
    """The share of devices whose link is no faster; the rate is logarithmic."""
    return _plot_column(devices.communication_kbps, _COMMUNICATION, ax)


def _plot_column(values: NDArray[np.float64], name: str, ax: Axes | None) -> Axes:
    axes = axes_for(ax)
    axes.set_xscale("log")
    _cdf(axes, values)
    _few_ticks(axes)
    _label(axes, name, "devices not above")
    return axes


def plot_devices(devices: DeviceTable, ax: Axes | None = None) -> Axes:
    """A dot a device: its link over its computation, both logarithmic."""
    both = axes_for(ax)
    columns = (devices.computation_ms_per_sample, devices.communication_kbps)
    every = -(-len(devices) // MOST_POINTS)
    both.plot(
        columns[0][::every], columns[1][::every], ".", markersize=2, alpha=0.4, color=PALETTE[0],
        rasterized=True,
    )  # fmt: skip
    both.set(xscale="log", yscale="log")
    _few_ticks(both)
    _label(both, _COMPUTATION, _COMMUNICATION)
    if every > 1:
        both.set_title(f"one device in {every}", fontsize=9, color="0.35")
    return both


def _figure(title: str) -> Figure:
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    return figure


def _few_ticks(axes: Axes) -> None:
    """Numbers written out on a logarithmic axis: powers of ten, over less than two 2 and 5 too."""
    low, high = np.log10(axes.dataLim.intervalx)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high - low < 2 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _cdf(axes: Axes, values: NDArray[np.float64]) -> None:
    """The empirical distribution function as steps, at no more than so many of its points."""
    if not len(values):
        axes.text(0.5, 0.5, "no session", ha="center", transform=axes.transAxes)
        return
    ordered = np.sort(values)
    at = np.unique(np.linspace(0, len(ordered) - 1, MOST_POINTS).round().astype(np.int64))
    axes.step(
        ordered[at], 100 * (at + 1) / len(ordered), where="post", color=PALETTE[0],
        linewidth=1.5,
    )  # fmt: skip
    axes.set_ylim(0, 101)
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    style_axes(axes)
