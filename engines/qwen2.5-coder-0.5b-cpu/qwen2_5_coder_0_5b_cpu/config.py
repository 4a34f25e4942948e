"""The facts of this deployment. The generator wrote them; the rest of the engine only reads them."""

from typing import Final

ENGINE_NAME: Final = "qwen2.5-coder-0.5b-cpu"  # spec: name; also the served model id
MODEL_DIGEST: Final = "sha256:b1b012453974156a85947a15b7ecd2051e5d202f7164ae078167eed01ddde86b"  # of the model folder
VOCAB_SIZE: Final = 151936  # config.json: vocab_size
HIDDEN_SIZE: Final = 896  # config.json: hidden_size
INTERMEDIATE_SIZE: Final = 4864  # config.json: intermediate_size
NUM_LAYERS: Final = 24  # config.json: num_hidden_layers
NUM_HEADS: Final = 14  # config.json: num_attention_heads
NUM_KV_HEADS: Final = 2  # config.json: num_key_value_heads
HEAD_DIM: Final = 64  # config.json: head_dim, or hidden_size / num_attention_heads
RMS_NORM_EPS: Final = 1e-06  # config.json: rms_norm_eps
ROPE_THETA: Final = 1000000.0  # config.json: rope_theta
EOS_TOKEN_IDS: Final[tuple[int, ...]] = (151645, 151643)  # generation_config.json and config.json: eos_token_id
MAX_MODEL_LEN: Final = 4096  # spec: workload.max_model_len; prompt and output together
MAX_CONCURRENCY: Final = 16  # spec: workload.max_concurrency; sequences in one step
BLOCK_SIZE: Final = 16  # tokens of one KV block
NUM_KV_BLOCKS: Final = 4096  # MAX_CONCURRENCY sequences of MAX_MODEL_LEN tokens each
PREFILL_CHUNK: Final = 256  # tokens computed in one step, decodes included
