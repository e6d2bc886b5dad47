# SPDX-License-Identifier: Apache-2.0
"""A small random Llama on disk, and prompts for it.

The model exists so that the tokens it generates depend on the whole prompt. A random network of
ordinary scale forgets: after the residual stream and the norms, its next token depends on the last
few tokens only, and a test that compares tokens would then pass with any KV cache at all. So the
paths by which attention moves information (value and output projections) are made loud, and the
driver checks on every run that a changed early token changes the output.

Weights are float32 and come from one seeded generator: every run, on every machine, has the same.
"""
import json
import random
from pathlib import Path

VOCABULARY = 640
LAYERS = 3
WIDTH = 192
INNER = 384
HEADS = 6
KV_HEADS = 2
HEAD_DIM = 64
CONTEXT = 4096
SEED = 20261130

KV_BYTES_PER_TOKEN = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4      # keys and values, float32

# (name inside a layer, rows, columns, loudness): a row's variance is loudness**2 / columns.
LAYER_MATRICES = (
    ("self_attn.q_proj", HEADS * HEAD_DIM, WIDTH, 1.4),
    ("self_attn.k_proj", KV_HEADS * HEAD_DIM, WIDTH, 1.4),
    ("self_attn.v_proj", KV_HEADS * HEAD_DIM, WIDTH, 2.8),
    ("self_attn.o_proj", WIDTH, HEADS * HEAD_DIM, 2.8),
    ("mlp.gate_proj", INNER, WIDTH, 1.0),
    ("mlp.up_proj", INNER, WIDTH, 1.0),
    ("mlp.down_proj", WIDTH, INNER, 1.0),
)


def config() -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def write(folder: Path) -> None:
    """Writes config.json and model.safetensors, as transformers would name the tensors."""
    import numpy
    from safetensors.numpy import save_file

    source = numpy.random.Generator(numpy.random.PCG64(SEED))

    def matrix(rows: int, columns: int, loudness: float):
        values = source.standard_normal((rows, columns), dtype=numpy.float32)
        return values * numpy.float32(loudness / columns ** 0.5)

    ones = numpy.ones(WIDTH, dtype=numpy.float32)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, WIDTH, WIDTH ** 0.5)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows, columns, loudness in LAYER_MATRICES:
            tensors[f"{prefix}.{name}.weight"] = matrix(rows, columns, loudness)
        tensors[f"{prefix}.input_layernorm.weight"] = ones.copy()
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones.copy()
    tensors["model.norm.weight"] = ones.copy()
    tensors["lm_head.weight"] = matrix(VOCABULARY, WIDTH, 2.0)

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(), indent=4) + "\n")


def prompts(length: int, block: int) -> dict[str, list[int]]:
    """Token lists by name.

    whole    what the writer computes; its last block is only partly filled
    half     begins like whole, then goes its own way in the middle of a block
    aligned  a beginning of whole that ends exactly with a block
    changed  whole with one early token replaced
    """
    source = random.Random(SEED)
    whole = [source.randrange(2, VOCABULARY) for _ in range(length)]
    cut = length // 2
    if cut % block == 0:
        cut += block // 2
    other = [source.randrange(2, VOCABULARY) for _ in range(length - cut)]
    other[0] = 2 + (whole[cut] - 1) % (VOCABULARY - 2)          # certainly another token than whole's
    changed = list(whole)
    changed[4] = 2 + (whole[4] - 1) % (VOCABULARY - 2)
    return {
        "whole": whole,
        "half": whole[:cut] + other,
        "aligned": whole[:length // block * 2 // 3 * block],
        "changed": changed,
    }
