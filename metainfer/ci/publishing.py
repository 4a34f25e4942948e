"""The job that may write: it runs nothing that was generated, and believes neither the bundle nor the report.

What it proposes is what trusted code makes from the base commit; the bundle only has to agree with that. From the
report it takes figures and text, bounded and escaped, and a verdict that has to be green.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.ci.bundle import Bundle, read_bundle
from metainfer.ci.report import Report, read_report
from metainfer.ci.secrets import own_secrets, secret_complaints
from metainfer.ci.trust import require_bill, require_known_model, require_reproduced, require_same_deployment
from metainfer.ci.untrusted import HostileError
from metainfer.errors import ExitCode, MetainferError
from metainfer.files import write_atomic
from metainfer.forge.paths import check_request, engine_folder
from metainfer.forge.protocol import BOT, DEFAULT_BASE, Status
from metainfer.generate.manifest import EVIDENCE_NAME
from metainfer.pipeline.proposed import ProposedKnowledge, read_proposals
from metainfer.pipeline.proposing import NO_BENCH, make_request

if TYPE_CHECKING:
    from metainfer.ci.deployment import Deployment
    from metainfer.forge.protocol import Forge, PublishOutcome, PublishRequest


class NotGreenError(MetainferError):
    """The engine's verdict is red: it is not proposed."""

    exit_code = ExitCode.RED


def publish_bundle(
    bundle_dir: Path,
    report_dir: Path,
    deployment: Deployment,
    forge: Forge,
    *,
    cache: Path,
    base_branch: str = DEFAULT_BASE,
    regenerate: bool = False,
    bill: str = "",
    environment: Mapping[str, str] | None = None,
) -> PublishOutcome:
    """Propose the engine of a bundle with the verdict of a report. `bill`: what its model cost, if one was asked here.

    Raises HostileError for whatever must not get any further, NotGreenError for a red verdict, and what the forge
    raises. Nothing was written then.
    """
    bundle = read_bundle(bundle_dir)
    require_same_deployment(bundle, deployment)
    if bill:
        require_bill(bundle, bill)
    report = read_report(report_dir, bundle.request.engine, bundle.request.input_hash, deployment.spec)
    if report.red:
        raise NotGreenError(f"{bundle.request.engine}: red at {', '.join(report.red)}; nothing is proposed")
    _require_on_base(deployment, forge, base_branch)
    require_known_model(bundle, deployment, cache)
    require_reproduced(bundle, deployment)
    knowledge = _knowledge(bundle, deployment)
    request = _request(bundle, report, knowledge, deployment.base, base_branch, regenerate=regenerate)
    own = own_secrets(os.environ if environment is None else environment)
    # Proposals also as they came: what the text of the pull request shows of them is escaped there.
    texts = {**request.engine_files, **request.proposal_files, **bundle.proposals}
    texts["the pull request's text"] = request.body.encode()
    if complaints := secret_complaints(texts, own):
        raise HostileError("what would be published", complaints)
    check_request(request)
    return forge.publish(request)


def say_stopped(forge: Forge, engine: str, input_hash: str, base_branch: str = DEFAULT_BASE) -> PublishOutcome:
    """Say on the engine's pull request, once, that a person's commits stop the bot."""
    from metainfer.forge.github.forge import GitHubForge

    if isinstance(forge, GitHubForge):
        return forge.say_blocked(engine, input_hash, base_branch)
    preview = forge.preview(engine, input_hash, base_branch)
    pull = forge.find_open(engine, base_branch)
    if preview.status is not Status.BLOCKED or pull is None:
        return preview
    text = f"Stopped: {preview.reason}."
    if not any(comment.text == text for comment in forge.get(pull.number).comments):
        forge.comment(pull.number, BOT, text)
    return preview


def _require_on_base(deployment: Deployment, forge: Forge, base_branch: str) -> None:
    """HostileError if the base commit is not in the branch's history. The forge looks again, when it writes."""
    tip = forge.base_sha(base_branch)
    checkout = deployment.checkout
    try:
        on_base = checkout.holds(deployment.base, checkout.commit(tip))
    except MetainferError:
        return  # the branch moved on since the checkout
    if not on_base:
        raise HostileError("the bundle", [f"request.json: base_sha is not on {ascii(base_branch)[1:-1]}"])


def _knowledge(bundle: Bundle, deployment: Deployment) -> ProposedKnowledge:
    """The proposals as trusted code reads them: files follow from typed deltas, never from the bundle's paths."""
    with tempfile.TemporaryDirectory(prefix="metainfer-proposals-") as scratch:
        paths = []
        for name, data in sorted(bundle.proposals.items()):
            paths.append(Path(scratch, name))
            write_atomic(paths[-1], data)
        try:
            return read_proposals(paths, deployment.ckb_root)
        except MetainferError as error:
            text = ascii(str(error).replace(f"{scratch}/", ""))[1:-1]
            raise HostileError("the bundle", [f"its proposals cannot be made: {text[:600]}"]) from None
        except RecursionError:
            raise HostileError("the bundle", ["its proposals cannot be made: nested too deep"]) from None


def _request(
    bundle: Bundle,
    report: Report,
    knowledge: ProposedKnowledge,
    base_sha: str,
    base_branch: str,
    *,
    regenerate: bool,
) -> PublishRequest:
    folder = engine_folder(bundle.request.engine)
    files = {f"{folder}{path}": data for path, data in bundle.engine.items()}
    files[f"{folder}{EVIDENCE_NAME}"] = report.evidence.encode()
    return make_request(
        bundle.manifest,
        report.evidence,
        files,
        knowledge,
        base_sha=base_sha,
        base=base_branch,
        notes=[] if report.bench else [NO_BENCH],
        regenerate=regenerate,
    )
