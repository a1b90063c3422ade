"""The figures of a report, by section; one that would be empty is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.accuracy_plots import (
    plot_accuracy_against_bytes,
    plot_accuracy_against_device_time,
    plot_accuracy_against_versions,
    plot_time_to_accuracy,
)
from analysis.client_plots import plot_clients_over_day, plot_fairness, plot_participation
from analysis.client_timeline import plot_client_timeline, plot_presence
from analysis.cohorts import cohort_figures
from analysis.comparison import Comparison
from analysis.comparison_plots import plot_speed_ups
from analysis.errors import AnalysisError
from analysis.inline_figures import inline_svg, settle
from analysis.participation_plots import plot_round_durations, plot_staleness, plot_wasted_work
from analysis.parts import part_figures
from analysis.run_reader import Run
from analysis.runs import Group
from analysis.superclients import superclient_figures

WIDTH_IN, HEIGHT_IN = 4.8, 3.4  # narrow, so that a phone need not shrink the letters much
MOST_SCENARIOS = 6  # of which there is a figure each

CAPTIONS = {
    "superclients.png": "Superclients: how many clients each has, and how well it stands for all.",
    "similarity.png": "How alike pre-trained models are, pair by pair of clients.",
    "walkers.png": "Chains: where each model was trained, and when it came back.",
    "layers.png": "The layers of the model, how far clients diverge in each, and its part.",
    "bytes.png": "Bytes by part of the model.",
    "bytes_to_accuracy.png": "Test accuracy over bytes.",
    "cohorts.png": "The tree of cohorts over simulated time; the wider a branch, the more clients.",
    "memberships.png": "From which cohort to which the clients went.",
    "clustering.png": "How well cohorts fit their clients, and what their updates tell.",
    "affinity.png": "Rewards that clients were told.",
    "fairness.png": "The model's accuracy on each client, by cohort.",
}
"""By the file that ``fedclock run`` writes of the figure."""


@dataclass(slots=True)
class HtmlFigure:
    """An inline figure with its caption; a ``wide`` one has the page's width."""

    svg: Markup
    caption: str
    wide: bool = False


@dataclass(slots=True)
class Section:
    """A part of the page; ``notes`` say what is left out and why."""

    key: str
    title: str
    figures: list[HtmlFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, draw: Callable[[Axes], Axes], alt: str, caption: str, height_in: float) -> None:
        """A figure of the usual width, or the reason why there is none."""
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        try:
            axes = draw(figure.add_subplot())
        except AnalysisError as error:
            # The page names the runs elsewhere.
            self.notes.append(f"{alt}: {str(error).partition(' (')[0]}")
            return
        settle(axes)
        self._keep(figure, alt, caption, wide=False)

    def add_whole(self, draw: Callable[[], Figure], alt: str, caption: str) -> None:
        """A figure as it is."""
        try:
            figure = draw()
        except AnalysisError as error:
            self.notes.append(f"{alt}: {error}")
            return
        self._keep(figure, alt, caption, wide=True)

    def _keep(self, figure: Figure, alt: str, caption: str, *, wide: bool) -> None:
        key = f"{self.key}-{len(self.figures)}"
        self.figures.append(HtmlFigure(inline_svg(figure, key, alt), caption, wide))


def accuracy_section(runs: Sequence[Run], found: Comparison | None, sustain: int) -> Section:
    """Test accuracy over what it has cost."""
    section = Section("accuracy", "Accuracy")
    targets = () if found is None or found.metric != "accuracy" else (found.target,)
    band = "Thin: each seed; thick: their mean; shaded: from least to greatest."
    dots = " A dot: a run reaches the target and holds it." if targets else ""
    for plot, over in (
        (plot_time_to_accuracy, "simulated time"),
        (plot_accuracy_against_bytes, "bytes sent"),
        (plot_accuracy_against_versions, "versions (rounds)"),
        (plot_accuracy_against_device_time, "device time"),
    ):
        section.add(
            lambda ax, plot=plot: plot(runs, ax, targets=targets, sustain=sustain),  # type: ignore[misc]
            f"Test accuracy over {over}", f"Test accuracy over {over}. {band}{dots}", HEIGHT_IN,
        )  # fmt: skip
    if found is not None and len(found.rows) > 1:
        section.add(
            lambda ax: plot_speed_ups(found, ax), "Speed-ups over the baseline",
            "Speed-ups over the baseline with 95 % intervals; a dot is a pair of seeds, an arrow a "
            "bound.", HEIGHT_IN,
        )  # fmt: skip
    return section


def work_section(groups: Sequence[Group], runs: Sequence[Run]) -> Section:
    """How long things took, how stale they came, and what was in vain."""
    section = Section("rounds", "Rounds and work")
    for group in groups[:MOST_SCENARIOS]:
        section.add(
            lambda ax, group=group: plot_round_durations(group.runs, ax),  # type: ignore[misc]
            f"Durations of rounds and phases, {group.label}",
            f"{group.label}: the share of rounds, downloads, trainings and uploads that took no "
            "longer; all seeds.", HEIGHT_IN,
        )  # fmt: skip
    _tell_left_out(section, groups)
    section.add(
        lambda ax: plot_staleness(runs, ax), "Staleness of updates",
        "Staleness: how many versions were made while an update was on its way.", HEIGHT_IN,
    )  # fmt: skip
    section.add(
        lambda ax: plot_wasted_work(runs, ax), "Useful and wasted device time",
        "Device time by what became of it; all but reported and unfinished is wasted.",
        1.3 + 0.45 * len(groups),
    )  # fmt: skip
    return section


def clients_section(runs: Sequence[Run]) -> Section:
    """Who took part, who is served, and who was there."""
    section = Section("clients", "Clients")
    section.add(
        lambda ax: plot_participation(runs, ax), "Participation over clients",
        "Lorenz curve of reported updates: on the dashed diagonal all clients report as often.",
        HEIGHT_IN,
    )  # fmt: skip
    section.add(
        lambda ax: plot_fairness(runs, ax), "Accuracy over clients",
        "Fairness: the share of clients whose last accuracy on their own samples is no higher.",
        HEIGHT_IN,
    )  # fmt: skip
    section.add(
        lambda ax: plot_presence(runs, ax), "Clients online and at work over simulated time",
        "Clients online (dashed) and at work, in the first seed of each scenario.", HEIGHT_IN,
    )  # fmt: skip
    section.add(
        lambda ax: plot_clients_over_day(runs, ax), "Clients at work over the day",
        "Clients at work by hour of the simulated day.", HEIGHT_IN,
    )  # fmt: skip
    return section


def timeline_section(groups: Sequence[Group]) -> Section:
    """What clients did, of the first seed of each scenario."""
    section = Section("timelines", "Client timelines")
    for group in groups[:MOST_SCENARIOS]:
        section.add_whole(
            lambda group=group: _whole(plot_client_timeline(group.runs[0])),  # type: ignore[misc]
            f"Timeline of clients, {group.label}, seed {group.runs[0].seed}",
            f"{group.label}, seed {group.runs[0].seed}: some clients, a row each. All of it is in "
            "fedclock export --to perfetto.",
        )  # fmt: skip
    _tell_left_out(section, groups)
    return section


def _whole(axes: Axes) -> Figure:
    settle(axes)
    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure


def structure_section(groups: Sequence[Group]) -> Section:
    """Cohorts, superclients and parts, where a scenario has some; of its first seed."""
    section = Section("structure", "Structure")
    for group in groups[:MOST_SCENARIOS]:
        run = group.runs[0]
        for figures in (cohort_figures, superclient_figures, part_figures):
            try:
                found = figures(run)
            except AnalysisError as error:
                section.notes.append(str(error))
                continue
            for file, figure in found.items():
                section.add_whole(
                    lambda figure=figure: figure,  # type: ignore[misc]
                    f"{CAPTIONS[file].split(':')[0].rstrip('.')}, {group.label}",
                    f"{group.label}, seed {run.seed}: {CAPTIONS[file]}",
                )
    return section


def _tell_left_out(section: Section, groups: Sequence[Group]) -> None:
    if len(groups) > MOST_SCENARIOS:
        section.notes.append(f"the first {MOST_SCENARIOS} of {len(groups)} scenarios are shown")
