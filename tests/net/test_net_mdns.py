from __future__ import annotations

import threading

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSOutgoing, DNSPointer, Zeroconf

from ring.identity import peer_id_of
from swarmd.net import MdnsUnavailable
from swarmd.net.mdns import SERVICE_TYPE, Found, advertise_and_browse, read_record

PEERS = [peer_id_of(bytes([number]) * 32) for number in range(3)]
ADDRESSES = [f"/ip4/127.0.0.1/tcp/{4001 + number}" for number in range(3)]
LOOPBACK = ["127.0.0.1"]


def full(number: int) -> list[str]:
    return [f"{ADDRESSES[number]}/p2p/{PEERS[number]}"]


async def test_hosts_of_one_swarm_find_each_other_and_no_other_swarms_host() -> None:
    async with (
        advertise_and_browse(PEERS[2], "other", full(2), interfaces=LOOPBACK),
        advertise_and_browse(PEERS[0], "mine", full(0), interfaces=LOOPBACK) as at_first,
        advertise_and_browse(PEERS[1], "mine", full(1), interfaces=LOOPBACK) as at_second,
    ):
        with trio.fail_after(30):
            assert await at_second.receive() == Found(PEERS[0], (ADDRESSES[0],))
            assert await at_first.receive() == Found(PEERS[1], (ADDRESSES[1],))


async def test_an_interface_that_is_not_there_is_an_error_of_its_own() -> None:
    with pytest.raises(MdnsUnavailable, match=r"swarm\.bootstrap"):
        async with advertise_and_browse(PEERS[0], "mine", full(0), interfaces=["192.0.2.1"]):
            pass


async def test_a_host_that_never_says_where_it_is_disturbs_nothing_even_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = trio.lowlevel.current_trio_token()
    asked = trio.Event()
    ask = Zeroconf.get_service_info

    def announced(*args: object, **kwargs: object) -> object:
        token.run_sync_soon(asked.set)
        return ask(*args, **kwargs)

    monkeypatch.setattr(Zeroconf, "get_service_info", announced)
    stranger = await trio.to_thread.run_sync(lambda: Zeroconf(interfaces=LOOPBACK))
    try:
        async with advertise_and_browse(PEERS[0], "mine", full(0), interfaces=LOOPBACK):
            heard = DNSOutgoing(0x8400)
            heard.add_answer_at_time(DNSPointer(SERVICE_TYPE, 12, 1, 4500, f"{PEERS[2]}.{SERVICE_TYPE}"), 0)
            stranger.send(heard)
            with trio.fail_after(30):
                await asked.wait()
        assert [thread for thread in threading.enumerate() if "ServiceBrowser" in thread.name] == []
    finally:
        await trio.to_thread.run_sync(stranger.close)


def record(**texts: str) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in texts.items()}


NAME = f"{PEERS[0]}.{SERVICE_TYPE}"


def test_a_record_gives_the_addresses_that_are_its_owners_and_sound() -> None:
    properties = record(swarm="s", addr0=full(0)[0], addr1=full(1)[0], addr2="junk", addr5=ADDRESSES[0])
    assert read_record(NAME, properties, "s") == Found(PEERS[0], (ADDRESSES[0],))


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("not-a-peer." + SERVICE_TYPE, record(swarm="s", addr0=full(0)[0])),
        (NAME, record(swarm="other", addr0=full(0)[0])),
        (NAME, record(addr0=full(0)[0])),
        (NAME, record(swarm="s")),
        (NAME, record(swarm="s", addr0="/ip4/0.0.0.0/tcp/1/p2p/" + PEERS[0])),
        (NAME, {b"swarm": None, b"addr0": None}),
    ],
)
def test_a_record_that_is_not_sound_or_not_ours_is_ignored(
    name: str, properties: dict[bytes, bytes | None]
) -> None:
    assert read_record(name, properties, "s") is None


@given(st.text(), st.dictionaries(st.sampled_from([b"swarm", b"addr0", b"addr1"]), st.none() | st.binary()))
def test_any_record_is_read_or_ignored(name: str, properties: dict[bytes, bytes | None]) -> None:
    read_record(name, properties, "s")
