"""Errors that a command turns into a message and an exit code; one class per thing a caller would do."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What `metainfer` exits with. Documented for users in `docs/cli.md`."""

    OK = 0
    RED = 1
    """The command ran, and its verdict is red: a gate failed, a check found something."""
    BAD_INPUT = 2
    """The command line, a spec, a contract or a checkpoint is wrong; nothing was changed."""
    REFUSED = 3
    """The input is valid but cannot be served: not covered by knowledge, infeasible, unsupported platform."""
    ENVIRONMENT = 4
    """Something that the machine must provide is missing: a compiler, a sandbox, disk, network."""
    CONFLICT = 5
    """Somebody else moved first, or a person's decision stands in the way; nothing was changed."""
    INTERRUPTED = 130


class MetainferError(Exception):
    """Base of all errors a user can act on. The message says what, where, and what to do."""

    exit_code: ExitCode = ExitCode.BAD_INPUT


class InputError(MetainferError):
    """A file or argument is wrong; the message names file, line and the fix."""

    exit_code = ExitCode.BAD_INPUT


class RefusedError(MetainferError):
    """The request is well formed, but this platform, machine or knowledge base cannot serve it."""

    exit_code = ExitCode.REFUSED


class MachineError(MetainferError):
    """The machine lacks something that the command needs."""

    exit_code = ExitCode.ENVIRONMENT


class ConflictError(MetainferError):
    """A compare-and-swap was lost, or a person's decision (closed pull request, own commit) stops the bot."""

    exit_code = ExitCode.CONFLICT
