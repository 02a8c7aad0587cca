"""What the network adapter raises. Every error has a stable `code`; its text says what happened and what to do."""

from __future__ import annotations


class NetError(Exception):
    """Base of all failures of the network. `code` is stable and machine-readable."""

    code: str = "net_failed"


class AddressInvalid(NetError):
    """An address is not a TCP multiaddr. Write it like /ip4/192.0.2.7/tcp/4001 or /dns4/host.example/tcp/4001."""

    code = "address_invalid"


class ListenFailed(NetError):
    """An address cannot be listened on. Choose another `swarm.listen` or stop the program that uses it."""

    code = "listen_failed"


class DialFailed(NetError):
    """A peer could not be reached. Check that it runs and that one of the addresses named is right.

    Attributes:
        attempts: (address, reason) of each address tried, in the order tried.

    """

    code = "dial_failed"

    def __init__(self, peer: str, reason: str, attempts: tuple[tuple[str, str], ...] = ()) -> None:
        tried = "; ".join(f"{address}: {why}" for address, why in attempts)
        super().__init__(f"cannot reach {peer}: {reason}" + (f" ({tried})" if tried else ""))
        self.attempts = attempts


class ChannelBroken(NetError):
    """The conversation ended before the peer's end mark. Open a new channel, or take the peer for gone."""

    code = "channel_broken"


class ChannelStalled(ChannelBroken):
    """The other side, or the code on this side, took nothing for too long while data was waiting. Open a new channel."""

    code = "channel_stalled"


class MessageTooLarge(NetError):
    """A message exceeds the limit of its protocol. Send less at once; both sides must agree on the limit."""

    code = "message_too_large"


class MessageMalformed(NetError):
    """A message is not what the protocol says it is. The peer runs another version, or is broken."""

    code = "message_malformed"


class ProtocolRefused(NetError):
    """The peer does not speak the protocol. It may run another version, or be no swarmd host."""

    code = "protocol_refused"


class CallFailed(NetError):
    """The peer answered a call with an error; `code` is the one that the peer gave."""

    code = "call_failed"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class CallTimeout(NetError):
    """The peer did not answer a call in time. Try again, or take the peer for gone."""

    code = "call_timeout"


class MdnsUnavailable(NetError):
    """Multicast DNS cannot be used on this machine. Name peers in `swarm.bootstrap` instead."""

    code = "mdns_unavailable"
