"""Small DeepSeek-V3 and Qwen3-Next models of transformers, all weights random, as our options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models import Decoder
from transformer_jax.paths import with_state

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
TOKENS = np.random.default_rng(0).integers(0, 31, (2, 9))
WIDTH, EXPERTS = 32, 4


def drawn(model):
    """The arrays of a torch model by name, all of them random and set in it."""
    import torch

    rng = np.random.default_rng(1)
    arrays = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in arrays.items():
        if "inv_freq" in name:
            continue
        numbers = rng.normal(scale=0.3, size=tuple(tensor.shape))
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(numbers))
    return {name: tensor.detach().numpy() for name, tensor in arrays.items()}


def logits_of(model):
    import torch

    with torch.no_grad():
        return model.eval()(torch.from_numpy(TOKENS), use_cache=False).logits.numpy()


def kernel(array):
    return {"kernel": array.T}


def mlp_of(found, prefix):
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    return {ours: kernel(found[f"{prefix}.{theirs}.weight"]) for ours, theirs in names.items()}


def experts_of(found, prefix):
    """One kernel [E, D, F] for each map; gate and up are one array there."""
    both = np.swapaxes(found[f"{prefix}.gate_up_proj"], -1, -2)
    down = np.swapaxes(found[f"{prefix}.down_proj"], -1, -2)
    gate, up = np.split(both, 2, axis=-1)
    return {"gate": {"kernel": gate}, "up": {"kernel": up}, "down": {"kernel": down}}


def agree(model, params, expected):
    params = jax.tree.map(jnp.asarray, params)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.asarray(TOKENS))
    shapes = with_state(shapes["params"], shapes.get("state"))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    variables = {"params": {k: v for k, v in params.items() if k != "state"}}
    variables |= {"state": params["state"]} if "state" in params else {}
    found = jax.jit(model.apply)(variables, jnp.asarray(TOKENS))
    assert 0.1 < expected.std() < 10
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1, np.abs(expected).max()))
    # Token by token with a cache, whose rows are compressed.
    read, cache = model.apply(variables, jnp.asarray(TOKENS[:, :5]), mutable=["cache"])
    for place in range(5, 9):
        token = jnp.asarray(TOKENS[:, place : place + 1])
        more, cache = model.apply(variables | cache, token, mutable=["cache"])
        read = jnp.concatenate([read, more], axis=1)
    np.testing.assert_allclose(read, found, atol=1e-4)


@pytest.mark.parametrize("query_rank", [None, 10])
def test_deepseek_v3(query_rank):
    """Latent attention with 4 rotated features; a dense block, then routed and shared experts."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    heads, rotated, plain, values, rank = 4, 4, 6, 5, 8
    theirs = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=31, hidden_size=WIDTH, intermediate_size=40, moe_intermediate_size=12,
            num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=heads,
            n_shared_experts=2, n_routed_experts=EXPERTS, num_experts_per_tok=2, n_group=1,
            topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
            q_lora_rank=query_rank, kv_lora_rank=rank, qk_rope_head_dim=rotated,
            qk_nope_head_dim=plain, v_head_dim=values, max_position_embeddings=64,
            rope_interleave=True, attn_implementation="eager",
        )
    )  # fmt: skip
    found = drawn(theirs)
    model = Decoder.of(
        vocab_size=31, max_length=16, width=WIDTH, depth=2, num_heads=heads, mlp_dim=40,
        head_dim=rotated + plain, value_dim=values, use_bias=False, tie_embeddings=False,
        norm="rms_norm", norm_options={"epsilon": 1e-6}, activation="silu", feed_forward="gated",
        position="rotary", position_options={"fraction": rotated / (rotated + plain)},
        mixer="latent_attention", mixer_options={"rank": rank, "query_rank": query_rank},
        layers="DM",
        layer_types={"M": {
            "feed_forward": "mixture", "mlp_dim": 12,
            "feed_forward_options": {
                "num_experts": EXPERTS, "num_chosen": 2, "router": "sigmoid", "gated": True,
                "num_shared": 2, "share_gain": 2.5, "bias_rate": 0.001, "balance": 0.0,
            },
        }},
    )  # fmt: skip
    # There, rotated features come last and in pairs of neighbours; here first, in halves.
    turn = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2)])
    params = {
        "token_embedding": {"embedding": found["model.embed_tokens.weight"]},
        "final_norm": {"scale": found["model.norm.weight"]},
        "output": kernel(found["lm_head.weight"]),
    }
    for number in range(2):
        at = f"model.layers.{number}"
        query = found[f"{at}.self_attn.{'q_b_proj' if query_rank else 'q_proj'}.weight"]
        query = query.T.reshape(-1, heads, plain + rotated)
        query = np.concatenate([query[..., plain:][..., turn], query[..., :plain]], axis=-1)
        down = found[f"{at}.self_attn.kv_a_proj_with_mqa.weight"]
        up = found[f"{at}.self_attn.kv_b_proj.weight"].T.reshape(rank, heads, plain + values)
        mixer = {
            "down": kernel(down[:rank]),
            "rotated_key": kernel(down[rank:][turn]),
            "norm": {"scale": found[f"{at}.self_attn.kv_a_layernorm.weight"]},
            "key_up": {"kernel": up[..., :plain].reshape(rank, -1)},
            "value_up": {"kernel": up[..., plain:].reshape(rank, -1)},
            "out": kernel(found[f"{at}.self_attn.o_proj.weight"]),
        }
        last = {"kernel": query.reshape(len(query), -1)}
        if query_rank:
            mixer |= {
                "query_down": kernel(found[f"{at}.self_attn.q_a_proj.weight"]),
                "query_norm": {"scale": found[f"{at}.self_attn.q_a_layernorm.weight"]},
                "query_up": last,
            }
        else:
            mixer["query"] = last
        if number == 0:
            feed_forward = mlp_of(found, f"{at}.mlp")
        else:
            feed_forward = {
                "router": kernel(found[f"{at}.mlp.gate.weight"]),
                "shared": mlp_of(found, f"{at}.mlp.shared_experts"),
                **experts_of(found, f"{at}.mlp.experts"),
            }
            bias = found[f"{at}.mlp.gate.e_score_correction_bias"]
        params[f"block_{number}"] = {
            "mixer": mixer,
            "feed_forward": feed_forward,
            "mixer_norm": {"scale": found[f"{at}.input_layernorm.weight"]},
            "feed_forward_norm": {"scale": found[f"{at}.post_attention_layernorm.weight"]},
        }
    # Loads that are equal change no bias.
    state = {"block_1": {"feed_forward": {"bias": bias, "load": np.full(EXPERTS, 0.25, "f4")}}}
    agree(model, {**params, "state": state}, logits_of(theirs))


def test_qwen3_next():
    """A gated delta network, then gated attention; experts, and a gated shared one, in both."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads, groups, size = 4, 2, 8
    of_keys, of_values, key_size, value_size = 2, 4, 6, 5
    theirs = Qwen3NextForCausalLM(
        Qwen3NextConfig(
            vocab_size=31, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=heads,
            num_key_value_heads=groups, head_dim=size, partial_rotary_factor=0.25,
            linear_num_key_heads=of_keys, linear_num_value_heads=of_values,
            linear_key_head_dim=key_size, linear_value_head_dim=value_size,
            linear_conv_kernel_dim=3, moe_intermediate_size=12, num_experts=EXPERTS,
            shared_expert_intermediate_size=12, num_experts_per_tok=2, norm_topk_prob=True,
            decoder_sparse_step=1, max_position_embeddings=64, tie_word_embeddings=False,
            layer_types=["linear_attention", "full_attention"], attn_implementation="eager",
        )
    )  # fmt: skip
    found = drawn(theirs)
    model = Decoder.of(
        vocab_size=31, max_length=16, width=WIDTH, depth=2, num_heads=heads, mlp_dim=12,
        num_kv_heads=groups, head_dim=size, use_bias=False, tie_embeddings=False,
        norm="zero_centred_rms_norm", norm_options={"epsilon": 1e-6}, activation="silu",
        query_key_norm="zero_centred_rms_norm", head_output="gated", feed_forward="mixture",
        feed_forward_options={
            "num_experts": EXPERTS, "num_chosen": 2, "gated": True, "num_shared": 1,
            "shared_gate": True, "balance": 0.0,
        },
        position="rotary",
        position_options={"fraction": 0.25, "max_wavelength": theirs_base(theirs)},
        layers="LA",
        layer_types={"L": {
            "mixer": "delta_net", "position": "none", "num_heads": of_values,
            "head_dim": key_size, "value_dim": value_size,
            "mixer_options": {"key_heads": of_keys, "conv_size": 3},
        }},
    )  # fmt: skip
    params = {
        "token_embedding": {"embedding": found["model.embed_tokens.weight"]},
        "final_norm": {"scale": found["model.norm.weight"]},
        "output": kernel(found["lm_head.weight"]),
    }
    for number, kind in enumerate(("mixer", "attention")):
        at = f"model.layers.{number}"
        params[f"block_{number}"] = {
            f"{kind}_norm": {"scale": found[f"{at}.input_layernorm.weight"]},
            "feed_forward_norm": {"scale": found[f"{at}.post_attention_layernorm.weight"]},
            "feed_forward": {
                "router": kernel(found[f"{at}.mlp.gate.weight"]),
                "shared": mlp_of(found, f"{at}.mlp.shared_expert"),
                "shared_gate": kernel(found[f"{at}.mlp.shared_expert_gate.weight"]),
                **experts_of(found, f"{at}.mlp.experts"),
            },
        }
    at = "model.layers.0.linear_attn"
    # Their map makes queries, keys, values and gates, for one head of keys after the other.
    sizes = np.cumsum([key_size, key_size, 2 * value_size])
    whole = found[f"{at}.in_proj_qkvz.weight"].T.reshape(WIDTH, of_keys, -1)
    maps = [part.reshape(WIDTH, -1) for part in np.split(whole, sizes, axis=-1)]
    both = found[f"{at}.in_proj_ba.weight"].T.reshape(WIDTH, of_keys, -1)
    write, decay = (part.reshape(WIDTH, -1) for part in np.split(both, 2, axis=-1))
    names = ("query", "key", "value", "gate", "write", "decay")
    mixer = {n: {"kernel": m} for n, m in zip(names, (*maps, write, decay), strict=True)}
    filters = found[f"{at}.conv1d.weight"][:, 0].T
    ends = (of_keys * key_size, 2 * of_keys * key_size)
    for name, part in zip(names, np.split(filters, ends, axis=-1), strict=False):
        mixer[f"{name}_convolution"] = part
    params["block_0"]["mixer"] = mixer | {
        "rate": found[f"{at}.A_log"],
        "offset": found[f"{at}.dt_bias"],
        "norm": {"scale": found[f"{at}.norm.weight"]},
        "out": kernel(found[f"{at}.out_proj.weight"]),
    }
    at = "model.layers.1.self_attn"
    query = found[f"{at}.q_proj.weight"].T.reshape(WIDTH, heads, 2, size)
    params["block_1"]["attention"] = {
        "query": {"kernel": query[:, :, 0].reshape(WIDTH, -1)},
        "head_output": {"gate": {"kernel": query[:, :, 1].reshape(WIDTH, -1)}},
        "key": kernel(found[f"{at}.k_proj.weight"]),
        "value": kernel(found[f"{at}.v_proj.weight"]),
        "query_norm": {"scale": found[f"{at}.q_norm.weight"]},
        "key_norm": {"scale": found[f"{at}.k_norm.weight"]},
        "out": kernel(found[f"{at}.o_proj.weight"]),
    }
    agree(model, params, logits_of(theirs))


def theirs_base(model):
    return float(model.config.rope_parameters["rope_theta"])
