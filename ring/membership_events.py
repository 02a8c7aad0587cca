"""MembershipEvent: the transitions that membership reports, each with its host and, for people, the reason."""

from __future__ import annotations

from dataclasses import dataclass

from ring.identity import PeerId


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host was heard of for the first time, or again after it had left."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostRestarted:
    """A known host, alive or not, announced a higher incarnation: what it held in memory is gone."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostUpdated:
    """A live host said something that can change a plan or what people see; `reason` names the fields."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostSuspected:
    """A host fell silent or its connection was lost; it still counts as alive."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostRecovered:
    """A suspected or dead host showed that it lives."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostDied:
    """A suspected host did not recover in time; its layers are free."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostLeft:
    """A host said that it leaves; its layers are free."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class HostRefused:
    """No room for another host. Said for the first one only, until there is room again."""

    peer: PeerId
    reason: str


MembershipEvent = (
    HostJoined
    | HostRestarted
    | HostUpdated
    | HostSuspected
    | HostRecovered
    | HostDied
    | HostLeft
    | HostRefused
)
