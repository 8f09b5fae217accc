"""transformer_jax: transformers in JAX, and experiments on them that can be believed.

Reading order:
  shapes, masks       the letters of the dimensions; who may attend to whom
  options             types of what a component lets its user choose
  layers/             linear, norms, weights and attention, position_terms and positions,
                      feedforward, embeddings, pooling, blocks; initialisation, parametrisation:
                      where values start, and how they go with the width
  models/             what the layers add up to: decoder, encoder, encoder_decoder, vision, and the
                      recurrent baselines; parts: what they share
  laws                what every component keeps, to be tried on your own
  generation          drawing new text, writing after a source
  inspection          attention maps, hidden vectors and gradients as arrays
  interop/            Hugging Face weights in and out
  data/               sources (text, tables, arrays), tokenizers, tasks: examples -> Batch (numpy)
  training/           rule, rows, rules, combinations, config: what may be asked for; losses,
                      metrics, schedules, optimizers, step, evaluation: one update; own: components
                      of the user's; coordinates: sizes by width; checkpoints, runs, loading: one
                      directory; initial: weights to start from; demonstrations: what a model
                      shows of itself; prepared, calls, loop: a run, top to bottom; programs:
                      what runs share that differ in numbers alone
  studies/            questions: arms over paired seeds, from the design to the verdict

The names below are stable and are imported when they are first used, so `import transformer_jax`
costs nothing. Anything else may move between versions.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "scaled_dot_product_attention": "transformer_jax.layers.attention",
    "MultiHeadAttention": "transformer_jax.layers.attention",
    "sinusoidal_positions": "transformer_jax.layers.positions",
    "causal_mask": "transformer_jax.masks",
    "Decoder": "transformer_jax.models",
    "Encoder": "transformer_jax.models",
    "EncoderDecoder": "transformer_jax.models",
    "VisionTransformer": "transformer_jax.models",
    "load_run": "transformer_jax.training.loading",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"transformer_jax has no public name {name!r}; it has {__all__}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs the package {error.name}: pip install 'transformer_jax[train]'"
        ) from error


def __dir__() -> list[str]:
    return [*globals(), *__all__]
