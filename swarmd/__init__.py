"""swarmd: the daemon. The only room that does I/O on the network."""

__version__ = "0.1.0"
