"""The exchange that docs/protocols.md shows: a request for two tokens to a ring of two stages, and its answer."""

from __future__ import annotations

import json

from simulated_ring import SimulatedRing, peer_of, spec_of

from ring.generation import Done, ErrorEvent, Event, GenerateRequest, Started, TokenEvent
from ring.generation_codec import encode

REQUEST = GenerateRequest(model="tale", max_tokens=2, tokens=(1, 2, 3), nonce="c0ffee")
ERROR = ErrorEvent("stalled", "no progress for 30 s while decoding", peer_of(1))
ROW = 32


def answer() -> list[Event]:
    ring = SimulatedRing([(0, 2), (2, 6)], spec_of(REQUEST.tokens or (), max_tokens=2, nonce=REQUEST.nonce))
    done: Done = ring.done(ring.run())
    opened = Started(done.job, REQUEST.model, done.prompt_tokens, ring.stages[0].peer, "plan-1")
    return [opened, TokenEvent((ring.committed[0],), "Once"), TokenEvent((ring.committed[1],), " upon"), done]


def block(message: GenerateRequest | Event) -> str:
    """Return a message as it crosses the wire, length first, in rows of hex."""
    data = encode(message)
    text = (len(data).to_bytes(4, "big") + data).hex()
    return "\n".join(text[at : at + 2 * ROW] for at in range(0, len(text), 2 * ROW))


def shown(title: str, message: GenerateRequest | Event) -> str:
    """Return the part of the page that shows one message: as JSON, and as bytes."""
    indent = 2 if isinstance(message, Done) else None
    return f"{title}\n\n```json\n{json.dumps(message.to_map(), indent=indent)}\n```\n\n```hex\n{block(message)}\n```\n"


def section() -> str:
    """Return the example of the page: `python tests/ring/generate_exchange.py` prints it."""
    opened, first, second, done = answer()
    return "\n".join(
        [
            shown("The client sends:", REQUEST),
            shown("The daemon answers:", opened),
            shown("then, for each token:", first),
            shown("and", second),
            shown("and at the end:", done),
            shown("Had the ring stalled instead, the last message would have been:", ERROR),
        ]
    )


if __name__ == "__main__":
    print(section())
