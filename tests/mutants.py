"""Mutants of the core: one small fault each, and the fast tests that have to find it.

A test suite that stays green while the code computes something else tests nothing. Each row names
a fault that somebody could make by hand, and the tests that must then fail; the runner makes the
fault in a copy of the tree and runs them.

    python -m tests.mutants [--only=WORDS] [--jobs=2]

Exit code 0 means that all were killed, after the same tests had passed without a fault.
"""

import argparse
import ast
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NEEDED = ("transformer_jax", "configs", "experiments", "tests", "pyproject.toml")
LIMIT = 60.0  # seconds that the killers of one mutant may take
LIMIT_OF_ALL = 1800.0  # seconds for all of them on the code as it is


class Mutant(NamedTuple):
    """A fault, and what finds it.

    Attributes:
      name: of the fault, in a few words.
      file: that holds it, from the root of the repository.
      function: qualified name of the function or method, `Class.method` or `outer.inner`.
      old: source text that occurs in that function exactly once.
      new: what stands there instead.
      tests: pytest ids, of which at least one has to fail.
    """

    name: str
    file: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]


# fmt: off
MUTANTS = (
    # attention
    Mutant("scores divided by the head size, not its root",
           "transformer_jax/layers/weights.py", "attention_scores",
           "query / math.sqrt(query.shape[-1])", "query / query.shape[-1]",
           ("tests/test_attention.py::test_equals_a_float64_loop",)),
    Mutant("mask upside down",
           "transformer_jax/layers/weights.py", "attention_scores",
           "jnp.where(mask, scores, -jnp.inf)", "jnp.where(mask, -jnp.inf, scores)",
           ("tests/test_attention.py::test_rows_are_distributions_and_masked_entries_are_zero",)),
    Mutant("bias taken off the scores",
           "transformer_jax/layers/weights.py", "attention_scores",
           "scores + bias.astype(wide)", "scores - bias.astype(wide)",
           ("tests/test_attention.py::test_equals_a_float64_loop",)),
    Mutant("scores bent as if the soft cap were 1",
           "transformer_jax/layers/weights.py", "attention_scores",
           "soft_cap * jnp.tanh(scores / soft_cap)", "soft_cap * jnp.tanh(scores)",
           ("tests/test_components.py::test_a_soft_cap_bends_scores_before_the_bias",)),
    Mutant("softmax over the queries",
           "transformer_jax/layers/weights.py", "masked_softmax",
           "exponentials.sum(-1, keepdims=True)", "exponentials.sum(-2, keepdims=True)",
           ("tests/test_attention.py::test_softmax_of_2_1_0",)),
    Mutant("a row of -inf gives not a number",
           "transformer_jax/layers/weights.py", "masked_softmax",
           "jnp.where(jnp.isneginf(largest), 0, largest)", "largest",
           ("tests/test_attention.py::test_c40_fully_masked_row_is_exactly_zero",)),
    Mutant("the smallest score taken off before exp",
           "transformer_jax/layers/weights.py", "masked_softmax",
           "scores.max(-1, keepdims=True)", "scores.min(-1, keepdims=True)",
           ("tests/test_attention.py::test_c43_softmax_stays_honest_at_the_edges",)),
    Mutant("heads split the wrong way round",
           "transformer_jax/layers/attention.py", "_split",
           "jnp.swapaxes(flat.reshape(*flat.shape[:-1], heads, features), -3, -2)", "jnp.moveaxis(flat.reshape(*flat.shape[:-1], features, heads), -1, -3)",
           ("tests/test_attention.py::test_one_output_matrix_equals_the_sum_over_heads",)),
    Mutant("key heads tiled over the queries, not repeated",
           "transformer_jax/layers/attention.py", "MultiHeadAttention._serve_groups",
           "jnp.repeat(array, served, axis=-3)", "jnp.concatenate([array] * served, axis=-3)",
           ("tests/test_components.py::test_grouped_queries_equal_heads_with_repeated_keys",)),
    Mutant("cross-attention looks at its own inputs",
           "transformer_jax/layers/attention.py", "MultiHeadAttention.__call__",
           "(inputs, memory, memory)", "(inputs, inputs, inputs)",
           ("tests/test_attention.py::test_cross_attention_takes_keys_and_values_from_the_memory",)),
    Mutant("attention dropout in evaluation, not in training",
           "transformer_jax/layers/attention.py", "MultiHeadAttention.__call__",
           "deterministic=not train", "deterministic=train",
           ("tests/test_attention.py::test_dropout_on_the_weights_only_in_training",)),
    Mutant("keys are not rotated",
           "transformer_jax/layers/attention.py", "MultiHeadAttention.__call__",
           "rotate(array, terms.rotation) for array in (query_HLK, key_GMK)",
           "a for a in (rotate(query_HLK, terms.rotation), key_GMK)",
           ("tests/test_survivors.py::test_turning_queries_and_keys_alike_changes_no_weight",)),
    Mutant("keys are not normed",
           "transformer_jax/layers/attention.py", "MultiHeadAttention.__call__",
           'self.query_key_norm(name="key_norm")(key_GMK)', "key_GMK * 1",
           ("tests/test_survivors.py::test_the_size_of_a_normed_key_does_not_matter",)),
    # positions
    Mutant("rotation with a wrong sign",
           "transformer_jax/layers/position_terms.py", "rotate",
           "first * cos - second * sin", "first * cos + second * sin",
           ("tests/test_layers.py::test_rotary_equals_complex_multiplication",)),
    Mutant("rotation backwards",
           "transformer_jax/layers/positions.py", "RotaryPositions.__call__",
           "jnp.sin(angles)", "-jnp.sin(angles)",
           ("tests/test_layers.py::test_rotary_equals_complex_multiplication",)),
    Mutant("learned positions off by one",
           "transformer_jax/layers/positions.py", "LearnedPositions.__call__",
           "lookup(table, positions)", "lookup(table, jnp.maximum(positions - 1, 0))",
           ("tests/test_survivors.py::test_a_learned_position_is_the_row_of_its_number",)),
    Mutant("sinusoids of half the exponent",
           "transformer_jax/layers/positions.py", "_angles",
           "jnp.arange(0, width, 2, dtype=jnp.float32)", "jnp.arange(0, width // 2, dtype=jnp.float32)",
           ("tests/test_layers.py::test_sinusoids_equal_the_papers_formula_in_float64",)),
    Mutant("cosines before sines",
           "transformer_jax/layers/positions.py", "_sinusoids",
           "[jnp.sin(angles), jnp.cos(angles)]", "[jnp.cos(angles), jnp.sin(angles)]",
           ("tests/test_layers.py::test_sinusoids_equal_the_papers_formula_in_float64",)),
    Mutant("sinusoids at another amplitude",
           "transformer_jax/layers/positions.py", "SinusoidalPositions.__call__",
           "table * (self.rms * math.sqrt(2))", "table * self.rms",
           ("tests/test_layers.py::test_learned_and_sinusoidal_start_at_the_same_rms",)),
    Mutant("patches counted by rows in place of columns",
           "transformer_jax/layers/positions.py", "Sinusoidal2DPositions.__call__",
           "jnp.maximum(patches, 0), columns)", "jnp.maximum(patches, 0), rows)",
           ("tests/test_architectures.py::test_positions_in_two_dimensions_mark_rows_and_columns",)),
    Mutant("distances with the wrong sign",
           "transformer_jax/layers/positions.py", "_distances",
           "positions[..., None, :] - positions[..., :, None]", "positions[..., :, None] - positions[..., None, :]",
           ("tests/test_components.py::test_shaw_equals_a_loop_in_float64",)),
    Mutant("ALiBi slopes half as steep",
           "transformer_jax/layers/positions.py", "alibi_slopes",
           "-8 * head / power", "-4 * head / power",
           ("tests/test_layers.py::test_alibi_slopes_as_numbers",)),
    Mutant("ALiBi rewards distance",
           "transformer_jax/layers/positions.py", "ALiBiPositions.__call__",
           "bias=-slopes", "bias=slopes",
           ("tests/test_layers.py::test_alibi_slopes_as_numbers",)),
    Mutant("T5's buckets of keys ahead and behind swapped",
           "transformer_jax/layers/positions.py", "relative_buckets",
           "(distances > 0)", "(distances < 0)",
           ("tests/test_components.py::test_buckets_of_relative_distances_as_numbers",)),
    Mutant("T5 has one bucket for all that lies behind",
           "transformer_jax/layers/positions.py", "relative_buckets",
           "jnp.maximum(-distances, 0)", "jnp.maximum(distances, 0)",
           ("tests/test_components.py::test_buckets_of_relative_distances_as_numbers",)),
    Mutant("T5 looks at distances the wrong way round",
           "transformer_jax/layers/positions.py", "T5Positions.__call__",
           "_distances(positions)[..., 0, :, :]", "-_distances(positions)[..., 0, :, :]",
           ("tests/test_laws.py::test_law[position=t5-gradients_everywhere]",)),
    Mutant("contextual positions count keys that are hidden",
           "transformer_jax/layers/positions.py", "_contextual_bias",
           "jnp.where(mask, gates, 0)", "gates",
           ("tests/test_components.py::test_contextual_positions_equal_a_loop_in_float64",)),
    # masks
    Mutant("causal mask hides the place itself",
           "transformer_jax/masks.py", "causal_mask",
           "ahead <= 0", "ahead < 0",
           ("tests/test_masks.py::test_causal_mask_as_a_grid",)),
    Mutant("causal mask shows the next token",
           "transformer_jax/masks.py", "causal_mask",
           "ahead <= 0", "ahead <= 1",
           ("tests/test_masks.py::test_causal_mask_as_a_grid",)),
    Mutant("first query lined up with the first key",
           "transformer_jax/masks.py", "_offsets",
           "jnp.arange(length) + (key_length - length)", "jnp.arange(length)",
           ("tests/test_masks.py::test_causal_mask_lines_up_the_last_query_with_the_last_key",)),
    Mutant("window one too long",
           "transformer_jax/masks.py", "window",
           "distance < size", "distance <= size",
           ("tests/test_components.py::test_rows_of_masks_as_grids",)),
    Mutant("one sink too many",
           "transformer_jax/masks.py", "window",
           "positions < sinks", "positions <= sinks",
           ("tests/test_components.py::test_rows_of_masks_as_grids",)),
    Mutant("prefix one too long",
           "transformer_jax/masks.py", "prefix",
           "positions < length", "positions <= length",
           ("tests/test_components.py::test_rows_of_masks_as_grids",)),
    Mutant("padding is seen by padding",
           "transformer_jax/masks.py", "segment_mask",
           "(key_segments != 0)", "(key_segments >= 0)",
           ("tests/test_masks.py::test_segments_and_padding_as_a_grid",)),
    Mutant("later documents see earlier ones",
           "transformer_jax/masks.py", "segment_mask",
           "segments[..., :, None] == key_segments", "segments[..., :, None] >= key_segments",
           ("tests/test_masks.py::test_segments_and_padding_as_a_grid",)),
    Mutant("segments widen the mask",
           "transformer_jax/models/parts.py", "Transformer.attention_mask",
           "mask & segment_mask(segments)", "mask | segment_mask(segments)",
           ("tests/test_laws.py::test_law[position=learned-packed_documents_equal_separate_ones]",)),
    Mutant("padding of the source is looked at",
           "transformer_jax/models/encoder_decoder.py", "EncoderDecoder.encode",
           "padding_mask(source_segments > 0)", "padding_mask(source_segments >= 0)",
           ("tests/test_architectures.py::test_padding_equals_a_shorter_input[encoder_decoder]",)),
    Mutant("cross-attention without its mask",
           "transformer_jax/layers/blocks.py", "Block.__call__.cross_attend",
           "mask=memory_mask", "mask=None",
           ("tests/test_architectures.py::test_padding_equals_a_shorter_input[encoder_decoder]",)),
    Mutant("decoder of a pair is not causal",
           "transformer_jax/models/encoder_decoder.py", "EncoderDecoder.decode",
           "embedded, None, True, segments", "embedded, None, False, segments",
           ("tests/test_architectures.py::test_c49_no_target_sees_what_comes_after_it[encoder_decoder]",)),
    # blocks, norms, embeddings
    Mutant("no residual connection",
           "transformer_jax/layers/blocks.py", "PreNorm.__call__",
           "hidden + branch(", "branch(",
           ("tests/test_layers.py::test_wirings_are_the_papers",)),
    Mutant("pre-norm becomes post-norm",
           "transformer_jax/layers/blocks.py", "PreNorm.__call__",
           'hidden + branch(make_norm(name=f"{name}_norm")(hidden))', 'make_norm(name=f"{name}_norm")(hidden + branch(hidden))',
           ("tests/test_layers.py::test_wirings_are_the_papers",)),
    Mutant("post-norm leaves the residual out of the norm",
           "transformer_jax/layers/blocks.py", "PostNorm.__call__",
           'make_norm(name=f"{name}_norm")(hidden + branch(hidden))', 'hidden + make_norm(name=f"{name}_norm")(branch(hidden))',
           ("tests/test_layers.py::test_wirings_are_the_papers",)),
    Mutant("DeepNorm shrinks the residual",
           "transformer_jax/layers/blocks.py", "DeepNorm.__call__",
           "** 0.25", "** -0.25",
           ("tests/test_layers.py::test_wirings_are_the_papers",)),
    Mutant("final norm after post-norm, not after pre-norm",
           "transformer_jax/models/parts.py", "Transformer.run_blocks",
           "if wiring.final_norm else", "if not wiring.final_norm else",
           ("tests/test_survivors.py::test_a_stack_ends_with_a_norm_where_its_last_sum_has_none",)),
    Mutant("first block never left out, last one too little",
           "transformer_jax/models/parts.py", "Transformer.run_blocks",
           "(layer + 1) / self.depth", "layer / self.depth",
           ("tests/test_survivors.py::test_later_blocks_are_left_out_more_often",)),
    Mutant("variance over n - 1",
           "transformer_jax/layers/norms.py", "layer_norm",
           "jnp.square(centred).mean(-1, keepdims=True)", "jnp.square(centred).sum(-1, keepdims=True) / (inputs.shape[-1] - 1)",
           ("tests/test_layers.py::test_norms_equal_their_formulas_in_float64",)),
    Mutant("epsilon outside the root",
           "transformer_jax/layers/norms.py", "layer_norm",
           "jax.lax.rsqrt(variance + epsilon)", "1 / (jnp.sqrt(variance) + epsilon)",
           ("tests/test_layers.py::test_norms_equal_their_formulas_in_float64",)),
    Mutant("mean over the places, not the features",
           "transformer_jax/layers/norms.py", "layer_norm",
           "wide.mean(-1, keepdims=True)", "wide.mean(-2, keepdims=True)",
           ("tests/test_layers.py::test_layer_norm_gives_mean_0_and_deviation_1",)),
    Mutant("RMS norm takes the mean off",
           "transformer_jax/layers/norms.py", "rms_norm",
           "wide * jax.lax.rsqrt", "(wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt",
           ("tests/test_layers.py::test_norms_equal_their_formulas_in_float64",)),
    Mutant("token -1 is the last row",
           "transformer_jax/layers/embeddings.py", "lookup",
           "jnp.where(indices < 0, table.shape[0], indices)", "indices",
           ("tests/test_layers.py::test_c53_tokens_outside_the_vocabulary_give_nan_and_not_a_neighbour",)),
    Mutant("embeddings of a pair divided by the root of the width",
           "transformer_jax/models/encoder_decoder.py", "EncoderDecoder._scaled",
           "self.width**0.5", "self.width**-0.5",
           ("tests/test_survivors.py::test_embeddings_of_a_pair_are_multiplied_by_the_root_of_the_width",)),
    Mutant("gate and value swapped",
           "transformer_jax/layers/feedforward.py", "GatedFeedForward.__call__",
           "self.activation(read[0]) * read[1]", "self.activation(read[1]) * read[0]",
           ("tests/test_components.py::test_gates_equal_the_formula_with_as_many_parameters_as_two_maps",)),
    Mutant("writing kernels as large as the others",
           "transformer_jax/layers/initialisation.py", "depth_scaled",
           "math.sqrt(2 * max(depth, 1))", "math.sqrt(2)",
           ("tests/test_models.py::test_c61_initial_deviations_are_the_declared_ones",)),
    # vision, pooling
    Mutant("pixels cut row by row, not patch by patch",
           "transformer_jax/layers/stems.py", "patches_of",
           "jnp.swapaxes(grid, -4, -3)", "grid",
           ("tests/test_architectures.py::test_patches_written_out",)),
    Mutant("class token behind the patches",
           "transformer_jax/layers/pooling.py", "ClassToken.__call__",
           "[repeated.astype(inputs.dtype), inputs]", "[inputs, repeated.astype(inputs.dtype)]",
           ("tests/test_survivors.py::test_the_class_token_stands_first",)),
    Mutant("mean over padding too",
           "transformer_jax/layers/pooling.py", "MeanOfPlaces.__call__",
           "jnp.maximum(count, 1)", "hidden.shape[-2]",
           ("tests/test_architectures.py::test_padding_equals_a_shorter_input[encoder mean]",)),
    Mutant("padding of vectors shifted by the class token",
           "transformer_jax/models/encoder.py", "Encoder._project",
           "[(1, 0)]", "[(0, 1)]",
           ("tests/test_architectures.py::test_padding_equals_a_shorter_input[encoder of vectors]",)),
    # generation
    Mutant("cache counts calls, not tokens",
           "transformer_jax/layers/cache.py", "advance_cache",
           "held.value + count", "held.value + 1",
           ("tests/test_survivors.py::test_a_cache_holds_what_was_read_in_its_places_and_no_more",)),
    Mutant("cache writes one place too early",
           "transformer_jax/layers/cache.py", "append_to_cache",
           "flat, slot.first, axis=1", "flat, slot.first - 1, axis=1",
           ("tests/test_survivors.py::test_a_cache_holds_what_was_read_in_its_places_and_no_more",)),
    Mutant("position terms of a cache from 0 on",
           "transformer_jax/layers/cache.py", "CacheSlot.rows",
           "table, self.first, self.count", "table, 0, self.count",
           ("tests/test_survivors.py::test_a_cache_holds_what_was_read_in_its_places_and_no_more",)),
    Mutant("a full cache takes one more",
           "transformer_jax/layers/cache.py", "nan_on_overflow",
           "<= slot.capacity", "<= slot.capacity + 1",
           ("tests/test_survivors.py::test_a_cache_holds_what_was_read_in_its_places_and_no_more",)),
    Mutant("top-k keeps k + 1",
           "transformer_jax/generation.py", "restrict_logits",
           "top_k - 1", "top_k",
           ("tests/test_generation.py::test_what_top_k_and_top_p_keep",)),
    Mutant("top-p drops the token that reaches p",
           "transformer_jax/generation.py", "restrict_logits",
           "jnp.cumsum(probabilities, axis=-1) - probabilities", "jnp.cumsum(probabilities, axis=-1)",
           ("tests/test_generation.py::test_what_top_k_and_top_p_keep",)),
    Mutant("greedy takes the unlikeliest",
           "transformer_jax/generation.py", "draw_token",
           "logits.argmax(-1)", "logits.argmin(-1)",
           ("tests/test_generation.py::test_c48_edges_of_drawing",)),
    Mutant("logits times the temperature",
           "transformer_jax/generation.py", "draw_token",
           "logits / temperature, top_k", "logits * temperature, top_k",
           ("tests/test_generation.py::test_draws_follow_the_probabilities",)),
    Mutant("logits of the place after the last token",
           "transformer_jax/generation.py", "windowed_next_logits.next_logits",
           "length - 1", "length",
           ("tests/test_survivors.py::test_what_is_drawn_follows_the_last_tokens_of_the_text_also_when_it_slides",)),
    Mutant("the context slides the wrong way",
           "transformer_jax/generation.py", "generate.add_token",
           "jnp.roll(context, -1, axis=-1)", "jnp.roll(context, 1, axis=-1)",
           ("tests/test_survivors.py::test_what_is_drawn_follows_the_last_tokens_of_the_text_also_when_it_slides",)),
    Mutant("every token drawn with one key",
           "transformer_jax/generation.py", "generate.add_token",
           "jax.random.fold_in(rng, index)", "rng",
           ("tests/test_generation.py::test_agrees_under_jit_and_vmap_and_over_a_batch",)),
    Mutant("what is written is not what is fed back",
           "transformer_jax/generation.py", "feed_back.write",
           "place - 1", "place",
           ("tests/test_synthetic_tasks.py::test_what_was_written_is_read",)),
    # data
    Mutant("targets are the inputs",
           "transformer_jax/data/tasks/language_modelling.py", "LanguageModelling._examples",
           '"targets": tokens[:, 1:]', '"targets": tokens[:, :-1]',
           ("tests/test_data.py::test_a_batch_of_four_tokens_written_out",)),
    Mutant("a target beyond the end is scored",
           "transformer_jax/data/tasks/language_modelling.py", "LanguageModelling._examples",
           "target_places < len(stream)", "target_places <= len(stream)",
           ("tests/test_data.py::test_a_batch_of_four_tokens_written_out",)),
    Mutant("predictions across documents",
           "transformer_jax/data/tasks/language_modelling.py", "LanguageModelling._examples",
           "segments[:, 1:] == segments[:, :-1]", "segments[:, 1:] >= segments[:, :-1]",
           ("tests/test_data.py::test_packed_documents_written_out",)),
    Mutant("a stride leaves a token out",
           "transformer_jax/data/tasks/language_modelling.py", "LanguageModelling.evaluation_batches",
           ">= self.length - stride", "> self.length - stride",
           ("tests/test_data.py::test_evaluation_scores_every_token_but_the_first_once",)),
    Mutant("bytes of targets that are not scored",
           "transformer_jax/data/tasks/language_modelling.py", "LanguageModelling.scored_bytes",
           '(batch["weights"] > 0)', '(batch["weights"] >= 0)',
           ("tests/test_data.py::test_c69_bytes_are_those_of_the_scored_text",)),
    Mutant("too many hidden tokens are masked",
           "transformer_jax/data/tasks/masked_language_modelling.py", "MaskedLanguageModelling._examples",
           "draws[1] < 0.8", "draws[1] < 0.9",
           ("tests/test_tasks.py::test_hidden_tokens_are_chosen_as_bert_chooses_them",)),
    Mutant("places that are not hidden are predicted",
           "transformer_jax/data/tasks/masked_language_modelling.py", "MaskedLanguageModelling._examples",
           "[0 * first, chosen]", "[0 * first, is_text]",
           ("tests/test_tasks.py::test_hidden_tokens_are_chosen_as_bert_chooses_them",)),
    Mutant("padding of a target has a weight",
           "transformer_jax/data/tasks/translation.py", "Translation._examples",
           '(rows["segments"] > 0)', '(rows["segments"] >= 0)',
           ("tests/test_tasks.py::test_a_translation_batch_written_out",)),
    Mutant("a translation ends one token late",
           "transformer_jax/data/tasks/translation.py", "Translation.__post_init__",
           "keepdims=True) - 1", "keepdims=True)",
           ("tests/test_tasks.py::test_a_translation_batch_written_out",)),
    Mutant("rows that fill a batch count",
           "transformer_jax/data/order.py", "batches_of",
           "np.array([1, 0], np.float32)", "np.array([1, 1], np.float32)",
           ("tests/test_tables_and_arrays.py::test_batches_count_each_example_once",)),
    Mutant("one order for all epochs",
           "transformer_jax/data/order.py", "example_order",
           "_permutation(seed, int(epoch), num_examples)", "_permutation(seed, 0, num_examples)",
           ("tests/test_data.py::test_c64_each_example_once_per_epoch_for_any_batch_size",)),
    Mutant("one order for all seeds",
           "transformer_jax/data/order.py", "example_order",
           "_permutation(seed, int(epoch), num_examples)", "_permutation(0, int(epoch), num_examples)",
           ("tests/test_data.py::test_c62_neighbouring_seeds_have_other_orders",)),
    Mutant("step n reads the batch of step n + 1",
           "transformer_jax/data/order.py", "example_order",
           "np.arange(step * batch_size, (step + 1) * batch_size)", "np.arange((step + 1) * batch_size, (step + 2) * batch_size)",
           ("tests/test_data.py::test_c64_each_example_once_per_epoch_for_any_batch_size",)),
    Mutant("windows always on the same grid",
           "transformer_jax/data/order.py", "window_starts",
           "integers(left_over + 1)", "integers(1)",
           ("tests/test_data.py::test_training_batches_are_pure_and_cover_the_text",)),
    Mutant("one split for all seeds",
           "transformer_jax/data/order.py", "place_of",
           'f"{seed}:{key}"', 'f"{key}"',
           ("tests/test_tables_and_arrays.py::test_equal_keys_stay_together_and_shares_hold",)),
    Mutant("byte pairs are not merged",
           "transformer_jax/data/tokenizers.py", "BPETokenizer.train",
           "vocab_size=vocab_size", "vocab_size=256",
           ("tests/test_data.py::test_bpe_merges_what_is_common",)),
    Mutant("byte pairs count as one byte",
           "transformer_jax/data/tokenizers.py", "BPETokenizer.__init__",
           "len(model.id_to_token(token))", "1",
           ("tests/test_data.py::test_c65_hard_text_survives_every_lossless_tokenizer[bpe]",)),
    Mutant("characters numbered by their place in the alphabet",
           "transformer_jax/data/tokenizers.py", "CharTokenizer.encode",
           "self._order[slots]", "slots",
           ("tests/test_survivors.py::test_characters_keep_the_numbers_of_a_stored_vocabulary",)),
    Mutant("a tokenizer learns from the test sentences",
           "transformer_jax/data/tasks/translation.py", "Translation.load",
           'splits, split_seed)["train"]', 'splits, split_seed)["test"]',
           ("tests/test_data.py::test_a_tokenizer_is_trained_on_the_training_split_alone",)),
    # the update
    Mutant("dropout of every step from one key",
           "transformer_jax/training/step.py", "make_train_step.train_step",
           "jax.random.fold_in(dropout_key, state.step)", "dropout_key",
           ("tests/test_step.py::test_c60_dropout_differs_by_step_and_by_part",)),
    Mutant("dropout of every part from one key",
           "transformer_jax/training/step.py", "make_train_step.summed_gradients",
           "jax.random.split(key, accumulation)", "jnp.stack([key] * accumulation)",
           ("tests/test_step.py::test_c60_dropout_differs_by_step_and_by_part",)),
    Mutant("parts of a batch divided once too often",
           "transformer_jax/training/step.py", "make_train_step.train_step",
           "safe_mean(leaf, sums.weight), gradients)", "safe_mean(leaf, sums.weight) / accumulation, gradients)",
           ("tests/test_step.py::test_c8_accumulation_equals_the_whole_batch_with_unequal_tokens",)),
    Mutant("gradient of a mean of means",
           "transformer_jax/training/step.py", "make_train_step.loss_sum",
           "sums.loss.sum()", "(safe_mean(sums.loss, sums.weight) * sums.weight.mean()).sum()",
           ("tests/test_step.py::test_c8_accumulation_equals_the_whole_batch_with_unequal_tokens",)),
    Mutant("padding counts in the mean loss",
           "transformer_jax/training/step.py", "make_train_step.train_step",
           "safe_mean(sums.loss, sums.weight)", 'safe_mean(sums.loss, batch["weights"].size)',
           ("tests/test_step.py::test_loss_is_the_token_weighted_mean",)),
    Mutant("balance of experts not weighted by targets",
           "transformer_jax/training/step.py", "make_train_step.loss_sum",
           "(added * sums.weight).sum()", "added.sum()",
           ("tests/test_survivors.py::test_what_layers_add_to_the_loss_is_not_divided_by_the_targets",)),
    Mutant("only the loss has to be finite",
           "transformer_jax/training/step.py", "make_train_step.train_step",
           "jnp.isfinite(loss) & jnp.isfinite(norm)", "jnp.isfinite(loss)",
           ("tests/test_survivors.py::test_a_gradient_that_is_infinite_touches_nothing_though_the_loss_is_finite",)),
    Mutant("steps go on after one that is not finite",
           "transformer_jax/training/step.py", "make_run_steps.run_steps.goes_on",
           "(index < num_steps) & finite", "index < num_steps",
           ("tests/test_step.py::test_c45_a_step_that_is_not_finite_touches_nothing",)),
    Mutant("every step of a call takes its first batch",
           "transformer_jax/training/step.py", "make_run_steps.run_steps.take_step",
           "leaf[index]", "leaf[0]",
           ("tests/test_step.py::test_single_steps_give_the_same_bits_as_the_loop",)),
    Mutant("inputs that nobody is asked for are replaced too",
           "transformer_jax/training/objectives.py", "ScheduledSampling.prepare",
           "asked & jax.random", "jax.random",
           ("tests/test_synthetic_tasks.py::test_free_running_inputs_are_what_generation_writes",)),
    Mutant("smoothing is forgotten by the objective",
           "transformer_jax/training/objectives.py", "CrossEntropy.sums",
           "weights, self.smoothing)", "weights)",
           ("tests/test_survivors.py::test_the_objective_smooths_what_training_sees",)),
    Mutant("smoothing shares out too much",
           "transformer_jax/training/losses.py", "cross_entropy",
           "smoothing * logits.mean(-1)", "smoothing * logits.sum(-1)",
           ("tests/test_survivors.py::test_smoothing_is_a_mean_of_the_target_and_of_all_classes",)),
    Mutant("weights above 0 count as 1",
           "transformer_jax/training/losses.py", "cross_entropy",
           "jnp.where(counts, weights * losses, 0)", "jnp.where(counts, losses, 0)",
           ("tests/test_survivors.py::test_a_target_of_weight_two_counts_twice_and_one_of_weight_0_never",)),
    Mutant("label -1 is the last class",
           "transformer_jax/training/losses.py", "cross_entropy",
           "jnp.where(targets < 0, logits.shape[-1], targets)", "targets",
           ("tests/test_step.py::test_c53_a_label_outside_the_vocabulary_is_not_somebody_elses_loss",)),
    Mutant("right answers are counted without their weight",
           "transformer_jax/training/metrics.py", "sums_of",
           "weights * (logits.argmax(-1) == targets)", "1.0 * (logits.argmax(-1) == targets)",
           ("tests/test_survivors.py::test_a_target_of_weight_two_counts_twice_and_one_of_weight_0_never",)),
    Mutant("nats per byte called bits",
           "transformer_jax/training/metrics.py", "summary",
           "loss / math.log(2) / num_bytes", "loss / num_bytes",
           ("tests/test_step.py::test_summary_divides_once",)),
    Mutant("a batch without targets gives no number",
           "transformer_jax/training/metrics.py", "safe_mean",
           "jnp.where(weight == 0, 1, weight)", "weight",
           ("tests/test_step.py::test_c41_a_batch_without_targets_changes_no_parameter_by_gradient",)),
    # optimizer
    Mutant("every number clipped alone",
           "transformer_jax/training/optimizers.py", "make_optimizer",
           "optax.clip_by_global_norm(limit)", "optax.clip(limit)",
           ("tests/test_survivors.py::test_clipping_keeps_the_direction_of_the_gradient",)),
    Mutant("gradients are not clipped",
           "transformer_jax/training/optimizers.py", "make_optimizer",
           "optax.chain(clip, optimizer)", "optax.chain(optimizer)",
           ("tests/test_survivors.py::test_clipping_keeps_the_direction_of_the_gradient",)),
    Mutant("AdamW's second moment fades as its first",
           "transformer_jax/training/optimizers.py", "adamw",
           "optax.scale_by_adam(b1, b2, eps)", "optax.scale_by_adam(b1, b1, eps)",
           ("tests/test_optimizers.py::test_steps_are_those_of_optax[adamw]",)),
    Mutant("AdamW's decay goes through the moments",
           "transformer_jax/training/optimizers.py", "adamw",
           "optax.scale_by_adam(b1, b2, eps), around.decay", "around.decay, optax.scale_by_adam(b1, b2, eps)",
           ("tests/test_optimizers.py::test_steps_are_those_of_optax[adamw]",)),
    Mutant("norms and biases decay",
           "transformer_jax/training/optimizers.py", "decay_of",
           "is_frozen or not decays", "is_frozen",
           ("tests/test_step.py::test_decay_goes_by_name_even_for_stacked_parameters",)),
    Mutant("mean of weights forgets as much as it keeps",
           "transformer_jax/training/optimizers.py", "weight_mean.update",
           "decay * m + (1 - decay) * p", "(1 - decay) * m + decay * p",
           ("tests/test_optimizers.py::test_a_mean_of_weights_is_what_is_evaluated",)),
    Mutant("mean of weights one update late",
           "transformer_jax/training/optimizers.py", "weight_mean.update",
           "optax.apply_updates(params, updates)", "params",
           ("tests/test_optimizers.py::test_a_mean_of_weights_is_what_is_evaluated",)),
    Mutant("the mean of weights is not evaluated",
           "transformer_jax/training/optimizers.py", "evaluated_params",
           "return state.mean", "return params",
           ("tests/test_optimizers.py::test_a_mean_of_weights_is_what_is_evaluated",)),
    Mutant("cosine one update late",
           "transformer_jax/training/schedules.py", "warmup_cosine",
           "curve(count + 1)", "curve(count)",
           ("tests/test_step.py::test_schedule_at_its_corners",)),
    Mutant("warm-up one update too long",
           "transformer_jax/training/schedules.py", "_warmed_up",
           "update / max(warmup_steps, 1)", "update / (warmup_steps + 1)",
           ("tests/test_optimizers.py::test_schedules_at_their_corners",)),
    Mutant("line down over the warm-up too",
           "transformer_jax/training/schedules.py", "warmup_linear",
           "max(steps - warmup_steps, 1)", "max(steps, 1)",
           ("tests/test_optimizers.py::test_schedules_at_their_corners",)),
    # a run
    Mutant("a resumed run reads one batch twice",
           "transformer_jax/training/loop.py", "Training._restore_or_start",
           "self.directory.step = restored.step", "self.directory.step = restored.step - 1",
           ("tests/test_survivors.py::test_rows_of_a_resumed_run_are_those_of_a_whole_one",)),
    Mutant("a resumed run forgets losses since the last row",
           "transformer_jax/training/loop.py", "Training._restore_or_start",
           '[tuple(pair) for pair in restored.extra["pending"]]', "[]",
           ("tests/test_survivors.py::test_rows_of_a_resumed_run_are_those_of_a_whole_one",)),
    Mutant("batches of the next step",
           "transformer_jax/training/loop.py", "Training._advance",
           "seeds.order, self.directory.step, num_steps", "seeds.order, self.directory.step + 1, num_steps",
           ("tests/test_train.py::test_c9_golden_losses_of_the_first_rows",)),
    Mutant("rows of the restored step are cut",
           "transformer_jax/runs/directory.py", "RunDirectory.cut_metrics",
           "<= step", "< step",
           ("tests/test_survivors.py::test_rows_up_to_the_restored_step_stay_and_no_others",)),
    Mutant("rows beyond the checkpoint stay",
           "transformer_jax/runs/directory.py", "RunDirectory.cut_metrics",
           "<= step", "<= step + 1",
           ("tests/test_survivors.py::test_rows_up_to_the_restored_step_stay_and_no_others",)),
    Mutant("files that are not in the manifest are trusted",
           "transformer_jax/runs/checkpoints.py", "damage_of",
           "expected.keys() | found.keys()", "expected.keys() & found.keys()",
           ("tests/test_checkpoints.py::test_c13_an_extra_file_is_damage_too",)),
    Mutant("hashes of files are not compared",
           "transformer_jax/runs/checkpoints.py", "damage_of",
           "expected.get(name) != found.get(name)", "name not in found",
           ("tests/test_checkpoints.py::test_c13_damage_to_any_file_falls_back_loudly[flip]",)),
    Mutant("the manifest's own hash is not compared",
           "transformer_jax/runs/checkpoints.py", "_read_manifest",
           '!= stored["sha256"]', '== ""',
           ("tests/test_checkpoints.py::test_c13_damage_to_any_file_falls_back_loudly[flip]", "tests/test_checkpoints.py::test_reading_only_moves_nothing")),
    Mutant("leaves that the model lacks are ignored",
           "transformer_jax/runs/checkpoints.py", "_refuse_other_leaves",
           "[*wanted, *stored]", "[*wanted]",
           ("tests/test_checkpoints.py::test_c16_c17_another_model_is_refused",)),
    Mutant("shapes of leaves are not looked at",
           "transformer_jax/runs/checkpoints.py", "_leaves",
           "[list(leaf.shape), str(leaf.dtype)]", "[[], str(leaf.dtype)]",
           ("tests/test_checkpoints.py::test_c16_c17_another_model_is_refused",)),
    Mutant("the oldest checkpoint is restored",
           "transformer_jax/runs/checkpoints.py", "Checkpoints.restore",
           "reversed(self.steps())", "self.steps()",
           ("tests/test_checkpoints.py::test_c13_damage_to_any_file_falls_back_loudly[flip]",)),
    Mutant("one checkpoint too many is kept",
           "transformer_jax/runs/checkpoints.py", "Checkpoints._remove_old",
           "[: -self._keep]", "[: -self._keep - 1]",
           ("tests/test_checkpoints.py::test_c21_the_newest_are_kept",)),
    # studies
    Mutant("a negligible effect is one that may be large",
           "transformer_jax/studies/inference/statistics.py", "read_off",
           "farthest < margin", "nearest < margin",
           ("tests/test_survivors.py::test_an_interval_says_each_word_up_to_its_bounds",)),
    Mutant("no different by half an interval",
           "transformer_jax/studies/inference/statistics.py", "read_off",
           "-margin < low and high < margin", "high < margin",
           ("tests/test_survivors.py::test_an_interval_says_each_word_up_to_its_bounds",)),
    Mutant("difference taken the wrong way round",
           "transformer_jax/studies/inference/statistics.py", "_Pair.__init__",
           "sign * (ours - theirs)", "sign * (theirs - ours)",
           ("tests/test_statistics.py::test_better_worse_and_their_margin",)),
    Mutant("smaller is better",
           "transformer_jax/studies/inference/statistics.py", "compare",
           "1.0 if larger_is_better else -1.0", "-1.0 if larger_is_better else 1.0",
           ("tests/test_statistics.py::test_better_worse_and_their_margin",)),
    Mutant("t test with n degrees of freedom",
           "transformer_jax/studies/inference/statistics.py", "paired_t",
           "np.abs(mean / error), count - 1", "np.abs(mean / error), count",
           ("tests/test_statistics.py::test_paired_t_is_scipys",)),
    Mutant("deviation over n",
           "transformer_jax/studies/inference/statistics.py", "paired_t",
           "ddof=1", "ddof=0",
           ("tests/test_statistics.py::test_paired_t_is_scipys",)),
    Mutant("interval with the one-sided quantile",
           "transformer_jax/studies/inference/statistics.py", "interval",
           "ppf(1 - level / 2", "ppf(1 - level",
           ("tests/test_statistics.py::test_paired_t_is_scipys",)),
    Mutant("simultaneous interval at the pointwise level",
           "transformer_jax/studies/inference/statistics.py", "_Pair.contrast",
           "FOR_MEANS / size", "FOR_MEANS",
           ("tests/test_survivors.py::test_intervals_are_wider_the_more_arms_there_are",)),
    Mutant("equivalence by the better of two tests",
           "transformer_jax/studies/inference/statistics.py", "equivalence_p",
           "max(above, below)", "min(above, below)",
           ("tests/test_statistics.py::test_equivalence_is_two_one_sided_tests_of_scipy",)),
    Mutant("five seeds are few",
           "transformer_jax/studies/inference/statistics.py", "_Pair.contrast",
           "count < FEWEST_FOR_EQUIVALENCE", "count <= FEWEST_FOR_EQUIVALENCE",
           ("tests/test_survivors.py::test_fewer_than_five_seeds_are_noted",)),
    Mutant("dust of rounding is a spread",
           "transformer_jax/studies/inference/statistics.py", "paired_t",
           "np.where(is_dust, 0, d.std(-1, ddof=1))", "d.std(-1, ddof=1)",
           ("tests/test_statistics.py::test_one_more_right_answer_in_every_seed_is_no_evidence[444]",)),
    Mutant("the base's divergence is the arm's",
           "transformer_jax/studies/inference/statistics.py", "boschloo_p",
           "[one[0], other[0]]", "[other[0], one[0]]",
           ("tests/test_statistics.py::test_clopper_pearson_and_boschloo",)),
    Mutant("peeking is free",
           "transformer_jax/studies/inference/statistics.py", "level_of_look",
           "2.0 ** -(len(counts) - as_planned)", "1.0",
           ("tests/test_statistics.py::test_levels_of_looks",)),
    Mutant("sign flips of pairs",
           "transformer_jax/studies/inference/statistics.py", "sign_flip_p",
           'd.sum(axis)', 'abs(d).sum(axis)',
           ("tests/test_statistics.py::test_sign_flip_is_scipys_permutation_test",)),
    Mutant("seeds needed from the lower bound of the spread",
           "transformer_jax/studies/inference/power.py", "seeds_needed",
           "stats.chi2.ppf(0.2, freedom)", "stats.chi2.ppf(0.8, freedom)",
           ("tests/test_statistics.py::test_seeds_needed_never_looks_at_the_effect",)),
    Mutant("the residual added to the variance of new text",
           "transformer_jax/studies/inference/statistics.py", "beyond_this_text",
           "ms_sequence - ms_residual", "ms_sequence + ms_residual",
           ("tests/test_survivors.py::test_new_text_by_hand",)),
    Mutant("a cell's hash leaves seeds that are given alone out",
           "transformer_jax/studies/asking/cells.py", "cell_hash",
           "if key.startswith(_DECIDED_ON_THE_HOST) and", "if False and",
           ("tests/test_cells.py::test_the_hash_covers_what_decides_and_nothing_else",)),
    Mutant("a cell's hash leaves out how it was computed",
           "transformer_jax/studies/asking/cells.py", "cell_hash",
           '"computed": computed', '"computed": ""',
           ("tests/test_cells.py::test_the_hash_covers_what_decides_and_nothing_else",)),
    Mutant("what a program computes leaves its numbers out",
           "transformer_jax/training/programs.py", "_spell_number",
           "hashlib.sha256(number.tobytes())", "hashlib.sha256(b'')",
           ("tests/test_cells.py::test_a_program_is_what_it_computes",)),
    Mutant("what a program computes keeps what nobody reads",
           "transformer_jax/training/programs.py", "_canonical_lines",
           "read.intersection(results) or equation.effects", "True",
           ("tests/test_cells.py::test_a_program_is_what_it_computes",)),
    Mutant("what a program computes leaves its loops out",
           "transformer_jax/training/programs.py", "_canonical_lines",
           "for programs in held.values() for each", "for programs in () for each",
           ("tests/test_cells.py::test_a_program_is_what_it_computes",)),
    Mutant("a digest of the data leaves the order of training out",
           "transformer_jax/studies/running/computation.py", "_batches",
           "yield task.batch(seed, step)", "yield task.batch(0, 0)",
           ("tests/test_cells.py::test_a_digest_is_of_what_the_data_gives",)),
    Mutant("the code of the host is not followed",
           "transformer_jax/studies/running/computation.py", "code_of",
           "waiting.append(value)", "pass",
           ("tests/test_cells.py::test_the_hosts_code_is_followed_by_name_and_not_by_place",)),
    Mutant("cells are taken over whatever comes out",
           "transformer_jax/studies/running/adoption.py", "adopt",
           "if not _are_equal(", "if not _are_equal and (",
           ("tests/test_cells.py::test_cells_that_come_out_otherwise_are_trained_anew",)),
    Mutant("a run that guesses has not diverged",
           "transformer_jax/studies/asking/cells.py", "Cell._got_worse",
           "trained[-1] < untrained", "trained[0] < untrained",
           ("tests/test_survivors.py::test_a_run_no_better_than_a_guess_diverged_unless_it_learned_in_training",)),
    Mutant("overfitting is divergence",
           "transformer_jax/studies/asking/cells.py", "Cell._got_worse",
           "return not (trained and trained[-1] < untrained)", "return True",
           ("tests/test_survivors.py::test_a_run_no_better_than_a_guess_diverged_unless_it_learned_in_training",)),
    Mutant("a changed margin is not noticed",
           "transformer_jax/studies/asking/study.py", "changed_since",
           "before.get(key) != after[key]", "key not in before",
           ("tests/test_survivors.py::test_a_margin_that_changed_after_the_first_cell_refuses_and_a_question_does_not",)),
    Mutant("a changed margin refuses nothing",
           "transformer_jax/studies/asking/study.py", "Study.seal",
           "any(key in changed for key in _DECIDING)", "all(key in changed for key in _DECIDING)",
           ("tests/test_survivors.py::test_a_margin_that_changed_after_the_first_cell_refuses_and_a_question_does_not",)),
    Mutant("a missing reference is an empty one",
           "transformer_jax/training/showcases.py", "streams_of",
           "else None", 'else ""',
           ("tests/test_survivors.py::test_a_source_with_fewer_references_has_none_and_no_empty_one",)),
)
# fmt: on


# ---------------------------------------------------------------- one edit


def place_of(source: str, function: str) -> tuple[int, int]:
    """Returns the first line of a function and the one after its last, counted from 0."""
    node: ast.AST = ast.parse(source)
    for name in function.split("."):
        inner = [child for child in ast.iter_child_nodes(node) if hasattr(child, "body")]
        (node,) = [child for child in inner if getattr(child, "name", None) == name]
    assert isinstance(node, ast.FunctionDef)
    return node.lineno - 1, node.end_lineno or node.lineno


def edited(source: str, mutant: Mutant) -> str:
    """Returns the source with the fault; ValueError if its place is not found exactly once."""
    lines = source.splitlines(keepends=True)
    first, end = place_of(source, mutant.function)
    text = "".join(lines[first:end])
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {text.count(mutant.old)} places, expected 1")
    return "".join([*lines[:first], text.replace(mutant.old, mutant.new), *lines[end:]])


# ---------------------------------------------------------------- running


def copy_tree(folder: Path) -> Path:
    """Copies what the tests need."""
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    return folder


def run_tests(tree: Path, tests: tuple[str, ...], limit: float) -> tuple[int | None, str]:
    """Returns pytest's exit code in a tree, None where it did not end in time; and what it said."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", *tests]
    around = {"PYTHONPATH": str(tree), "JAX_COMPILATION_CACHE_DIR": str(tree / "compiled")}
    try:
        done = subprocess.run(
            command, cwd=tree, env=os.environ | around, capture_output=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {limit:.0f} s"
    return done.returncode, done.stdout.decode(errors="replace")


def judged(mutant: Mutant) -> str:
    """Returns what became of a mutant, as a line; only a test that failed has killed it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        file = tree / mutant.file
        try:
            changed = edited(file.read_text(encoding="utf-8"), mutant)
        except ValueError as error:
            return f"ERROR {error}"
        file.write_text(changed, encoding="utf-8")
        code, _ = run_tests(tree, mutant.tests, LIMIT)
    word = {0: "SURVIVED", 1: "killed"}.get(code, f"ERROR (pytest: {code})")
    return f"{word} {mutant.name} ({time.monotonic() - started:.1f} s)"


def pass_unchanged(mutants: list[Mutant]) -> bool:
    """Whether all tests that are named pass on the code as it is; says how they fail."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    print(f"{len(tests)} tests without any fault ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        code, told = run_tests(copy_tree(Path(folder)), tuple(tests), LIMIT_OF_ALL)
    print("passed" if code == 0 else told, flush=True)
    return code == 0


def main() -> int:
    """Judges the mutants that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Makes small faults that the tests have to find.")
    parser.add_argument("--only", default="", help="mutants with this in their name or file")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time")
    options = parser.parse_args()
    mutants = [m for m in MUTANTS if options.only in f"{m.name} {m.file} {m.function}"]
    if not mutants:
        parser.error(f"--only={options.only}: no such mutant")
    if not pass_unchanged(mutants):
        return 1
    killed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(judged, mutants):
            print(line, flush=True)
            killed += line.startswith("killed")
    print(f"{killed} of {len(mutants)} killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
