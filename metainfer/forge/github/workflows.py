"""Starting a workflow of the repository. GitHub's answer names no run, so nothing can be looked for afterwards."""

from __future__ import annotations

from collections.abc import Mapping

from metainfer.forge.github.connect import Connection


def start_workflow(connection: Connection, workflow: str, ref: str, inputs: Mapping[str, str], what: str) -> None:
    """Start a workflow file of branch `ref` at least once. Only for what comes to one result however often it runs.

    An order that may have been lost is given again: two runs are waste, and none would leave a person waiting.
    """
    path = f"/repos/{connection.address.slug}/actions/workflows/{workflow}/dispatches"
    body = {"ref": ref, "inputs": dict(inputs)}

    def start() -> bool:
        connection.request("POST", path, body)
        return True

    connection.write(f"starting {workflow} for {what}", start, lambda: None)
