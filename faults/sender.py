"""A client in its own process that sends what it is told, so that the load does not slow down its parent.

A line on stdin is a `Sending`, followed by its bytes; a line on stdout has the replies, with the ends of long bodies.
"""

import asyncio
import sys

import msgspec

from faults.client import ClientReply, connect

_BODY_BYTES = 2**22
"""Of the end of each body; the last event of Responses repeats the whole text."""


class Sending(msgspec.Struct):
    """Bytes to send, on as many connections at once."""

    port: int
    size: int
    at_once: int = 1
    first_size: int = 0
    """Of the beginning, after which a reply is awaited."""


def main() -> None:
    """Send until standard input closes."""
    received = sys.stdin.buffer
    with asyncio.Runner() as runner:
        while line := received.readline():
            order = msgspec.json.decode(line, type=Sending)
            replies = runner.run(_send(order, received.read(order.size)))
            sys.stdout.buffer.write(msgspec.json.encode(replies) + b"\n")
            sys.stdout.flush()


async def _send(order: Sending, data: bytes) -> list[ClientReply]:
    replies = await asyncio.gather(*(_exchange(order, data) for _ in range(order.at_once)))
    return [msgspec.structs.replace(reply, body=reply.body[-_BODY_BYTES:]) for reply in replies]


async def _exchange(order: Sending, data: bytes) -> ClientReply:
    connection = await connect(order.port, data[: order.first_size])
    try:
        before = await connection.read_until() if order.first_size else b""
        connection.writer.write(data[order.first_size :])
        return await connection.read_reply(before)
    finally:
        connection.disconnect()


if __name__ == "__main__":
    main()
