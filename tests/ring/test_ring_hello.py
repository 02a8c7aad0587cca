from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from ring.announcement import MAX_BYTES
from ring.envelope import OVERHEAD
from ring.fields import FieldError, pack, unpack_map
from ring.hello import (
    MAX_HELLO_BYTES,
    WIRE,
    Hello,
    HelloError,
    HelloRefused,
    SwarmMismatch,
    VersionMismatch,
    receive,
    to_map,
)
from ring.identity import peer_id_of

PEERS = [peer_id_of(bytes(SigningKey(bytes([n]) * 32).verify_key)) for n in range(64)]
MINE = Hello(WIRE, "0.1.0", "home", None, ())

words = st.text(st.characters(exclude_categories=("C", "Z")), max_size=64)
hellos = st.builds(
    Hello,
    wire=st.just(WIRE),
    version=words,
    swarm=st.just("home"),
    announcement=st.none() | st.binary(max_size=100),
    peers=st.lists(
        st.tuples(st.sampled_from(PEERS), st.lists(words, max_size=16).map(tuple)), max_size=8
    ).map(tuple),
)


@given(hellos)
def test_a_hello_arrives_as_it_was_sent(hello: Hello) -> None:
    assert receive(MINE, unpack_map(pack(to_map(hello)), limit=MAX_HELLO_BYTES)) == hello


def test_the_largest_hello_keeps_to_the_bound() -> None:
    peers = tuple((peer, ("/" * 256,) * 16) for peer in PEERS)
    largest = Hello(2**31 - 1, "v" * 64, "s" * 64, b"a" * (MAX_BYTES + OVERHEAD), peers)
    assert len(pack(to_map(largest))) <= MAX_HELLO_BYTES


def test_another_wire_version_is_refused_with_both_versions_whatever_else_it_sends() -> None:
    with pytest.raises(
        VersionMismatch, match=r"swarmd 2\.3\.0 \(wire version 2\).*swarmd 0\.1\.0 \(wire version 1\)"
    ):
        receive(MINE, {"wire": 2, "version": "2.3.0", "swarm": "home", "new": {}})
    assert VersionMismatch.code == "version_mismatch"


def test_another_minor_version_with_keys_of_its_own_is_fine() -> None:
    theirs = replace(MINE, version="0.9.7")
    assert receive(MINE, to_map(theirs) | {"new": 1}) == theirs


def test_another_swarm_is_refused_with_both_names() -> None:
    with pytest.raises(SwarmMismatch, match=r"'away'.*'home'.*swarm\.name"):
        receive(MINE, to_map(replace(MINE, swarm="away")))
    assert SwarmMismatch.code == "swarm_mismatch"


@pytest.mark.parametrize("key", ["wire", "version", "swarm", "announcement", "peers"])
def test_a_missing_key_is_refused_by_name(key: str) -> None:
    fields = to_map(MINE)
    del fields[key]
    with pytest.raises(HelloError, match=f"{key} is missing"):
        receive(MINE, fields)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wire", "1"),
        ("wire", True),
        ("version", 1),
        ("version", "\x1b"),
        ("swarm", None),
        ("announcement", "text"),
        ("announcement", b"a" * (MAX_BYTES + OVERHEAD + 1)),
        ("peers", {}),
        ("peers", [[PEERS[0]]]),
        ("peers", [[PEERS[0], "/ip4"]]),
        ("peers", [["nobody", []]]),
        ("peers", [[PEERS[0], ["/" * 257]]]),
        ("peers", [[PEERS[0], ["/"] * 17]]),
        ("peers", [[PEERS[0], []]] * 65),
    ],
)
def test_a_bad_field_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(HelloError, match=f"hello: {key}"):
        receive(MINE, to_map(MINE) | {key: value})


def test_what_would_be_refused_is_not_sent() -> None:
    with pytest.raises(HelloError, match="peers has 65 entries"):
        to_map(replace(MINE, peers=((PEERS[0], ()),) * 65))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["wire", "version", "swarm", "announcement", "peers"]), values))
def test_any_map_is_accepted_or_refused_by_name(fields: dict[str, object]) -> None:
    try:
        hello = receive(MINE, to_map(MINE) | fields)
    except (HelloError, HelloRefused):
        return
    assert receive(MINE, to_map(hello)) == hello


@given(st.binary(max_size=200))
def test_any_bytes_are_a_map_or_a_field_error(data: bytes) -> None:
    try:
        fields = unpack_map(data, limit=1000)
    except FieldError:
        return
    assert all(isinstance(key, str) for key in fields)
