"""The state directory: where a host keeps its identity, its incarnation counter and what it remembers of others."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nacl.signing import SigningKey

from registry.keys import load_or_create_key
from ring.identity import PeerId, peer_id_of

_MAX_INCARNATION = 2**53


class StateDirError(Exception):
    """The state directory cannot be used. Free the disk, mend its permissions or set `state.dir` elsewhere."""

    code: ClassVar[str] = "state_dir_unusable"


@dataclass(frozen=True, slots=True)
class HostKey:
    """The host's Ed25519 key: it is the libp2p identity and signs announcements, plans and receipts."""

    signing_key: SigningKey

    @property
    def public_key(self) -> bytes:
        """The raw 32 bytes of the public key."""
        return bytes(self.signing_key.verify_key)

    @property
    def peer(self) -> PeerId:
        """The PeerId that this key is."""
        return peer_id_of(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """Return the raw 64-byte signature of data."""
        return self.signing_key.sign(data).signature


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths below `state.dir`, and the small files in it. Every write replaces its file atomically."""

    path: Path

    @classmethod
    def prepare(cls, path: Path) -> StateDir:
        """Create the directory (0700) if need be.

        Raises:
            StateDirError: it cannot be created or written.

        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateDirError(f"state.dir {path} cannot be created: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise StateDirError(f"state.dir {path} is not writable by this user")
        return cls(path)

    def host_key(self) -> HostKey:
        """Return the host's key, created on first use. Raises registry.keys.KeyFileError."""
        return HostKey(load_or_create_key(self.path / "identity.key"))

    def next_incarnation(self) -> int:
        """Count this start of the daemon: a restarted host outranks what is still said of its former self."""
        file = self.path / "incarnation"
        try:
            former = int(file.read_text())
        except FileNotFoundError:
            former = 0
        except OSError as error:
            raise StateDirError(f"{file} cannot be read: {error.strerror}") from error
        except ValueError:
            former = -1
        if not 0 <= former < _MAX_INCARNATION:
            raise StateDirError(
                f"{file} does not hold a count of starts: write a number there, larger than any before and below 2^53"
            )
        self._replace(file, f"{former + 1}\n")
        return former + 1

    def remembered_peers(self) -> dict[str, object]:
        """Return the address book saved by an earlier run; a damaged file is set aside, never fatal."""
        file = self.path / "peers.json"
        try:
            book = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            with contextlib.suppress(OSError):
                file.rename(file.with_suffix(".damaged"))
            return {}
        return book if isinstance(book, dict) else {}

    def remember_peers(self, book: Mapping[str, object]) -> None:
        """Save the address book."""
        self._replace(self.path / "peers.json", json.dumps(book, indent=1))

    def _replace(self, file: Path, text: str) -> None:
        draft = file.with_name(file.name + ".new")
        try:
            with draft.open("w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
        except OSError as error:
            raise StateDirError(f"{file} cannot be written: {error.strerror}") from error
