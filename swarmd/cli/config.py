"""`swarmd config`: what is set, and where it comes from."""

from __future__ import annotations

import json

import typer

from conf.load import describe
from swarmd.cli import tables
from swarmd.cli.options import AsJson, ConfigFile, Settings, load_configuration

config_app = typer.Typer(name="config", help="Look at the configuration.", no_args_is_help=True)


@config_app.command()
def show(as_json: AsJson = False, config: ConfigFile = None, settings: Settings = None) -> None:
    """Show every setting, its value and where it comes from: flag, environment, file and line, or default."""
    rows = describe(load_configuration(config, settings))
    if as_json:
        found = {key: {"value": value, "source": source} for key, value, source in rows}
        print(json.dumps({"ok": True, "settings": found}, ensure_ascii=False))
    else:
        tables.show(tables.grid(("key", "value", "from"), rows))
