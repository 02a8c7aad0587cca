"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmd import __version__
from swarmd.cli.bench import bench
from swarmd.cli.config import config_app
from swarmd.cli.ctl import ctl_app
from swarmd.cli.demo import demo
from swarmd.cli.generate import generate
from swarmd.cli.init import init
from swarmd.cli.join import join
from swarmd.cli.models import models_app
from swarmd.cli.plan import plan
from swarmd.cli.probe import probe
from swarmd.exit_status import MEANINGS

_EPILOG = (
    "Exit status: " + "; ".join(f"{status.value} {meaning}" for status, meaning in MEANINGS.items()) + "."
)

app = typer.Typer(
    name="swarmd",
    help="Run a language model that no single one of your machines can hold.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def swarmd(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command; run.py reads --debug off the arguments."""


@app.command()
def version() -> None:
    """Print the version."""
    print(f"swarmd {__version__}")


app.command()(init)
app.command()(join)
app.command()(generate)
app.command()(plan)
app.command()(probe)
app.add_typer(ctl_app)
app.add_typer(config_app)
app.add_typer(models_app)
app.command()(demo)
app.command()(bench)
