"""The command line: one thin module per command, one place that turns exceptions into a line and an exit status."""

from swarmd.cli.run import main

__all__ = ["main"]
