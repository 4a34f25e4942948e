"""Checks of the loader on model folders made for the purpose: every tensor marked, then one thing wrong at a time.

The files are sparse (zeros but for the marks), so that even a large model's folder costs no disk.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from metainfer.ckb.checks import Candidate, Finding
from metainfer.files import folder_digest

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def check_every_tensor_arrives(c: Candidate) -> Iterator[Finding]:
    """Each name with its own content, in the engine's dtype; narrower floats widened for an fp32 engine."""
    stored = ["BF16"] if c.facts.weight_dtype == "bf16" else ["F32", "BF16", "F16"]
    wanted = torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32
    for dtype in stored:
        with _Folder(c, dtype) as folder:
            weights = c.unit("load_weights")(folder.write(), folder_digest(folder.path))
            if set(weights) != set(folder.tensors):
                difference = sorted(set(weights) ^ set(folder.tensors))
                yield Finding("check_every_tensor_arrives", f"{dtype}: differs in {difference[:5]}")
                return
            for name, (_, shape) in folder.tensors.items():
                got = weights[name]
                if got.shape != shape or got.dtype != wanted or got.device.type != "cpu" or not got.is_contiguous():
                    yield Finding("check_every_tensor_arrives", f"{name} is {[*got.shape]} {got.dtype} on {got.device}")
                    return
                first, last = folder.marks(name)
                if (float(got.flatten()[0]), float(got.flatten()[-1])) != (first, last):
                    yield Finding("check_every_tensor_arrives", f"{name} holds another tensor's numbers")
                    return
            del weights


def check_only_the_right_folder(c: Candidate) -> Iterator[Finding]:
    """A folder with another digest is refused, whatever its tensors look like."""
    with _Folder(c) as folder:
        folder.write()
        digest = folder_digest(folder.path)
        yield from _refused(c, "check_only_the_right_folder", "another digest", folder.path, "sha256:" + "0" * 64)
        (folder.path / ".hidden").write_text("dot files do not count")
        c.unit("load_weights")(folder.path, digest)
        (folder.path / "config.json").write_text("{ }")
        yield from _refused(c, "check_only_the_right_folder", "a changed file", folder.path, digest)


def check_gaps_and_leftovers(c: Candidate) -> Iterator[Finding]:
    """Missing, left over, of another shape or dtype: refused, and the message names the tensor."""
    q_proj = f"model.layers.{c.config.NUM_LAYERS - 1}.self_attn.q_proj.weight"
    other = "F32" if c.facts.weight_dtype == "bf16" else "F64"
    for what in ("missing", "left over", "another shape", "another dtype"):
        with _Folder(c) as folder:
            name, (dtype, shape) = q_proj, folder.tensors[q_proj]
            if what == "missing":
                del folder.tensors[name]
            elif what == "left over":
                name = "model.layers.0.self_attn.sinks"
                folder.tensors[name] = (dtype, (3,))
            elif what == "another shape":
                folder.tensors[name] = (dtype, (shape[0] + 1, shape[1]))
            else:
                folder.tensors[name] = (other, shape)
            folder.write()
            yield from _refused(c, "check_gaps_and_leftovers", f"{name}: {what}", folder.path, None, name)


def check_the_head(c: Candidate) -> Iterator[Finding]:
    """Tied: a stored copy of the embedding is accepted and any other head refused. Untied: a head is needed."""
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    with _Folder(c) as folder:
        if not c.facts.tied_embeddings:
            del folder.tensors[head]
            folder.write()
            yield from _refused(c, "check_the_head", "untied, without a head", folder.path, None, head)
            return
        folder.tensors[head] = folder.tensors[embedding]
        folder.twins[head] = embedding
        weights = c.unit("load_weights")(folder.write(), folder_digest(folder.path))
        if head in weights:
            yield Finding("check_the_head", "tied: the stored copy of the embedding was kept as a second tensor")
        del weights, folder.twins[head]
        folder.write()
        yield from _refused(c, "check_the_head", "tied, with a head that differs", folder.path, None, head)


def check_one_set_of_files(c: Candidate) -> Iterator[Finding]:
    """What the index says is read, all of it and nothing beside it; without an index it is the single file."""
    check = "check_one_set_of_files"
    with _Folder(c) as folder:
        folder.write()
        stray = folder.path / (SINGLE if c.facts.sharded else "consolidated.safetensors")
        _write_file(stray, {"model.norm.weight": ("F32", (1,))}, {"model.norm.weight": (7.0, 7.0)})
        weights = c.unit("load_weights")(folder.path, folder_digest(folder.path))
        if float(weights["model.norm.weight"][0]) != folder.marks("model.norm.weight")[0]:
            yield Finding(check, f"read {stray.name} beside the set of files that counts")
        del weights
        if not c.facts.sharded:
            return
        stray.unlink()
        index = json.loads((folder.path / INDEX).read_text())
        homes = index["weight_map"]
        moved = dict(homes) | {"model.norm.weight": next(f for f in homes.values() if f != homes["model.norm.weight"])}
        (folder.path / INDEX).write_text(json.dumps({"weight_map": moved}))
        yield from _refused(c, check, "a tensor in another shard than indexed", folder.path, None, "model.norm.weight")
        fewer = {name: file for name, file in homes.items() if name != "model.norm.weight"}
        (folder.path / INDEX).write_text(json.dumps({"weight_map": fewer}))
        yield from _refused(c, check, "a tensor not in the index", folder.path, None, "model.norm.weight")


class _Folder:
    """A model folder to be; `tensors` says what its files will hold."""

    def __init__(self, c: Candidate, dtype: str = "") -> None:
        dtype = dtype or ("BF16" if c.facts.weight_dtype == "bf16" else "F32")
        self.c = c
        self.tensors = {name: (dtype, shape) for name, shape in _expected(c)}
        self.order = {name: index for index, name in enumerate(self.tensors)}
        self.twins: dict[str, str] = {}

    def __enter__(self) -> _Folder:
        self.path = Path(tempfile.mkdtemp(dir=self.c.tmp_path))
        (self.path / "config.json").write_text("{}")
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)

    def marks(self, name: str) -> tuple[float, float]:
        """First and last element of a tensor: no two tensors of up to 40,000 have the same pair."""
        index = self.order.get(self.twins.get(name, name), 39_999)
        return float(index % 200 + 1), float(index // 200 + 1)

    def write(self) -> Path:
        marks = {name: self.marks(name) for name in self.tensors}
        if not self.c.facts.sharded:
            _write_file(self.path / SINGLE, self.tensors, marks)
            return self.path
        names = sorted(self.tensors)
        homes = {name: f"model-{1 + (2 * i >= len(names)):05}-of-00002.safetensors" for i, name in enumerate(names)}
        for file in set(homes.values()):
            _write_file(self.path / file, {n: self.tensors[n] for n in names if homes[n] == file}, marks)
        (self.path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
        return self.path


def _write_file(
    path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], marks: dict[str, tuple[float, float]]
) -> None:
    """A safetensors file of zeros with a mark at both ends of every tensor."""
    header: dict[str, object] = {}
    spots: list[tuple[int, float, torch.dtype]] = []
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, size = end, DTYPES[dtype].itemsize
        end = begin + size * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        spots += [(end - size, marks[name][1], DTYPES[dtype]), (begin, marks[name][0], DTYPES[dtype])]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
        for offset, value, dtype in spots:
            file.seek(8 + len(text) + offset)
            file.write(bytes(torch.tensor([value], dtype=dtype).view(torch.uint8).tolist()))


def _expected(c: Candidate) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of this architecture's tensors."""
    config = c.config
    hidden, inner = config.HIDDEN_SIZE, config.INTERMEDIATE_SIZE
    query, kv = config.NUM_HEADS * config.HEAD_DIM, config.NUM_KV_HEADS * config.HEAD_DIM
    yield "model.embed_tokens.weight", (config.VOCAB_SIZE, hidden)
    for layer in range(config.NUM_LAYERS):
        name = f"model.layers.{layer}"
        for part, size in (("q", query), ("k", kv), ("v", kv)):
            yield f"{name}.self_attn.{part}_proj.weight", (size, hidden)
            if c.facts.attention_bias:
                yield f"{name}.self_attn.{part}_proj.bias", (size,)
        yield f"{name}.self_attn.o_proj.weight", (hidden, query)
        if c.facts.qk_norm:
            yield f"{name}.self_attn.q_norm.weight", (config.HEAD_DIM,)
            yield f"{name}.self_attn.k_norm.weight", (config.HEAD_DIM,)
        yield f"{name}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{name}.mlp.up_proj.weight", (inner, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, inner)
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not c.facts.tied_embeddings:
        yield "lm_head.weight", (config.VOCAB_SIZE, hidden)


def _refused(
    c: Candidate, check: str, what: str, folder: Path, digest: str | None, named: str = ""
) -> Iterator[Finding]:
    try:
        c.unit("load_weights")(folder, digest or folder_digest(folder))
    except ValueError as error:
        if named not in str(error):
            yield Finding(check, f"{what}: refused without naming it: {error}")
    except Exception as error:
        yield Finding(check, f"{what}: {type(error).__name__} in place of a ValueError: {error}")
    else:
        yield Finding(check, f"{what}: accepted")
