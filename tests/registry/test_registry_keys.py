from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from registry import keys
from registry.keys import (
    KeyFileError,
    KeyFileExistsError,
    KeyFileInvalidError,
    KeyFileMissingError,
    create_key,
    load_key,
    load_or_create_key,
    public_key_text,
    sign,
    verify,
)

KEY = SigningKey(bytes(range(32)))


def test_a_created_key_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity.key"
    key = create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_key(path) == key
    assert os.listdir(path.parent) == ["identity.key"]


def test_a_key_file_holds_the_seed_as_base64_and_a_newline(tmp_path: Path) -> None:
    key = create_key(tmp_path / "k")
    assert (tmp_path / "k").read_bytes() == base64.b64encode(bytes(key)) + b"\n"


def test_an_existing_directory_keeps_its_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    create_key(tmp_path / "k")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"precious")
    with pytest.raises(KeyFileExistsError, match="never overwritten"):
        create_key(path)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["k"]


def test_a_dangling_link_is_not_followed_when_a_key_is_created(tmp_path: Path) -> None:
    (tmp_path / "k").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileExistsError):
        create_key(tmp_path / "k")
    assert not (tmp_path / "elsewhere").exists()


def test_a_crash_before_the_key_is_on_disk_leaves_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyFileError, match="No space left"):
        create_key(tmp_path / "k")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match=r"cannot make the directory of the key file .*file/k"):
        create_key(tmp_path / "file" / "k")


def test_loading_or_creating_gives_the_same_key_ever_after(tmp_path: Path) -> None:
    path = tmp_path / "k"
    assert load_or_create_key(path) == load_or_create_key(path)


def test_the_process_that_creates_the_key_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k"

    def create_after_another(target: Path) -> SigningKey:
        target.write_bytes(base64.b64encode(bytes(KEY)) + b"\n")
        target.chmod(0o600)
        return create_key(target)

    monkeypatch.setattr(keys, "create_key", create_after_another)
    assert load_or_create_key(path) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_key_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    create_key(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {path}") as caught:
        load_key(path)
    assert caught.value.code == "key_file_unsafe"


def test_a_key_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k"
    create_key(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(KeyFileError, match="belongs to user"):
        load_key(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileMissingError, match=str(tmp_path / "k")):
        load_key(tmp_path / "k")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"garbage\n",
        base64.b64encode(bytes(31)),
        base64.b64encode(bytes(64)),
        base64.b64encode(bytes(32)) + b"\nmore",
        bytes(32),
        b"A" * 5000,
    ],
)
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileInvalidError, match="does not hold a key"):
        load_key(path)


def test_what_is_not_a_plain_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(KeyFileError, match="not a plain file"):
            load_key(path)


def test_the_public_key_is_told_as_base64_of_its_raw_bytes() -> None:
    assert (
        public_key_text(KEY)
        == base64.b64encode(bytes(KEY.verify_key)).decode()
        == public_key_text(KEY.verify_key)
    )


def test_a_signature_agrees_with_rfc_8032() -> None:
    # RFC 8032, section 7.1, test 2.
    key = SigningKey(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert bytes(key.verify_key).hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    expected = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert sign(key, b"\x72").hex() == expected
    assert verify(bytes(key.verify_key), bytes.fromhex(expected), b"\x72")


@given(st.binary(max_size=64), st.integers(0, 511))
def test_a_signature_is_good_for_its_bytes_and_key_alone(data: bytes, bit: int) -> None:
    public, signature = bytes(KEY.verify_key), sign(KEY, data)
    assert verify(public, signature, data)
    assert not verify(public, signature, data + b"x")
    assert not verify(bytes(SigningKey(bytes(32)).verify_key), signature, data)
    forged = bytearray(signature)
    forged[bit // 8] ^= 1 << bit % 8
    assert not verify(public, bytes(forged), data)


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_garbage_is_no_signature_and_raises_nothing(public: bytes, signature: bytes) -> None:
    assert not verify(public, signature, b"data")
    assert not verify(bytes(KEY.verify_key), signature, b"data")
