"""A Llama of 6.7 billion parameters, on shards of the reader's own text, over many devices.

32 layers of width 4,096 and texts of 4,096 tokens, as Llama 2 7B (Touvron et al. 2023,
arXiv:2307.09288, section 2.2); its learning rate, schedule and weight decay.

Command:   python -m experiments.make_shards --source=TEXTS --tokenizer=bpe --vocab_size=32000 \
               --out=texts_32k
           python -m experiments.train --config=configs/llama_7b.py --workdir=runs/llama_7b \
               --config.data.source=texts_32k --config.mesh.fsdp=-1
Plan:      `make plans` compiles it for 64 and 128 chips of TPUs and for 8 H100, an update of 64,
           128 and 16 texts at once; experiments/results/plans/llama_7b_*.json is what it said;
           nothing was trained.
"""

from configs import gpt2_124m


def get_config():
    """Returns 32 layers of width 4,096 with gated layers, RMS norms and rotary positions."""
    config = gpt2_124m.get_config()
    config.data.vocab_size = 32_000
    config.data.length = 4096
    model = config.model
    model.width = 4096
    model.depth = 32
    model.num_heads = 32
    model.mlp_dim = 11_008
    model.feed_forward = "gated"
    model.activation = "silu"
    model.norm = "rms_norm"
    model.position = "rotary"
    model.use_bias = False
    model.tie_embeddings = False
    config.training.batch_size = 1024
    config.training.accumulation = 8
    config.optimizer.learning_rate = 3e-4
    return config
