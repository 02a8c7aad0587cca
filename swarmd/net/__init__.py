"""The network, as the rest of swarmd sees it: peers, messages and channels. Only this package imports libp2p."""

from swarmd.net import compat

# isort: split
from swarmd.net.address_book import AddressBook
from swarmd.net.addresses import split_peer
from swarmd.net.channel import Channel, first_message
from swarmd.net.codec import pack, unpack
from swarmd.net.connections import PeerDown, PeerUp
from swarmd.net.errors import (
    AddressInvalid,
    CallFailed,
    CallTimeout,
    ChannelBroken,
    ChannelStalled,
    DialFailed,
    ListenFailed,
    MdnsUnavailable,
    MessageMalformed,
    MessageTooLarge,
    NetError,
    ProtocolRefused,
)
from swarmd.net.node import Node, open_node

LIBP2P_VERSION = compat.WANTED_VERSION

__all__ = [
    "LIBP2P_VERSION",
    "AddressBook",
    "AddressInvalid",
    "CallFailed",
    "CallTimeout",
    "Channel",
    "ChannelBroken",
    "ChannelStalled",
    "DialFailed",
    "ListenFailed",
    "MdnsUnavailable",
    "MessageMalformed",
    "MessageTooLarge",
    "NetError",
    "Node",
    "PeerDown",
    "PeerUp",
    "ProtocolRefused",
    "first_message",
    "open_node",
    "pack",
    "split_peer",
    "unpack",
]
