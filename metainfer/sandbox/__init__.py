"""Running code that nobody has reviewed: no network but its own loopback, no home, no secrets, limits on everything."""

from metainfer.sandbox.records import Limits, SandboxResult
from metainfer.sandbox.sandbox import Room, Sandbox
from metainfer.sandbox.server import ServerHandle

__all__ = ["Limits", "Room", "Sandbox", "SandboxResult", "ServerHandle"]
