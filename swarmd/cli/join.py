"""`swarmd join`: run the daemon in the foreground."""

from __future__ import annotations

from typing import Annotated

import trio
import typer

from swarmd import logs
from swarmd.cli.options import ConfigFile, Settings, load_configuration


def join(
    multiaddrs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MULTIADDR",
            help="Hosts to join through, as `swarmd ctl status` prints there. They replace swarm.bootstrap.",
        ),
    ] = None,
    swarm: Annotated[str | None, typer.Option("--swarm", metavar="NAME", help="swarm.name")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="MULTIADDR", help="swarm.listen. May be repeated."),
    ] = None,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option("--bootstrap", metavar="MULTIADDR", help="The same as MULTIADDR. May be repeated."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="ID", help="model.id")] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="SIZE", help='runtime.memory_limit, such as "6GiB".'),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Join a swarm, or found one: run the daemon until Ctrl-C."""
    given = {
        "swarm.name": swarm,
        "swarm.listen": ",".join(listen or ()) or None,
        "swarm.bootstrap": ",".join([*(multiaddrs or ()), *(bootstrap or ())]) or None,
        "model.id": model,
        "runtime.memory_limit": memory_limit,
    }
    flags = {key: text for key, text in given.items() if text is not None}
    loaded = load_configuration(config, settings, flags)
    logs.configure(loaded.config.log.level, loaded.config.log.format)

    from swarmd.daemon import run_daemon  # imports libp2p, which takes seconds and logs as it likes

    logs.adopt_libraries()
    trio.run(run_daemon, loaded)
