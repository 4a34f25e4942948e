"""Conversations that wait for a reply which only comes in another round: they pause, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class PausedError(Exception):
    """A reply is not there yet. No error of a run: whoever asks for rounds catches it, and nobody else."""


async def together(*talks: Coroutine[Any, Any, _T]) -> list[_T]:
    """What each comes to, in order. PausedError once all have ended and any paused; any other error ends them all."""
    tasks = [asyncio.ensure_future(talk) for talk in talks]
    try:
        waiting = set(tasks)
        while waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                error = task.exception()
                if error is not None and not isinstance(error, PausedError):
                    raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]
