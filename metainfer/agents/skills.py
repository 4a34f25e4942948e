"""Contracts as agent skills: folders with a SKILL.md, so that anybody's own coding agent can write a unit.

The format is the public one for agent skills: front matter with name and description, a short body, and scripts beside
it. What a skill says is what our own implementer hears; like it, a skill holds no check and by default no exemplar.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from metainfer.agents.brief import Brief, task_and_rules

MAX_SKILL_BYTES = 24_000
"""Of one SKILL.md: an agent loads it whole, beside its own work."""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NAME, _MAX_DESCRIPTION = 64, 1024
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


@dataclass(frozen=True)
class Skill:
    """One folder: SKILL.md and what lies beside it, by path relative to the folder."""

    name: str
    files: Mapping[str, str]


def skill_of(brief: Brief, engine: str, spec_path: str) -> Skill:
    """The skill to write one contract's units for one engine."""
    name = f"write-{brief.contract.id.replace('/', '-').replace('.', '-')}"
    units = ", ".join(brief.units)
    front = {
        "name": name,
        "description": (
            f"Write {units} of the inference engine {engine}: {brief.contract.title.lower()}. "
            f"Use it when asked to implement, repair or speed up {units}."
        ),
    }
    task, rules = task_and_rules(brief)
    body = f"""# {brief.contract.title}

Write one Python file that holds {units} for the inference engine {engine}, then run, at the root of the engine's
repository, the `scripts/submit.sh` of this skill with the file. It judges the file by checks that you do not see and
says what does not hold, with figures: repair each cause and submit again. Every submission stands for itself;
to propose several files at once, give all of them in one command (`metainfer submit --help`).

{rules}

{task}
"""
    script = (
        "#!/bin/sh\n# Judges a file of units, and proposes the engine with it if all gates pass.\n"
        f'exec metainfer submit {shlex.quote(spec_path)} {brief.units[0]} "${{1:?the file}}"\n'
    )
    text = f"---\n{yaml.safe_dump(front, sort_keys=False, width=1000)}---\n\n{body}"
    return Skill(name, {"SKILL.md": text, "scripts/submit.sh": script})


def reviewing_skill(engine: str, units: Sequence[str]) -> Skill:
    """The skill to review a unit against its contract."""
    front = {
        "name": "review-engine-units",
        "description": (
            f"Review code of the inference engine {engine} against its contracts. Use it when asked to review a unit, "
            "a pull request with an engine, or a change of the knowledge base."
        ),
    }
    body = f"""# Review a unit

You see the code and its contract (`ckb/<layer>/<name>/contract.yaml`), nothing else. The units are {", ".join(units)}.

1. `metainfer explain FILE:LINE` names the unit, the contract and the evidence of a line.
2. Read the contract's semantics and invariants sentence by sentence, and find the line that keeps each. Cite the
   sentence that is broken; "could be cleaner" is no finding.
3. Go through its failure modes: for each, say why this code does not have it.
4. Of a change in `ckb/`, ask first whether a check got weaker or a tolerance wider.
5. `metainfer verify ENGINE` proves that the code is what its manifest says; `metainfer gate NAME ENGINE` repeats a
   gate.

Gates decide what holds. A review says what they cannot see: whether the contract itself is right.
"""
    text = f"---\n{yaml.safe_dump(front, sort_keys=False, width=1000)}---\n\n{body}"
    return Skill("review-engine-units", {"SKILL.md": text})


def complaints(skill: Skill) -> Iterator[str]:
    """What the format forbids, or what makes a skill too large to load."""
    text = skill.files.get("SKILL.md", "")
    match = _FRONT_MATTER.match(text)
    front = yaml.safe_load(match[1]) if match else None
    if not isinstance(front, dict):
        yield f"{skill.name}: SKILL.md has no front matter"
        return
    if front.get("name") != skill.name:
        yield f"{skill.name}: its front matter calls it {front.get('name')!r}"
    if not _NAME.fullmatch(skill.name) or len(skill.name) > _MAX_NAME:
        yield f"{skill.name}: not a name of at most {_MAX_NAME} lower-case letters, digits and single hyphens"
    description = front.get("description")
    if not isinstance(description, str) or not 0 < len(description) <= _MAX_DESCRIPTION:
        yield f"{skill.name}: the description must be a text of at most {_MAX_DESCRIPTION} characters"
    if unknown := front.keys() - {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}:
        yield f"{skill.name}: the format knows no {', '.join(sorted(unknown))}"
    if (size := len(text.encode())) > MAX_SKILL_BYTES:
        yield f"{skill.name}: SKILL.md has {size:,} bytes, more than {MAX_SKILL_BYTES:,}"
    for path in skill.files:
        if path.startswith("/") or ".." in path.split("/"):
            yield f"{skill.name}: {path} lies outside of its folder"
