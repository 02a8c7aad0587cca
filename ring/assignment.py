"""Assignment: how a plan becomes a running ring. Prepare all members, and activate only when every one is ready.

The leader's side of it as a pure machine: what members report and the time go in, what to send goes out. `now` is a
monotonic clock in seconds. docs/control-plane.md has the table of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ring.identity import PeerId

MemberPhase = Literal["asked", "loading", "ready", "activating", "active", "refused", "lost"]
AssignmentState = Literal["new", "preparing", "activating", "active", "aborted"]


@dataclass(frozen=True, slots=True)
class AssignmentTimeouts:
    """Each is the longest time without progress, never a limit on the whole. All in seconds.

    Attributes:
        answer_seconds: from Prepare to a member's first word.
        progress_seconds: between two reports of a load that got further. Longer than a starved event loop
            may keep a member from reporting.
        activate_seconds: from one member's activation to the next one's.
        stall_seconds: a tick that comes this much after its deadline shows that this process stood still, and
            every member is given this much time more.

    """

    answer_seconds: float = 30.0
    progress_seconds: float = 120.0
    activate_seconds: float = 30.0
    stall_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Member:
    """How far one member is. done and total: bytes of its load."""

    peer: PeerId
    phase: MemberPhase
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan failed at this member: `code` is the member's own, or host_lost, no_answer, no_progress, not_activated."""

    peer: PeerId
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Send the member the plan: it verifies it and loads its block."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Activate:
    """Tell the member, which is ready as all others are, to open its edge of the ring."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell the member to forget the plan."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Completed:
    """Every member is active: the ring runs. Nothing follows."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The plan has failed, or was replaced (then nobody is to blame). Only Cancel follows."""

    reason: str
    blame: tuple[Refusal, ...]


AssignmentAction = Prepare | Activate | Cancel | Completed | Aborted

_WAITING: dict[MemberPhase, str] = {
    "asked": "no_answer",
    "loading": "no_progress",
    "activating": "not_activated",
}


class Assignment:
    """One plan's way from prepare over ready to active.

    Reports that do not fit a member's phase (repeated, late, or from a stranger) have no effect, as they may be honest
    and merely have crossed something else on their way. After Completed or Aborted no input has any.
    """

    def __init__(self, plan_id: str, members: Sequence[PeerId], timeouts: AssignmentTimeouts) -> None:
        """Make the machine for a plan; `members` in the order of the ring.

        Raises:
            ValueError: there are no members, or one stands twice.

        """
        if not members or len(set(members)) != len(members):
            raise ValueError(f"a plan's members are one or more different hosts, not {list(members)}")
        self.plan_id = plan_id
        self.state: AssignmentState = "new"
        self._timeouts = timeouts
        self._members = {peer: Member(peer, "asked") for peer in members}
        self._moved_at: dict[PeerId, float] = {}

    def members(self) -> tuple[Member, ...]:
        """Return how far each member is, in the order of the ring."""
        return tuple(self._members.values())

    def start(self, now: float) -> list[AssignmentAction]:
        """Ask all members to prepare."""
        if self.state != "new":
            return []
        self.state = "preparing"
        self._moved_at = dict.fromkeys(self._members, now)
        return [Prepare(peer) for peer in self._members]

    def progress(self, peer: PeerId, done: int, total: int, now: float) -> list[AssignmentAction]:
        """A member reports how far its load is; only one that got further renews its deadline."""
        member = self._in_phase(peer, "asked", "loading")
        if member is None:
            return []
        if member.phase == "asked" or done > member.done:
            self._moved_at[peer] = now
        self._members[peer] = Member(peer, "loading", max(done, member.done), total)
        return []

    def ready(self, peer: PeerId, now: float) -> list[AssignmentAction]:
        """A member has its block loaded. The last one's word activates all."""
        member = self._in_phase(peer, "asked", "loading")
        if member is None:
            return []
        self._members[peer] = Member(peer, "ready", member.total, member.total)
        if any(other.phase != "ready" for other in self._members.values()):
            return []
        self.state = "activating"
        self._set_all("activating", now)
        return [Activate(member) for member in self._members]

    def activated(self, peer: PeerId, now: float) -> list[AssignmentAction]:
        """A member has its edge open. The last one's word completes the assignment."""
        member = self._in_phase(peer, "activating")
        if member is None:
            return []
        self._members[peer] = Member(peer, "active", member.done, member.total)
        self._moved_at = dict.fromkeys(self._members, now)
        if any(other.phase != "active" for other in self._members.values()):
            return []
        self.state = "active"
        return [Completed()]

    def refused(self, peer: PeerId, code: str, reason: str) -> list[AssignmentAction]:
        """A member will not or cannot serve the plan."""
        return self._fail(peer, "refused", Refusal(peer, code, reason))

    def lost(self, peer: PeerId, reason: str) -> list[AssignmentAction]:
        """A member died, left, restarted, or its conversation broke."""
        return self._fail(peer, "lost", Refusal(peer, "host_lost", reason))

    def superseded(self, reason: str) -> list[AssignmentAction]:
        """Give the plan up for a reason that no member is to blame for: a newer plan, or another leader."""
        return self._abort(reason, ()) if self._running() else []

    def tick(self, now: float) -> list[AssignmentAction]:
        """Abort when members made no progress for too long; all of these are blamed together."""
        if not self._running():
            return []
        self._forgive(now)
        late = [member for member in self._members.values() if now >= self._deadline(member)]
        blame = tuple(Refusal(m.peer, _WAITING[m.phase], self._lateness(m, now)) for m in late)
        if not blame:
            return []
        return self._abort(f"{len(blame)} of {len(self._members)} members made no progress", blame)

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to judge; None while nobody is waited for."""
        if not self._running():
            return None
        return min(self._deadline(member) for member in self._members.values() if member.phase in _WAITING)

    def _running(self) -> bool:
        return self.state in ("preparing", "activating")

    def _in_phase(self, peer: PeerId, *phases: MemberPhase) -> Member | None:
        member = self._members.get(peer)
        return member if member is not None and self._running() and member.phase in phases else None

    def _set_all(self, phase: MemberPhase, now: float) -> None:
        self._members = {peer: Member(peer, phase, m.done, m.total) for peer, m in self._members.items()}
        self._moved_at = dict.fromkeys(self._members, now)

    def _fail(
        self, peer: PeerId, phase: Literal["refused", "lost"], refusal: Refusal
    ) -> list[AssignmentAction]:
        member = self._members.get(peer)
        if member is None or not self._running():
            return []
        self._members[peer] = Member(peer, phase, member.done, member.total)
        return self._abort(f"{peer}: {refusal.reason}", (refusal,))

    def _abort(self, reason: str, blame: tuple[Refusal, ...]) -> list[AssignmentAction]:
        self.state = "aborted"
        remaining = [m.peer for m in self._members.values() if m.phase not in ("refused", "lost")]
        return [Aborted(reason, blame), *map(Cancel, remaining)]

    def _deadline(self, member: Member) -> float:
        limits: dict[MemberPhase, float] = {
            "asked": self._timeouts.answer_seconds,
            "loading": self._timeouts.progress_seconds,
            "activating": self._timeouts.activate_seconds,
        }
        return self._moved_at[member.peer] + limits.get(member.phase, float("inf"))

    def _forgive(self, now: float) -> None:
        """After this process stood still, wait a little longer: reports may have come in and be unread."""
        deadline = self.next_deadline()
        if deadline is None or now - deadline <= self._timeouts.stall_seconds:
            return
        for member in self._members.values():
            self._moved_at[member.peer] += max(
                0.0, now + self._timeouts.stall_seconds - self._deadline(member)
            )

    def _lateness(self, member: Member, now: float) -> str:
        waited = f"{now - self._moved_at[member.peer]:.0f} s"
        if member.phase == "loading":
            return f"its load stands at {member.done} of {member.total} bytes for {waited}"
        return f"it was asked to {'prepare' if member.phase == 'asked' else 'activate'} and said nothing for {waited}"
