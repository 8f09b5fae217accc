"""Laws that every component obeys inside a model, whatever it computes.

    subject = Subject(Decoder.of(vocab_size=11, max_length=8, width=16, depth=1, num_heads=2, ...))
    for law in LAWS.values():
        law(subject)

This package's tests apply the laws to every entry of every table of components; `python -m
experiments.new` writes a test that applies them to your own component. A broken law raises
AssertionError with the observed values.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.models import Decoder
from transformer_jax.models.stack import block_specs, mask_of
from transformer_jax.paths import by_path

_LENGTH = 6
_ROWS = 3
# A key bias adds the same number to all scores of a row, which a softmax ignores. A mixture of
# equal streams, or of one alone, or before a sum, does not depend on weights that sum to 1; and a
# norm ignores the size of a mixture of equal streams.
_MAY_BE_IDLE = (
    *("key/bias", "key_norm/bias", "_streams/kept", "block_0/attention_streams/read"),
    *("block_0/attention_mean/query", "block_0/attention_mean/norm/scale"),
)


class Subject:
    """A small decoder with random parameters, and the programs that laws use.

    Attributes:
      model: A model with a `max_length` of at least 8 and a small `depth`.
      tokens: [3, 6] int, random.
      params: Random parameters instead of initial ones, so that no bias is 0 and no scale is 1.
      traces: Number of times the model was traced for `logits`.
    """

    def __init__(self, model: Decoder) -> None:
        """Draws the tokens and the parameters."""
        self.model = model
        shape = (_ROWS, _LENGTH)
        self.tokens = jax.random.randint(jax.random.key(1), shape, 0, model.vocab_size)
        self.traces = 0
        # Not compiled as a whole: most of the compilation would be for the random numbers.
        self.initial = self.draw(jax.random.key(0))
        noise = np.random.default_rng(0)
        self.params = jax.tree.map(
            lambda leaf: jnp.asarray(noise.normal(scale=0.3, size=leaf.shape), leaf.dtype),
            self.initial,
        )
        self._logits = jax.jit(self._forward)

    def draw(self, key: Array) -> Any:
        """Returns the initial parameters of the model."""
        return self.model.init(key, self.tokens)["params"]

    @property
    def losses(self) -> Array:
        """Losses with `params`, and with all values in it halved, [2]."""
        return self._differentiated[0]

    @property
    def gradients(self) -> Any:
        """Gradients of both `losses`, stacked along a leading axis."""
        return self._differentiated[1]

    @functools.cached_property
    def _differentiated(self) -> tuple[Array, Any]:
        return self.differentiate(self.params, self._half())

    def _half(self) -> Any:
        return jax.tree.map(lambda leaf: leaf / 2, self.params)

    @functools.cached_property
    def _differentiate(self) -> Callable:
        return jax.jit(jax.vmap(jax.value_and_grad(self._loss)))

    def differentiate(self, *seeds: Any) -> tuple[Array, Any]:
        """Returns the losses [2] for two sets of parameters, and their gradients, under vmap."""
        return self._differentiate(jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds))

    def _loss(self, params: Any) -> Array:
        # Rematerialisation takes place in training only.
        trains = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
        keeps_all = self.model.options.remat == "none"
        logits = self.apply(params, self.tokens, **({} if keeps_all else trains))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), self.tokens[..., None], axis=-1)
        return -chosen.sum()

    def apply(self, params: Any, tokens: Array, **options: Any) -> Array:
        """Applies the model without compiling it."""
        return cast(Array, self.model.apply({"params": params}, tokens, **options))

    def _forward(self, params: Any, tokens: Array, segments: Array, positions: Array) -> Array:
        self.traces += 1
        return self.apply(params, tokens, segments=segments, positions=positions)

    def logits(
        self, tokens: Array, segments: Array | None = None, positions: Array | None = None
    ) -> np.ndarray:
        """Returns the logits [N, 6, V] of tokens [N, 6], N <= 6, using one program for six rows."""
        rows = len(tokens)
        places = jnp.broadcast_to(jnp.arange(_LENGTH), tokens.shape)
        segments = jnp.ones_like(tokens) if segments is None else segments
        arguments = (tokens, segments, places if positions is None else positions)
        padded = [jnp.pad(array, ((0, _LENGTH - rows), (0, 0))) for array in arguments]
        return np.asarray(self._logits(self.params, *padded))[:rows]

    @functools.cached_property
    def base(self) -> np.ndarray:
        """Logits of the random tokens, [3, 6, V]."""
        return self.logits(self.tokens)

    @functools.cached_property
    def may_see(self) -> np.ndarray:
        """Tokens (columns) on which the masks let each position (row) depend, [6, 6] bool."""
        reached = np.eye(_LENGTH, dtype=bool)
        for spec in block_specs(self.model.options):
            mask = mask_of(spec.options, jnp.arange(_LENGTH), True, None)
            seen = np.ones((_LENGTH, _LENGTH), bool) if mask is None else np.asarray(mask.dense())
            reached = (seen | np.eye(_LENGTH, dtype=bool)) @ reached
        return reached


def finite_logits(subject: Subject) -> None:
    """There is one finite float32 logit for each token of the vocabulary at each position."""
    assert subject.base.shape == (_ROWS, _LENGTH, subject.model.vocab_size)
    assert subject.base.dtype == np.float32
    assert np.isfinite(subject.base).all()


def gradients_everywhere(subject: Subject) -> None:
    """The loss depends on every parameter, and its gradient is finite."""
    for name, gradient in by_path(subject.gradients).items():
        assert jnp.isfinite(gradient).all(), f"{name}: its gradient is not finite"
        # Heads for further tokens exist in training only; see models/stack.py.
        if not name.endswith(_MAY_BE_IDLE) and not name.startswith("heads/"):
            assert jnp.abs(gradient[0]).max() > 1e-7, f"{name}: its gradient is 0"


def sees_what_the_mask_allows(subject: Subject) -> None:
    """The logits at a position depend on the tokens that it may attend to; no other changes a bit.

    With the full mask this is causality: nothing flows back from the future.
    """
    tokens = jnp.broadcast_to(subject.tokens[0], (_LENGTH, _LENGTH))
    other = (tokens + 1) % subject.model.vocab_size
    changed = subject.logits(jnp.where(jnp.eye(_LENGTH, dtype=bool), other, tokens))
    base = subject.logits(tokens)
    # after .T, row: the position that is compared; column: the token that was changed
    seen = (changed != base).any(-1).T
    np.testing.assert_array_equal(seen, subject.may_see, "row = position, column = token it sees")


def only_a_prefix_is_seen_ahead(subject: Subject) -> None:
    """A token that an earlier position may see is visible to all positions, and is not the last.

    Thus a model can read a prefix in one pass and write the rest, but never sees its own answer.
    """
    seen_ahead = np.any(np.triu(subject.may_see, 1), axis=0)
    assert not seen_ahead[-1], "the last token is visible to earlier positions"
    assert subject.may_see[:, seen_ahead].all(), "a token is visible ahead to some positions only"


def packed_documents_equal_separate_ones(subject: Subject) -> None:
    """Two documents packed in one row give the same logits as each document alone."""
    first, second = subject.tokens[0, :4], subject.tokens[1, :2]
    packed = subject.logits(
        jnp.concatenate([first, second])[None],
        jnp.array([[1, 1, 1, 1, 2, 2]]),
        jnp.array([[0, 1, 2, 3, 0, 1]]),
    )[0]
    alone = subject.logits(
        jnp.stack([jnp.pad(first, (0, 2)), jnp.pad(second, (0, 4))]),
        jnp.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]),
    )
    np.testing.assert_allclose(packed[:4], alone[0, :4], atol=3e-5)
    np.testing.assert_allclose(packed[4:], alone[1, :2], atol=3e-5)


def padding_changes_nothing(subject: Subject) -> None:
    """Values at padded positions do not change a single bit elsewhere, and logits stay finite."""
    is_real = jnp.array([1, 1, 1, 1, 0, 0])
    fillers = jnp.array([0, 5, subject.model.vocab_size - 1])[:, None]
    rows = jnp.where(is_real > 0, subject.tokens[0], fillers)
    logits = subject.logits(rows, jnp.broadcast_to(is_real, rows.shape))
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(logits[1:, :4], logits[:1, :4].repeat(2, 0))


def shorter_equals_padded(subject: Subject) -> None:
    """A short input gives the same logits with and without padding after it."""
    short = jax.jit(subject.apply)(subject.params, subject.tokens[0, :4])
    padded = subject.logits(subject.tokens[:1], jnp.array([[1, 1, 1, 1, 0, 0]]))[0]
    np.testing.assert_allclose(padded[:4], short, atol=3e-5)


def jit_equals_eager(subject: Subject) -> None:
    """The logits are the same with and without compilation, with and without optional inputs."""
    eager = subject.apply(subject.params, subject.tokens)
    np.testing.assert_allclose(subject.base, eager, atol=3e-5)


def reading_on_equals_reading_at_once(subject: Subject) -> None:
    """A text read in pieces with the cache gives the same logits as the whole text.

    A model whose mask lets a position look ahead must refuse a cache instead.
    """
    variables: Any = {"params": subject.params}
    read_on = functools.partial(subject.model.apply, mutable=["cache"])
    pieces = (slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6))
    logits = []
    try:
        # Reading nothing makes a cache of zeros, so there is one program for each length.
        _, empty = jax.eval_shape(read_on, variables, subject.tokens[:, :0])
        cache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty)
        compiled = jax.jit(read_on)
        for piece in pieces:
            read, cache = compiled(variables | cache, subject.tokens[:, piece])
            logits.append(read)
    except ValueError as error:
        assert "expected masks that hide later positions" in str(error), error  # noqa: PT017
        assert np.triu(subject.may_see, 1).any(), "no cache, although the mask hides later tokens"
        return
    assert not np.triu(subject.may_see, 1).any(), "a cache, although the mask shows later tokens"
    np.testing.assert_allclose(jnp.concatenate(logits, axis=1), subject.base, atol=3e-5)


def examples_are_independent(subject: Subject) -> None:
    """An example gives the same bits for any other examples, and close values in any row.

    Bits may depend on the size of the batch, by which a device may choose its kernel.
    """
    size = subject.model.vocab_size
    mixed = [
        subject.logits(jnp.concatenate([(subject.tokens + by) % size, subject.tokens]))[_ROWS:]
        for by in (1, 2)
    ]
    np.testing.assert_array_equal(mixed[0], mixed[1])
    np.testing.assert_allclose(mixed[0], subject.base, atol=1e-5)


def seeds_are_independent(subject: Subject) -> None:
    """Under vmap, each seed draws the same bits as alone, and no seed affects another's losses."""
    drawn = jax.vmap(subject.draw)(jnp.stack([jax.random.key(n) for n in (3, 0)]))
    jax.tree.map(lambda m, s: np.testing.assert_array_equal(m[1], s), drawn, subject.initial)
    chosen = np.take_along_axis(subject.base, np.asarray(subject.tokens)[..., None], axis=-1)
    alone = np.logaddexp.reduce(subject.base, axis=-1).sum() - chosen.sum()
    np.testing.assert_allclose(subject.losses[0], alone, rtol=1e-5)
    _, swapped = subject.differentiate(subject._half(), subject.params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(lambda g, s: close(g[0], s[1]), subject.gradients, swapped)


def one_trace(subject: Subject) -> None:
    """Inputs that differ in their values, but not in their shapes, cause no recompilation."""
    subject.logits(subject.tokens * 0)
    subject.logits(subject.tokens)
    assert subject.traces == 1


def bfloat16_is_near(subject: Subject) -> None:
    """In bfloat16 the logits are close to those in float32; logits and parameters stay float32."""
    low = subject.model.with_options(dtype=jnp.bfloat16)
    logits = cast(Array, low.apply({"params": subject.params}, subject.tokens))
    assert logits.dtype == jnp.float32
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert (rounded != logits).mean() > 0.5, "the output layer computes its sums in bfloat16"
    assert np.abs(logits - subject.base).max() < 0.15 * np.abs(subject.base).max()
    params = jax.eval_shape(low.init, jax.random.key(0), subject.tokens)["params"]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} <= {"float32"}


def dropout_is_for_training(subject: Subject) -> None:
    """Without train=True, dropout does nothing; with it, the result depends only on the key.

    Attention that forms no weights refuses to drop them, and is then tested without.
    """
    dropping = subject.model.with_options(dropout_rate=0.5, stochastic_depth=0.2)
    variables = {"params": subject.params}
    programs = [
        str(jax.make_jaxpr(model.apply)(variables, subject.tokens))
        for model in (dropping, subject.model)
    ]
    if programs[0] != programs[1]:
        logits = jax.jit(dropping.apply)(variables, subject.tokens)
        np.testing.assert_allclose(logits, subject.base, atol=3e-5)

    def draw_by(model: Decoder, seeds: tuple[int, ...]) -> list[Array]:
        # Not compiled as a whole: that would take longer than running the operations one by one.
        def draw(key: Array) -> Array:
            rngs = {"dropout": key}
            return cast(Array, model.apply(variables, subject.tokens, train=True, rngs=rngs))

        return [draw(jax.random.key(seed, impl="rbg")) for seed in seeds]

    try:
        draws = draw_by(dropping, (0, 0, 1))
    except ValueError as error:
        assert "attention_dropout_rate" in str(error), error  # noqa: PT017
        draws = draw_by(dropping.with_options(attention_dropout_rate=0.0), (0, 0, 1))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])


def too_long_is_refused(subject: Subject) -> None:
    """An input longer than max_length is refused, not clamped."""
    length = subject.model.max_length + 1
    try:
        jax.eval_shape(subject.apply, subject.params, jnp.zeros((1, length), jnp.int32))
    except ValueError as error:
        assert f"length {length} is beyond max_length" in str(error)  # noqa: PT017
    else:
        raise AssertionError(f"{length} tokens, more than max_length, were accepted")


LAWS: dict[str, Callable[[Subject], None]] = {
    law.__name__: law
    for law in (
        finite_logits,
        gradients_everywhere,
        sees_what_the_mask_allows,
        only_a_prefix_is_seen_ahead,
        packed_documents_equal_separate_ones,
        padding_changes_nothing,
        shorter_equals_padded,
        jit_equals_eager,
        reading_on_equals_reading_at_once,
        examples_are_independent,
        seeds_are_independent,
        one_trace,
        bfloat16_is_near,
        dropout_is_for_training,
        too_long_is_refused,
    )
}


# Options of entries whose defaults would show nothing on six tokens.
_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("mask", "window"): {"size": 2, "sinks": 1},
    ("mask", "prefix"): {"length": 3},
    ("parametrisation", "mup"): {"base_width": 4},
}


def small_decoder(**fields: Any) -> Decoder:
    """Returns a decoder that is small enough for the laws, with `fields` replaced."""
    small: dict[str, Any] = {"vocab_size": 11, "max_length": 8, "width": 16, "depth": 1}
    for (family, name), options in _OPTIONS.items():
        if fields.get(family) == name:
            small[f"{family}_options"] = options
    if fields.get("skips", "none") != "none":
        small["depth"] = 3  # so that there is something to skip
    elif {"values", "wiring"} & fields.keys():
        small["depth"] = 2  # so that there is an earlier block to read
    small |= {"num_heads": 2, **fields}
    return Decoder.of(**small)
