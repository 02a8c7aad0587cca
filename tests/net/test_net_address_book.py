from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ring.identity import PeerId, peer_id_of
from swarmd.net import AddressBook, AddressInvalid, split_peer
from swarmd.net.addresses import advertised, parse, parse_listen

OWN = peer_id_of(bytes(32))
PEERS = [peer_id_of(bytes([number]) * 32) for number in range(1, 4)]


class Book(RuleBasedStateMachine):
    """The book against what it was told."""

    used = Bundle("used")

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0
        self.book = AddressBook(OWN, now=lambda: self.clock)
        self.given: dict[PeerId, set[str]] = {peer: set() for peer in PEERS}

    @rule(target=used, peer=st.sampled_from(PEERS), port=st.integers(1, 40))
    def add(self, peer: PeerId, port: int) -> tuple[PeerId, str]:
        address = f"/ip4/192.0.2.1/tcp/{port}"
        assert self.book.add(peer, [f"{address}/p2p/{peer}", "/ip4/0.0.0.0/tcp/9", "junk"]) == (address,)
        self.given[peer].add(address)
        return peer, address

    @rule(what=used)
    def succeed(self, what: tuple[PeerId, str]) -> None:
        self.clock += 1
        self.book.succeeded(*what)
        assert self.book.addresses(what[0])[0] == what[1]

    @rule(what=used)
    def fail(self, what: tuple[PeerId, str]) -> None:
        self.book.failed(*what)

    @rule()
    def own(self) -> None:
        assert self.book.add(OWN, ["/ip4/192.0.2.1/tcp/1"]) == ()

    @rule()
    def persist(self) -> None:
        saved = json.loads(json.dumps(self.book.to_dict()))
        again = AddressBook(OWN, now=lambda: self.clock)
        again.load(saved)
        assert again.to_dict() == self.book.to_dict()
        self.book = again

    @invariant()
    def bounded_and_true(self) -> None:
        assert OWN not in self.book.peers()
        for peer in self.book.peers():
            addresses = self.book.addresses(peer)
            assert 0 < len(addresses) <= 16
            assert set(addresses) <= self.given[peer]


TestBook = Book.TestCase


def test_the_number_of_peers_is_bounded_and_the_longest_untouched_goes_first() -> None:
    book = AddressBook(OWN)
    peers = [peer_id_of(number.to_bytes(32, "big")) for number in range(1, 4100)]
    for peer in peers:
        book.add(peer, ["/ip4/192.0.2.1/tcp/1"])
    assert len(book.peers()) == 4096
    assert peers[0] not in book.peers()
    assert peers[-1] in book.peers()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from([*map(str, PEERS), "junk"]), json_values))
def test_any_saved_book_is_loaded_as_far_as_it_is_sound(saved: dict[str, object]) -> None:
    book = AddressBook(OWN)
    book.load(saved)
    assert book.peers() == ()


def test_saved_facts_that_are_not_sound_count_as_unknown() -> None:
    book = AddressBook(OWN)
    book.load({PEERS[0]: {"/ip4/192.0.2.1/tcp/1": {"last_success": "soon", "failures": -3}}})
    facts = book.to_dict()[PEERS[0]]["/ip4/192.0.2.1/tcp/1"]
    assert facts == {"last_success": 0.0, "failures": 0}


@pytest.mark.parametrize(
    ("given_address", "normal"),
    [
        ("/ip4/192.0.2.7/tcp/4001", "/ip4/192.0.2.7/tcp/4001"),
        (f"/ip4/192.0.2.7/tcp/4001/p2p/{PEERS[0]}", "/ip4/192.0.2.7/tcp/4001"),
        ("/ip6/2001:DB8::7/tcp/1", "/ip6/2001:db8::7/tcp/1"),
        ("/dns4/host.example/tcp/4001", "/dns4/host.example/tcp/4001"),
    ],
)
def test_an_address_has_one_normal_form(given_address: str, normal: str) -> None:
    assert parse(given_address, PEERS[0]) == normal


@pytest.mark.parametrize(
    "address",
    [
        "",
        "192.0.2.7:4001",
        "/ip4/192.0.2.7",
        "/ip4/999.0.2.7/tcp/4001",
        "/ip4/192.0.2.7/tcp/70000",
        "/ip4/192.0.2.7/udp/4001",
        "/ip4/192.0.2.7/tcp/4001/ws",
        "/ip4/0.0.0.0/tcp/4001",
        "/ip6/::/tcp/4001",
        "/ip4/192.0.2.7/tcp/0",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{PEERS[1]}",
        "/ip4/192.0.2.7/tcp/4001/p2p/junk",
        "/dns4/" + 300 * "x" + "/tcp/1",
    ],
)
def test_an_address_that_cannot_be_dialled_is_refused_by_value(address: str) -> None:
    with pytest.raises(AddressInvalid, match="address "):
        parse(address, PEERS[0])


@given(st.text())
def test_any_text_is_an_address_or_invalid(text: str) -> None:
    try:
        parse("/ip4/" + text)
    except AddressInvalid:
        return


def test_a_full_address_splits_into_peer_and_place() -> None:
    assert split_peer(f"/ip4/192.0.2.7/tcp/1/p2p/{PEERS[0]}") == (PEERS[0], "/ip4/192.0.2.7/tcp/1")
    with pytest.raises(AddressInvalid, match="lacks the peer"):
        split_peer("/ip4/192.0.2.7/tcp/1")


def test_only_an_ip_address_can_be_listened_on() -> None:
    assert parse_listen("/ip4/0.0.0.0/tcp/0") == ("0.0.0.0", 0)  # noqa: S104 - parsed only
    with pytest.raises(AddressInvalid):
        parse_listen("/dns4/localhost/tcp/1")


def test_loopback_is_advertised_only_if_it_was_asked_for_or_is_all_there_is() -> None:
    assert advertised([("127.0.0.1", 1)], [], OWN) == (f"/ip4/127.0.0.1/tcp/1/p2p/{OWN}",)
    both = advertised([("127.0.0.1", 1), ("192.0.2.1", 2)], ["/dns4/x/tcp/3"], OWN)
    assert both == tuple(
        f"{address}/p2p/{OWN}"
        for address in ("/dns4/x/tcp/3", "/ip4/192.0.2.1/tcp/2", "/ip4/127.0.0.1/tcp/1")
    )
