"""transformer_jax: transformers in JAX, and experiments on them whose answers you can trust.

Start with examples/one_page.py, then read in this order; * marks the seven files from attention to
a trained model. docs/architecture.md explains the parts and the project's own twelve terms.

  shapes, masks*         dimension letters; masks as arrays and as rules
  attention*, blocks*    multi-head attention; pre-norm and post-norm blocks
  positions, norms, feedforward, linear, pooling, initialisation
                         the other components; cache: keys, values and states for generation
  models/                stack*: blocks from options; decoder*, encoder, encoder_decoder, vision
  variants/              less common components, imported when chosen
  sites, inspection      named values inside a model, to be read or changed
  generation             new tokens from a model
  placement, sharding    division of arrays over devices; processes: runs on several hosts
  data/                  tasks turn sources (text, tables, images) into batches; order: the examples
                         in each step
  config, resolve, constraints, config_files
                         the options of a run: defaults, invalid combinations, files, command line
  training/              step*: one update; loop*: a run; build, prepared: from a config to a
                         compiled step; objectives, optimizers, schedules, hooks
  runs/                  files of a run: checkpoints, metrics.jsonl, manifest
  studies/               design, arms, workers, running, statistics, judging, report
  interop/, hub          Hugging Face weights
  planning/              memory and time of a training step on other devices
  laws                   properties that every component must have

The names below are stable and are imported on first use, so `import transformer_jax` is fast. All
other names may move between versions.
"""

import importlib

__version__ = "0.2.0"

# Public names by module; docs/architecture.md lists those that stay stable.
_PUBLIC = {
    "attention": (
        "AttentionCall AttentionVariant MultiHeadAttention attention_weights "
        "scaled_dot_product_attention"
    ),
    "masks": "Mask Places Rule causal_mask padding_mask prefix_mask segment_mask window_mask",
    "norms": "LayerNorm RMSNorm layer_norm rms_norm",
    "positions": (
        "LearnedPositions PositionTerms RotaryPositions Rotation SinusoidalPositions Sizes "
        "rotate sinusoidal_positions"
    ),
    "variants.relative": "ALiBiPositions T5Positions",
    "variants.experts": "MixtureOfExperts",
    "feedforward": "FeedForward GatedFeedForward",
    "blocks": "Block Context PostNorm PreNorm",
    "models": "Decoder Encoder EncoderDecoder VisionTransformer",
    "models.recurrent": "RecurrentDecoder RecurrentEncoder",
    "generation": "draw_token generate generate_after generate_from",
    "inspection": "attention_maps capture gradient_norms hidden_vectors intervene sites_of",
    "sites": "SITES interventions site",
    "laws": "LAWS Subject",
    "data.laws": "TASK_LAWS",
    "data.tasks": "Task",
    "metrics": "METRICS metric",
    "training.hooks": "intervenes",
    "interop": "from_huggingface to_huggingface",
    "training.loading": "load_run",
    "training.pretrained": "config_from_huggingface",
    "studies": "load_study",
    "studies.scores": "judge",
    "studies.statistics": "paired_interval",
}
_HOMES = {n: f"transformer_jax.{home}" for home, names in _PUBLIC.items() for n in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(
            f"transformer_jax has no public name {name!r}; its names are {', '.join(__all__)}"
        )
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from transformer_jax.errors import how_to_install

        install = how_to_install("judge" if error.name == "scipy" else "train")
        raise ImportError(f"{name} needs the package {error.name}: {install}") from error


def __dir__() -> list[str]:
    return [*globals(), *__all__]
