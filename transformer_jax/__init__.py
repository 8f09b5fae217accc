"""transformer_jax: transformers in JAX, and experiments on them whose answers you can trust.

Start with examples/one_page.py. Then in this order, not that of imports; * marks the seven files
from attention to a trained model. On the way data/tasks/batch says what a model reads,
training/objectives what the loss is, and training/prepared compiles the step. CONTRIBUTING.md says
what a new component, task, metric or optimizer needs.
  shapes, masks*      the letters of the dimensions; who may attend to whom
  attention*, blocks* the mechanism; the block, and how attention, feed-forward layer and norms are
                      wired in it
  positions, norms, feedforward, embeddings, linear, pooling, initialisation, parametrisation, remat
                      what a config can choose; position_terms: what positions give to attention;
                      cache: keys and values that are kept
  variants/           less common choices, one idea or family a file, imported when they are chosen
  models/             stack*: options -> one specification for each block -> a stack of blocks;
                      layer_list, transformed: blocks that differ, are scanned or recomputed;
                      decoder*, encoder, encoder_decoder, vision; the recurrent baselines; effect:
                      what an option does in the end; layouts: blocks one by one, or in stacks
  sites               the named places of a model: to be read, changed, kept by name
  placement, sharding what models say of several devices (nothing on one); which of them holds
                      what: by a parameter's path, by a site
  processes           several hosts that are one run: joining, agreeing on a number
  data/               sources (text, tables, arrays, made-up languages), tokenizers; tasks:
                      examples -> Batch (numpy);
                      order: which examples a step has, from the seed and the step alone;
                      baselines: simple methods on the same data
  options, config     types of options; every option of a run: type, default, meaning;
                      model_options: those that a model takes as one value; declarations: what
                      typed fields declare, checked by pydantic
  resolve, constraints  what is read, stated and refused; combinations that make no sense
  config_files        from a file and the command line to values; stored configs
  own, suggestions    user-defined code by MODULE:NAME; the name that was probably meant
  runs/               directory: a run's files; records: rows of metrics.jsonl; checkpoints;
                      pictures; listing; several_processes: who writes, who ends with whom
  metrics             what a run is measured by, and the mark of your own; training/measuring asks
  training/           build, prepared: from a config to data, model, optimizer, compiled step;
                      objectives, optimizers (with the clip), schedules, hooks; step*: one update;
                      program: updates of one run or several, compiled; loop: runs, top to bottom;
                      compatibility, leaks: refusals before it starts; evaluation;
                      pretrained, warm_start: weights to begin with; loading, run: a trained run;
                      showcases: what it shows, and scores of what it wrote (BLEU)
  planning/           what a training step needs on devices that may not be here
  studies/            design: a question as a value; cells: its runs; study: its directory;
                      statistics: read_off gives a contrast its word, from one interval where there
                      is a mean; judging: what may overrule the word; tables, figures, report;
                      arms: made ready, with their costs; workers: train the cells; running: from
                      plan to verdict; referee: one change at a time
  sampling, generation  a token; new text (greedy, by temperature, no beams), after a source too
  inspection          what is at sites, and a model with them changed; attention maps, gradients
  interop/, hub       Hugging Face weights in and out; their folders, by path or name
  laws                what every component keeps, to be tried on your own components

Beside it: experiments/ the commands, configs/ what they read, configs/ablations/ the studies,
docs/architecture.md our words.

The names below are stable and are imported when they are first used, so `import transformer_jax`
costs nothing. Anything else may move between versions.
"""

import importlib

__version__ = "0.2.0"

# module -> its names; docs/architecture.md says what is promised.
_PUBLIC = {
    "attention": (
        "AttentionCall",
        "AttentionVariant",
        "MultiHeadAttention",
        "attention_weights",
        "scaled_dot_product_attention",
    ),
    "masks": (
        "Mask",
        "Places",
        "Rule",
        "causal_mask",
        "padding_mask",
        "prefix_mask",
        "segment_mask",
        "window_mask",
    ),
    "norms": ("LayerNorm", "RMSNorm", "layer_norm", "rms_norm"),
    "positions": (
        "LearnedPositions",
        "RotaryPositions",
        "SinusoidalPositions",
        "sinusoidal_positions",
    ),
    "variants.relative": ("ALiBiPositions", "T5Positions"),
    "variants.experts": ("MixtureOfExperts",),
    "position_terms": ("PositionTerms", "Sizes", "rotate"),
    "feedforward": ("FeedForward", "GatedFeedForward"),
    "blocks": ("Block", "Context", "PostNorm", "PreNorm"),
    "models": ("Decoder", "Encoder", "EncoderDecoder", "VisionTransformer"),
    "models.recurrent": ("RecurrentDecoder", "RecurrentEncoder"),
    "generation": ("generate", "generate_after", "generate_from"),
    "sampling": ("draw_token",),
    "inspection": (
        "attention_maps",
        "capture",
        "gradient_norms",
        "hidden_vectors",
        "intervene",
        "sites_of",
    ),
    "sites": ("SITES", "interventions", "site"),
    "laws": ("LAWS", "Subject"),
    "data.laws": ("TASK_LAWS",),
    "data.tasks": ("Task",),
    "metrics": ("METRICS", "metric"),
    "training.hooks": ("intervenes",),
    "interop": ("from_huggingface", "to_huggingface"),
    "training.loading": ("load_run",),
    "training.pretrained": ("config_from_huggingface",),
    "studies": ("load_study",),
    "studies.scores": ("judge",),
    "studies.statistics": ("paired_interval",),
}
_HOMES = {name: f"transformer_jax.{home}" for home, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"transformer_jax has no public name {name!r}; it has {__all__}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from transformer_jax.errors import how_to_install

        extra = "judge" if error.name == "scipy" else "train"
        raise ImportError(
            f"{name} needs the package {error.name}: {how_to_install(extra)}"
        ) from error


def __dir__() -> list[str]:
    return [*globals(), *__all__]
