"""What one token costs in bytes and operations, from the model's shape alone: the numerators of MBU and MFU.

The counts are the least that the arithmetic needs, not what an implementation happens to move: a kernel that reads a
weight twice, or computes logits for tokens that nobody samples, gets no credit for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts

BYTES_OF_DTYPE = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


def layer_matrix_weights(model: ModelFacts) -> int:
    """Weights of one layer that are multiplied with every token: q, k, v, o projections and the three of the MLP."""
    query_width = model.num_attention_heads * model.head_dim
    kv_width = model.num_key_value_heads * model.head_dim
    attention = model.hidden_size * (2 * query_width + 2 * kv_width)
    return attention + 3 * model.hidden_size * model.intermediate_size


def layer_vector_weights(model: ModelFacts) -> int:
    """The rest of one layer: two norms, biases of q, k and v, and the norms of q and k, where the model has them."""
    weights = 2 * model.hidden_size
    if model.attention_bias:
        weights += (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    if model.qk_norm:
        weights += 2 * model.head_dim
    return weights


def head_weights(model: ModelFacts) -> int:
    """The matrix that turns the last hidden state into logits, whether or not it is the embedding."""
    return model.vocab_size * model.hidden_size


def weights_per_token(model: ModelFacts) -> int:
    """Weights that decoding one token reads: all layers, the last norm, the whole head, one row of the embedding.

    A tied matrix counts once, as the head: the embedding's row is one of the rows read anyway.
    """
    layers = model.num_hidden_layers * (layer_matrix_weights(model) + layer_vector_weights(model))
    embedding_row = 0 if model.tie_word_embeddings else model.hidden_size
    return layers + model.hidden_size + head_weights(model) + embedding_row


def kv_values_per_token(model: ModelFacts) -> int:
    """Numbers that one token leaves in the KV cache: a key and a value per layer and KV head."""
    return 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim


def mean_decode_context(prompt_tokens: int, output_tokens: int) -> float:
    """Mean number of tokens attended to by the decode steps of one request.

    The first output token comes from the prefill. Step j of the output_tokens - 1 others attends to the prompt and
    to j generated tokens, itself included: prompt_tokens + j on average is prompt_tokens + output_tokens / 2.
    """
    if prompt_tokens < 1 or output_tokens < 2:
        raise ValueError("a decode step needs a prompt and at least two output tokens")
    return prompt_tokens + output_tokens / 2


def decode_bytes_per_token(model: ModelFacts, *, context: float, weight_bytes: int, kv_bytes: int) -> float:
    """Bytes read to decode one token of a single request. `weight_bytes`, `kv_bytes`: bytes of one number."""
    return weights_per_token(model) * weight_bytes + kv_values_per_token(model) * kv_bytes * context


def attention_flops_per_pair(model: ModelFacts) -> int:
    """Operations per attended pair of tokens: a product with the key and one with the value, in every query head."""
    return 4 * model.num_hidden_layers * model.num_attention_heads * model.head_dim


def prefill_flops(model: ModelFacts, prompt_tokens: int) -> int:
    """Operations to process a prompt and yield logits for its last token. A multiply-add counts as two."""
    if prompt_tokens < 1:
        raise ValueError("a prompt has at least one token")
    pairs = prompt_tokens * (prompt_tokens + 1) // 2
    matrices = model.num_hidden_layers * layer_matrix_weights(model) * prompt_tokens + head_weights(model)
    return 2 * matrices + attention_flops_per_pair(model) * pairs


def decode_flops_per_token(model: ModelFacts, context: float) -> float:
    """Operations to decode one token that attends to `context` tokens, itself included."""
    matrices = model.num_hidden_layers * layer_matrix_weights(model) + head_weights(model)
    return 2 * matrices + attention_flops_per_pair(model) * context
