"""Runs inside the sandbox beside a server: lets clients outside reach it, and passes signals on.

    python relay.py SOCKET PORT -- COMMAND...

Listens on the Unix socket SOCKET, hands every connection to 127.0.0.1:PORT, and ends with COMMAND's status. It stands
alone (standard library only), for it must not depend on anything that the server brings.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

_PIECE = 64 << 10


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy both ways until either side ends, then close both: a client that goes away is gone for the server too."""
    with contextlib.suppress(OSError):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        pumps = [
            asyncio.create_task(_pump(reader, server_writer)),
            asyncio.create_task(_pump(server_reader, writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        server_writer.close()
    writer.close()


async def _main(socket: str, port: int, command: list[str]) -> int:
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
        return asyncio.ensure_future(_relay(port, reader, writer))

    listener = await asyncio.start_unix_server(accept, socket)
    child = await asyncio.create_subprocess_exec(*command)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _pass_on, child, number)
    status = await child.wait()
    listener.close()
    await asyncio.sleep(0.1)  # let the last bytes of open connections out
    return status


def _pass_on(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


if __name__ == "__main__":
    outcome = asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[4:]))
    sys.exit(outcome if outcome >= 0 else 128 - outcome)
