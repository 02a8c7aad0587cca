"""Ed25519 keys: of the publisher of a registry, and of a host. One file format and one set of checks for both.

A key file holds the 32-byte seed (RFC 8032) as standard base64 and a newline.
"""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from pathlib import Path
from typing import ClassVar

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from registry.canonical import strict_base64

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
_SEED_BYTES = 32
_FILE_LIMIT = 1024


class KeyFileError(Exception):
    """Others can read or replace the key file, or it cannot be used at all. Do what the text says, mostly `chmod 600 PATH`."""

    code: ClassVar[str] = "key_file_unsafe"


class KeyFileMissingError(KeyFileError):
    """There is no key file. Check the path; `swarmd init` and `swarmd join` create the host's key."""

    code = "key_file_missing"


class KeyFileInvalidError(KeyFileError):
    """The file does not hold a key. Restore it from a backup, or move it away to have a new key (a new identity) made."""

    code = "key_file_invalid"


class KeyFileExistsError(KeyFileError):
    """A key is never overwritten. Move the file away first if you mean to give it up."""

    code = "key_file_exists"


def create_key(path: Path) -> SigningKey:
    """Create a new key file (0600; a missing parent directory is made 0700) and return its key.

    The file appears complete or not at all, and is on disk when this returns.

    Raises:
        KeyFileExistsError: something is there already; it is left as it is.
        KeyFileError: the file system refuses; the text says why.

    """
    key = SigningKey.generate()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFileError(f"cannot make the directory of the key file {path}: {error.strerror}") from error
    try:
        _write_new(path, base64.b64encode(bytes(key)) + b"\n")
    except FileExistsError as error:
        raise KeyFileExistsError(
            f"{path} exists already: a key is never overwritten, move it away first"
        ) from error
    except OSError as error:
        raise KeyFileError(f"cannot create the key file {path}: {error.strerror}") from error
    return key


def load_key(path: Path) -> SigningKey:
    """Read a key file.

    Raises:
        KeyFileMissingError: there is none.
        KeyFileError: it is not a plain file of ours alone.
        KeyFileInvalidError: it does not hold a key.

    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise KeyFileMissingError(f"there is no key file {path}") from error
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror or error}") from error
    try:
        _refuse_unsafe(path, os.fstat(descriptor))
        content = os.read(descriptor, _FILE_LIMIT + 1)
    finally:
        os.close(descriptor)
    return _parse_key(path, content)


def load_or_create_key(path: Path) -> SigningKey:
    """Read a key file, or create it when there is none. Raises what load_key and create_key raise."""
    try:
        return load_key(path)
    except KeyFileMissingError:
        pass
    try:
        return create_key(path)
    except KeyFileExistsError:  # another process was faster: its key counts
        return load_key(path)


def public_key_text(key: SigningKey | VerifyKey) -> str:
    """Return the public key as standard base64 of its 32 raw bytes, the form in which it is pinned."""
    public = key.verify_key if isinstance(key, SigningKey) else key
    return base64.b64encode(bytes(public)).decode()


def sign(key: SigningKey, data: bytes) -> bytes:
    """Return the 64-byte Ed25519 signature of `data`."""
    return bytes(key.sign(data).signature)


def verify(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Tell whether `signature` is the key's signature of `data`. Wrong lengths and points off the curve are simply False."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(public_key).verify(data, signature)
    except BadSignatureError:
        return False
    return True


def _write_new(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600, O_EXCL
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.link(temporary, path)  # unlike a rename, it never replaces what is there
    finally:
        os.unlink(temporary)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_unsafe(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"the key file {path} is not a plain file")
    if status.st_uid != os.geteuid():
        raise KeyFileError(
            f"the key file {path} belongs to user {status.st_uid}, not to us (user {os.geteuid()}): "
            f"run as that user, or `chown {os.geteuid()} {path}`"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyFileError(f"the key file {path} is open to others (mode {mode:04o}): run `chmod 600 {path}`")


def _parse_key(path: Path, content: bytes) -> SigningKey:
    try:
        if len(content) > _FILE_LIMIT:
            raise ValueError("it is too long")
        return SigningKey(strict_base64(content.decode("ascii").strip(), _SEED_BYTES))
    except ValueError as error:
        raise KeyFileInvalidError(
            f"the key file {path} does not hold a key ({error}): restore it, or move it away to have a new one made"
        ) from error
