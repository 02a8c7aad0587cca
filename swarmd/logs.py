"""Logging: structlog for us, the standard library's loggers of everybody else through the same handler, to stderr."""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from swarmd.printable import printable

OUR_LOGGERS = ("swarmd", "runtimes")
_SELF_HANDLED = (
    "libp2p",
    "transformers",
    "huggingface_hub",
)  # they install handlers of their own when imported
_PEER_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{38}([1-9A-HJ-NP-Za-km-z]{6})")


def configure(level: str, format: str, stream: TextIO | None = None) -> None:  # noqa: A002 - the setting's name
    """Route all logging to one handler. Call before libp2p is imported: it logs to the root logger as it likes.

    Calling again replaces the former setting.

    Args:
        level: "debug", "info", "warning" or "error": for swarmd's own loggers. Libraries speak from warning on.
        format: "console", "json" or "auto" (console where the stream is a terminal).
        stream: where to write; stderr by default.

    """
    out = sys.stderr if stream is None else stream
    is_console = out.isatty() if format == "auto" else format == "console"
    # Ours and foreign records pass the same processors, so that both come out alike.
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if is_console else "iso", utc=not is_console, key="ts"
        ),
        structlog.processors.StackInfoRenderer(),
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_console(out) if is_console else _json()),
            ],
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # On the handler, since libraries set the levels of their own loggers as they like.
    foreign = max(threshold, logging.WARNING)
    handler.addFilter(lambda record: _is_ours(record.name) or record.levelno >= foreign)
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(foreign)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(threshold)
    logging.captureWarnings(True)
    adopt_libraries()


def adopt_libraries() -> None:
    """Route libraries that installed handlers of their own through ours. Call after importing one of them."""
    for name in _SELF_HANDLED:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def for_people(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Shorten PeerIds, so that a line stays readable, and defuse control characters that came from elsewhere."""
    return {key: _readable(value) for key, value in event.items()}


def short_peer(text: str) -> str:
    """Return the text with each PeerId in it shortened to "…" and its last six characters."""
    return _PEER_ID.sub(r"…\1", text)


def _is_ours(logger: str) -> bool:
    return logger.partition(".")[0] in OUR_LOGGERS


def _readable(value: object) -> object:
    if isinstance(value, str):
        return short_peer(printable(value.rstrip()))
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value


def _console(out: TextIO) -> list[Processor]:
    colors = out.isatty() and "NO_COLOR" not in os.environ
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors,
        timestamp_key="ts",
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [for_people, renderer]


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
    ]
