"""A node in a process of its own, to be frozen and killed: prints its addresses and echoes on /echo/1."""

from __future__ import annotations

import sys

import trio

from swarmd.net import Channel, open_node


async def main(number: int) -> None:
    async with open_node(bytes([number]) * 32, ["/ip4/127.0.0.1/tcp/0"]) as node:

        async def echo(channel: Channel) -> None:
            async for message in channel:
                await channel.send(message)

        node.handle("/echo/1", echo, max_message=1 << 20)
        print(*node.addresses(), flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
