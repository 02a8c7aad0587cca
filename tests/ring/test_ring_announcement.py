from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from ring.announcement import (
    MAX_BYTES,
    Announcement,
    AnnouncementError,
    BlockHeld,
    BlockState,
    SignedAnnouncement,
    decode,
    encode,
    signed,
    verified,
)
from ring.envelope import EnvelopeError, seal
from ring.fields import MAX_INTEGER
from ring.identity import peer_id_of

KEYS = [SigningKey(bytes([n]) * 32) for n in range(80)]
PEERS = sorted(peer_id_of(bytes(key.verify_key)) for key in KEYS)
KEY = KEYS[0]
SELF = peer_id_of(bytes(KEY.verify_key))

SAMPLE = Announcement(
    swarm="home",
    peer=SELF,
    incarnation=3,
    sequence=41,
    addresses=("/ip4/127.0.0.1/tcp/4710/p2p/" + SELF,),
    version="0.1.0",
    wire=1,
    state="member",
    seniority=2,
    leader=SELF,
    term=7,
    plan="a" * 32,
    device="cpu (2 threads)",
    memory_limit=8_000_000_000,
    memory_free=7_000_000_000,
    model="tale",
    layer_ns=((1, 250_000), (64, 4_000_000)),
    tail_ns=90_000,
    rtt_us=((PEERS[1], 310), (PEERS[2], 45_000)),
    block=BlockHeld("a" * 32, "tale", 0, 3, "serving", 100, 100),
    sessions=1,
)

GOLDEN = bytes.fromhex(
    "de0015a46164647291d9502f6970342f3132372e302e302e312f7463702f343731302f7032702f313244334b6f6f5744"
    "704a3741733742574177524d6675315655325743714e6a76713338374a45594b44426a346b78366e58544ea5626c6f63"
    "6b87a2686903a26c6f00a66c6f6164656464a56d6f64656ca474616c65a4706c616ed920616161616161616161616161"
    "6161616161616161616161616161616161616161a57374617465a773657276696e67a5746f74616c64a3646576af6370"
    "75202832207468726561647329a466726565cf00000001a13b8600a3696e6303a46c656164d934313244334b6f6f5744"
    "704a3741733742574177524d6675315655325743714e6a76713338374a45594b44426a346b78366e58544ea36c6e7392"
    "9201ce0003d0909240ce003d0900a36d656dcf00000001dcd65000a56d6f64656ca474616c65a470656572d934313244"
    "334b6f6f5744704a3741733742574177524d6675315655325743714e6a76713338374a45594b44426a346b78366e5854"
    "4ea4706c616ed9206161616161616161616161616161616161616161616161616161616161616161a37274749292d934"
    "313244334b6f6f5741334c50666f544b4e684e654d5a6d6d44546b38384a46356565623861393441394b514e594d3576"
    "61324e79cd013692d934313244334b6f6f5741615956616b4d797a6e734d7255624d3154504b556e64756a3274436651"
    "694d367a756a71516d6570657172cdafc8a373656e02a373657129a47365737301a57374617465a66d656d626572a573"
    "7761726da4686f6d65a47465726d07a3746e73ce00015f90a3766572a5302e312e30a47769726501"
)

small = st.integers(0, 2**31 - 1)
large = st.integers(0, MAX_INTEGER)
peers = st.sampled_from(PEERS)


def words(limit: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("C", "Z")), max_size=limit)


@st.composite
def blocks(draw: st.DrawFn) -> BlockHeld:
    lo, hi = sorted((draw(small), draw(small)))
    states: list[BlockState] = ["none", "loading", "ready", "serving"]
    state = draw(st.sampled_from(states))
    return BlockHeld(draw(words(64)), draw(words(128)), lo, hi, state, draw(large), draw(large))


@st.composite
def announcements(draw: st.DrawFn) -> Announcement:
    leader = draw(peers | st.just(""))
    return Announcement(
        swarm=draw(words(64)),
        peer=SELF,
        incarnation=draw(large),
        sequence=draw(large),
        addresses=tuple(draw(st.lists(words(256), max_size=16))),
        version=draw(words(64)),
        wire=draw(small),
        state=draw(st.sampled_from(["joining", "measuring", "standby", "member", "leaving"])),
        seniority=draw(large),
        leader=leader,
        term=draw(st.integers(1 if leader else 0, MAX_INTEGER)),
        plan=draw(words(64)),
        device=draw(words(128)),
        memory_limit=draw(large),
        memory_free=draw(large),
        model=draw(words(128)),
        layer_ns=tuple(
            sorted(draw(st.dictionaries(st.integers(1, 4096), st.integers(1, 2**50), max_size=16)).items())
        ),
        tail_ns=draw(large),
        rtt_us=tuple(sorted(draw(st.dictionaries(peers, large, max_size=64)).items())),
        block=draw(st.none() | blocks()),
        sessions=draw(small),
        uplink=draw(large),
        overhead_ns=draw(large),
        load_rate=draw(large),
    )


def _sign(data: bytes) -> bytes:
    return KEY.sign(data).signature


def _fields(**changes: Any) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(encode(SAMPLE)) | changes)
    return packed


def test_an_announcement_has_these_bytes() -> None:
    assert encode(SAMPLE) == GOLDEN


@given(announcements())
def test_what_is_encoded_decodes_to_the_same(announcement: Announcement) -> None:
    payload = encode(announcement)
    assert decode(payload) == announcement
    assert encode(decode(payload)) == payload


def test_a_signed_announcement_is_verified_and_keeps_its_bytes() -> None:
    data = signed(SAMPLE, _sign, bytes(KEY.verify_key))
    assert verified(data) == SignedAnnouncement(SAMPLE, data)


def test_the_largest_announcement_fits_in_an_envelope() -> None:
    full = dataclasses.replace(
        SAMPLE,
        addresses=("/" * 256,) * 16,
        rtt_us=tuple((peer, MAX_INTEGER) for peer in PEERS[:64]),
        layer_ns=tuple((width, MAX_INTEGER) for width in range(1, 17)),
        uplink=MAX_INTEGER,
        overhead_ns=MAX_INTEGER,
        load_rate=MAX_INTEGER,
    )
    assert verified(signed(full, _sign, bytes(KEY.verify_key))).announcement == full


def test_nobody_signs_for_another() -> None:
    stranger = KEYS[5]
    with pytest.raises(AnnouncementError, match="signs"):
        signed(SAMPLE, lambda data: stranger.sign(data).signature, bytes(stranger.verify_key))


def test_an_announcement_under_another_key_is_refused() -> None:
    stranger = KEYS[5]
    data = seal(
        "announcement", encode(SAMPLE), lambda d: stranger.sign(d).signature, bytes(stranger.verify_key)
    )
    with pytest.raises(AnnouncementError, match="has signed"):
        verified(data)


def test_a_key_of_a_newer_minor_version_is_ignored() -> None:
    assert decode(_fields(zz={"new": [1, 2.5, None]})) == SAMPLE


@pytest.mark.parametrize("key", sorted(msgpack.unpackb(encode(SAMPLE))))
def test_a_missing_key_is_refused_by_name(key: str) -> None:
    fields = msgpack.unpackb(encode(SAMPLE))
    del fields[key]
    with pytest.raises(AnnouncementError, match=f"{key} is missing"):
        decode(msgpack.packb(fields))


def test_what_an_older_host_does_not_say_is_zero_and_zero_is_not_said() -> None:
    told = dataclasses.replace(SAMPLE, uplink=1, overhead_ns=2, load_rate=3)
    assert decode(_fields(up=1, hop=2, load=3)) == decode(encode(told)) == told
    assert not {"up", "hop", "load"} & set(msgpack.unpackb(encode(SAMPLE)))


@pytest.mark.parametrize("wrong", [1.5, True, None, -1, 2**63, b"x", "x\n", "y" * 300, [[1]], {"a": 1}])
@pytest.mark.parametrize(
    "key", sorted(set(msgpack.unpackb(encode(SAMPLE))) - {"block"} | {"up", "hop", "load"})
)
def test_a_field_of_a_wrong_kind_is_refused_by_name(key: str, wrong: object) -> None:
    with pytest.raises(AnnouncementError, match=rf"announcement: {key}\b"):
        decode(_fields(**{key: wrong}))


BLOCK: dict[str, object] = msgpack.unpackb(encode(SAMPLE))["block"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"addr": ["/"] * 17}, "addr has 17 entries"),
        ({"addr": ["/" * 257]}, "addr has 257 characters"),
        ({"rtt": [[peer, 1] for peer in PEERS[:65]]}, "rtt has 65 entries"),
        ({"rtt": [[PEERS[2], 1], [PEERS[1], 1]]}, "rtt is not in ascending order"),
        ({"rtt": [[PEERS[2], 1], [PEERS[2], 1]]}, "rtt is not in ascending order"),
        ({"rtt": [[PEERS[2], 1, 2]]}, "rtt has 3 entries"),
        ({"rtt": [[PEERS[2]]]}, "rtt has 1 entries, not 2"),
        ({"rtt": [["12D3Koo", 1]]}, "rtt: '12D3Koo' is not the PeerId"),
        ({"lns": [[8, 1], [8, 1]]}, "lns is not in ascending order"),
        ({"lns": [[0, 1]]}, "lns is 0"),
        ({"peer": SELF + " "}, "not the usual spelling"),
        ({"lead": SELF, "term": 0}, "term is 0"),
        ({"state": "asleep"}, "state is 'asleep', not one of joining"),
        ({"dev": "\x1b[31m"}, "cannot be printed"),
        ({"block": 5}, "block is 5, not a map"),
        ({"block": {}}, "lo is missing"),
        ({"block": BLOCK | {"hi": -1}}, "block.hi is -1"),
        ({"block": BLOCK | {"lo": 9}}, "block.hi is 3, not in .9"),
        ({"block": BLOCK | {"state": "lost"}}, "block.state is 'lost'"),
    ],
)
def test_a_field_out_of_range_is_refused_with_its_value(changes: dict[str, object], says: str) -> None:
    with pytest.raises(AnnouncementError, match=says):
        decode(_fields(**changes))


def test_what_would_be_refused_is_not_sent() -> None:
    with pytest.raises(AnnouncementError, match="sess is -1"):
        encode(dataclasses.replace(SAMPLE, sessions=-1))
    with pytest.raises(AnnouncementError, match=f"more than the {MAX_BYTES}"):
        encode(dataclasses.replace(SAMPLE, addresses=("𝄞" * 256,) * 16))


def test_a_payload_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(AnnouncementError, match="more than the"):
        decode(b"\xc0" * (MAX_BYTES + 1))


@given(st.binary(max_size=200))
def test_any_bytes_give_only_an_announcement_error(data: bytes) -> None:
    with pytest.raises(AnnouncementError):
        decode(data)


@given(st.data())
def test_any_mutation_decodes_to_a_valid_announcement_or_gives_an_announcement_error(
    data: st.DataObject,
) -> None:
    payload = bytearray(encode(SAMPLE))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        announcement = decode(bytes(payload))
    except AnnouncementError:
        return
    assert decode(encode(announcement)) == announcement


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_signed_announcement_can_change(position: int, flip: int) -> None:
    data = bytearray(signed(SAMPLE, _sign, bytes(KEY.verify_key)))
    data[position % len(data)] ^= flip
    with pytest.raises((AnnouncementError, EnvelopeError)):
        verified(bytes(data))
