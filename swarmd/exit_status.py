"""Exit statuses of the command line, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a shell script can tell apart. docs/commands.md lists them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    IDENTITY = 4
    REGISTRY = 5
    NETWORK = 6
    MODEL = 7
    DAEMON = 8
    INTERRUPTED = 130


MEANINGS = {
    ExitStatus.OK: "done",
    ExitStatus.FAILED: "a check or a generation failed",
    ExitStatus.USAGE: "wrong usage of a command",
    ExitStatus.CONFIGURATION: "configuration is invalid",
    ExitStatus.IDENTITY: "identity, key file or state directory cannot be used",
    ExitStatus.REGISTRY: "the model registry was refused",
    ExitStatus.NETWORK: "network: port in use, address invalid",
    ExitStatus.MODEL: "model, checkpoint or memory",
    ExitStatus.DAEMON: "no daemon is running, or one is running already",
    ExitStatus.INTERRUPTED: "interrupted",
}

_BY_CODE = {
    "usage": ExitStatus.USAGE,
    "socket_path_too_long": ExitStatus.CONFIGURATION,
    "state_dir_unusable": ExitStatus.IDENTITY,
    "state_dir_unsafe": ExitStatus.IDENTITY,
    "libp2p_mismatch": ExitStatus.NETWORK,
    "mdns_unavailable": ExitStatus.NETWORK,
    "signature_bad": ExitStatus.REGISTRY,
    "model_unknown": ExitStatus.REGISTRY,
    "checkpoint_missing": ExitStatus.MODEL,
    "checkpoint_bad": ExitStatus.MODEL,
    "model_unsupported": ExitStatus.MODEL,
    "memory_exceeded": ExitStatus.MODEL,
    "tokenizer_bad": ExitStatus.MODEL,
    "not_running": ExitStatus.DAEMON,
    "already_running": ExitStatus.DAEMON,
    "control_denied": ExitStatus.DAEMON,
    "control_protocol": ExitStatus.DAEMON,
    "interrupted": ExitStatus.INTERRUPTED,
}

# Rooms add errors to these families, whose members share a beginning.
_BY_PREFIX = {
    "config_": ExitStatus.CONFIGURATION,
    "key_file_": ExitStatus.IDENTITY,
    "registry_": ExitStatus.REGISTRY,
    "address_": ExitStatus.NETWORK,
    "listen_": ExitStatus.NETWORK,
    "net_": ExitStatus.NETWORK,
    "runtime_": ExitStatus.MODEL,
    "import_": ExitStatus.MODEL,
}


def status_of(code: str) -> ExitStatus:
    """Return the exit status of an error code; what is not listed is a plain failure."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    families = (status for prefix, status in _BY_PREFIX.items() if code.startswith(prefix))
    return next(families, ExitStatus.FAILED)
