"""A trained model, ready to generate text, compute probabilities and classify."""

import dataclasses
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config_files as configs
from transformer_jax.config import OPTIONS
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.subword_tokenizers import BPETokenizer, HuggingFaceTokenizer
from transformer_jax.data.tasks.classification import encode_texts
from transformer_jax.data.tasks.translation import encode_sources, with_end
from transformer_jax.data.tokenizers import Tokenizer, warn_of_unknown
from transformer_jax.errors import InvalidInput, require
from transformer_jax.generation import generate_after, generate_from
from transformer_jax.options import is_user_defined
from transformer_jax.paths import variables_of
from transformer_jax.processes import whole
from transformer_jax.resolve import stated
from transformer_jax.runs.notebook import html_table
from transformer_jax.runs.pictures import loss_figure
from transformer_jax.sharding import Sharding
from transformer_jax.training.build import without_kernels
from transformer_jax.training.streaming import stream_from

Prompt = TypeVar("Prompt", str, list[str])
_ROWS_AT_ONCE = 64
_SHORTEST = 64  # fewest tokens, padding included, of a text whose probability is computed


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model with its config, parameters and tokenizer.

    Attributes:
      config: The run's resolved config.
      model: The Linen module; `model.apply({'params': params}, **inputs)` returns logits.
      params: Parameters of the newest whole checkpoint, or their average if one was kept.
      tokenizer: The model's tokenizer, or None if the model reads no text.
      step: Number of optimizer updates.
      classes: Names of the classes, for models that classify.
      num_texts: Number of texts in an example; 2 if pairs of texts are classified.
      metrics: Rows of metrics.jsonl in order of updates: step, train/loss, eval/loss, ...
      begins: First tokens of a translation, for a Hugging Face model that frames texts
        differently from this package; otherwise empty.
      sharding: Placement of the parameters on several devices, or None if they are on one.
    """

    config: ConfigDict
    model: Any
    params: Any
    tokenizer: Tokenizer | None
    step: int
    classes: tuple[str, ...] = ()
    num_texts: int = 1
    metrics: Sequence[Mapping[str, Any]] = ()
    begins: tuple[int, ...] = ()
    sharding: Sharding | None = None

    def plot(self) -> Any:
        """Returns the loss over the updates as a matplotlib figure.

        Raises:
          InvalidInput: The run was not trained here or has no loss yet, or matplotlib is missing.
        """
        if not any("train/loss" in row for row in self.metrics):
            raise InvalidInput("no losses to draw: this run was not trained here")
        require("matplotlib", "plot()")
        return loss_figure(self.metrics)

    def __repr__(self) -> str:
        """Returns a description of the run in three lines, without its parameters."""
        config, params = self.config, variables_of(self.params)["params"]
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        shape = ", ".join(f"{k} {config.model[k]}" for k in ("width", "depth", "num_heads"))
        trained = f"trained on {config.data.task} of {config.data.source} for {self.step:,} updates"
        if not self.step and config.initial.weights:
            trained = f"weights of {config.initial.weights}, for {config.data.task}"
        return (
            f"Run: {config.model.architecture}, {count:,} parameters ({shape})\n"
            f"  {trained}\n"
            f"  options changed from defaults: {len(stated(configs.flatten(config)))}; see .config"
        )

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: the description, and the options that are not defaults."""
        changes = stated(configs.flatten(self.config))
        return html_table(repr(self), ("option", "value"), changes.items())

    def sample(
        self,
        prompt: Prompt = "\n",  # ty: ignore[invalid-parameter-default]
        num_tokens: int = 300,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Prompt:
        """Continues one prompt, or each prompt in a list, with a language model.

        Args:
          prompt: A non-empty text that the tokenizer can encode, or a list of such texts.
          num_tokens: Number of tokens to add.
          temperature: Divisor of the logits; 0 takes the likeliest token.
          top_k: Number of likeliest tokens to draw from; all if None.
          top_p: Total probability that the likeliest tokens to draw from must reach.
          seed: An integer in [0, 2^32); the same seed and prompts give the same texts.
          stop: A string or several; the text ends before the first that occurs.

        Returns:
          The continuation without the prompt, or a list of continuations for a list of prompts.

        Raises:
          InvalidInput: A character is unknown, the prompt is empty, an option is not allowed, the
            logits are NaN, or the model is not a language model.
        """
        key, ends = key_of(seed), _ends_of(stop)
        is_one = isinstance(prompt, str)
        prompts = [prompt] if is_one else _several(prompt)
        keys = [key] if is_one else jax.random.split(key, len(prompts))
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        texts = []
        for begun, own_key in zip(prompts, keys, strict=True):
            start = self.encode(begun)
            drawn = generate_from(
                self.model, self.params, start, own_key, num_tokens=num_tokens, **options
            )
            text = self._continuation(begun, self._before_end(_numbers(drawn).tolist(), ends))
            texts.append(_text_before(text, ends))
        return texts[0] if is_one else texts  # ty: ignore[invalid-explicit-return]

    def stream(
        self,
        prompt: str = "\n",
        num_tokens: int = 300,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """Yields the continuation of a prompt, as in `sample`, piece by piece while it is drawn.

        A character of several tokens is yielded whole, and drawing ends with a stop string.
        """
        key, ends = key_of(seed), _ends_of(stop)
        options: Any = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        start, drawn, shown = jnp.asarray(self.encode(prompt)), [], 0
        for piece in stream_from(self.model, self.params, start, key, num_tokens, **options):
            drawn += _numbers(piece).tolist()
            kept = self._before_end(drawn, ends)
            is_full = len(kept) < len(drawn) or len(drawn) == num_tokens
            text = self._continuation(prompt, kept, is_full)
            complete = _text_before(text, ends)
            is_last = len(complete) < len(text) or is_full
            sure = len(complete) if is_last else _sure_length(complete, ends)
            if sure > shown:
                yield complete[shown:sure]
                shown = sure
            if is_last:
                return

    def _before_end(self, drawn: list[int], ends: Iterable[str]) -> list[int]:
        """Returns the tokens before the first special one, which has no text, in `ends`."""
        special = getattr(self.tokenizer, "special", {})
        for end, name in itertools.product(ends, special):
            if name in end and name != end:
                raise InvalidInput(f"stop={end!r}: expected the special token {name!r} alone")
        stops = {special[end] for end in ends if end in special}
        return list(itertools.takewhile(lambda token: token not in stops, drawn))

    def _continuation(self, prompt: str, drawn: list[int], is_whole: bool = True) -> str:
        """Returns the text of new tokens, with the space after the prompt if there is one."""
        tokenizer = self.tokenizer_for("language_modelling")
        if isinstance(tokenizer, HuggingFaceTokenizer):
            if not is_whole:
                drawn = tokenizer.without_last_bytes(drawn)
            elif unknown := tokenizer.without_text(drawn):
                told = f"{len(unknown)} of {len(drawn)} tokens drawn are not in the tokenizer"
                warnings.warn(f"{told} (e.g. {unknown[0]}) and have no text", stacklevel=2)
            begun = tokenizer.encode(prompt).tolist()
            before, text = tokenizer.decode(begun), tokenizer.decode([*begun, *drawn])
            if text.startswith(before):
                return text[len(before) :]
        return tokenizer.decode(drawn)

    def encode(self, text: str) -> np.ndarray:
        """Returns a text's tokens, [L] int, for a language model.

        Raises:
          InvalidInput: A character is unknown, or a token is none of the model's vocabulary.
        """
        tokenizer = self.tokenizer_for("language_modelling")
        if not isinstance(text, str):
            raise InvalidInput(f"text: expected a string, got {text!r:.60}")
        tokens, size = np.asarray(tokenizer.encode(text)), getattr(self.model, "vocab_size", None)
        warn_of_unknown(tokenizer, tokens)
        if size and tokens.size and tokens.max() >= size:  # e.g. one added without an embedding
            last = int(tokens.max())
            raise InvalidInput(
                f"text: token {last} ({tokenizer.decode([last])!r}) is outside the model's "
                f"vocabulary of {size}"
            )
        return tokens

    def log_probabilities(self, text: str) -> np.ndarray:
        """Returns the log-probability of each token after the first, given the tokens before it.

        The text has 2 to model.max_length + 1 tokens. The result is [tokens - 1] float32, in nats.

        Raises:
          InvalidInput: The text's length, a character or the kind of model is not allowed.
        """
        tokens = self.encode(text)
        most, length = self.model.max_length + 1, len(tokens) - 1
        if not 2 <= len(tokens) <= most:
            raise InvalidInput(
                f"expected a text of 2 to {most} tokens (model.max_length + 1), got {len(tokens)}"
            )
        self.refuse_other_than_causal()
        # Texts are padded to few lengths, so that the model is compiled only a few times.
        size = min(self.model.max_length, max(_SHORTEST, 1 << (length - 1).bit_length()))
        padded = np.zeros((1, size), np.int32)
        padded[0, :length] = tokens[:-1]
        inputs = {"tokens": padded}
        if "segments" in inspect.signature(type(self.model).__call__).parameters:
            inputs["segments"] = (np.arange(size) < length).astype(np.int32)[None]
        logits = _numbers(logits_of(self.model, self.params, inputs)[0, :length])
        chances = jax.nn.log_softmax(logits.astype(np.float32))
        return np.asarray(chances)[np.arange(length), tokens[1:]]

    def perplexity(self, text: str) -> float:
        """Returns exp of the mean negative log-probability of a text's tokens after its first."""
        return float(np.exp(-self.log_probabilities(text).mean()))

    def refuse_other_than_causal(self) -> None:
        """Raises InvalidInput if the model sees tokens that it would have to predict."""
        if hasattr(self.model, "is_causal") and not self.model.is_causal():
            raise InvalidInput(
                "this model sees the tokens that it would have to predict (model.mask), so it "
                "defines no probability of a text"
            )

    def translate(self, sentences: Iterable[str]) -> list[str]:
        """Translates sentences of at most data.length tokens, always taking the likeliest token.

        Raises:
          InvalidInput: A sentence is too long, or the model does not translate.
        """
        tokenizer, sentences = self.tokenizer_for("translation"), _several(sentences)
        length, specials = self.config.data.length, special_tokens(tokenizer)
        inputs = encode_sources(self.source_tokens, sentences, length, specials.padding)
        warn_of_unknown(tokenizer, inputs["source"][inputs["source_segments"] > 0])
        begin, count = np.asarray(self.target_begin), length - len(self.target_begin) + 1

        def write(rows: dict[str, np.ndarray]) -> jax.Array:
            lengths: Any = {"num_tokens": count, "end": specials.end}
            return generate_after(self.model, self.params, rows, begin, **lengths)

        texts, written = [], self._by_rows(inputs, write)
        for row in _numbers(written).tolist():
            end = row.index(specials.end) if specials.end in row else len(row)
            words = [token for token in row[:end] if token < tokenizer.vocab_size]
            texts.append(tokenizer.decode(words).strip())
        return texts

    @property
    def target_begin(self) -> tuple[int, ...]:
        """The tokens with which each target begins."""
        return self.begins or (special_tokens(self.tokenizer_for("translation")).begin,)

    def source_tokens(self, sentence: str) -> list[int]:
        """Returns the input token IDs for a sentence to translate, special tokens included."""
        tokenizer = self.tokenizer_for("translation")
        if self.begins and isinstance(tokenizer, HuggingFaceTokenizer):
            return tokenizer.encode_whole(sentence)
        return with_end(tokenizer, sentence)

    def classify(self, texts: Iterable[str | tuple[str, ...]]) -> np.ndarray:
        """Returns the probability of each class, in the order of `classes`, [N, C] float32.

        `texts` are N texts, or pairs if it was trained on pairs; cut at data.length tokens.

        Raises:
          InvalidInput: The model does not classify texts, or an example is one text where pairs
            are expected, or a pair where single texts are expected.
        """
        tokenizer, texts = self.tokenizer_for("text_classification"), _several(texts)
        if not self.model.num_classes:
            raise InvalidInput("this model has no classes: it returns a vector for each token")
        expected = {1: "a text", 2: "a pair of texts"}[self.num_texts]
        for example in texts:
            if (1 if isinstance(example, str) else len(example)) != self.num_texts:
                raise InvalidInput(f"expected {expected} for each example, got {example!r}")
        inputs, cut = encode_texts(tokenizer, texts, length := self.config.data.length)
        if cut:
            told = f"{cut} of {len(texts)} texts are truncated to data.length={length} tokens"
            warnings.warn(told, stacklevel=2)
        warn_of_unknown(tokenizer, inputs["tokens"][inputs["segments"] > 0])
        logits = self._by_rows(inputs, lambda rows: logits_of(self.model, self.params, rows))
        return np.asarray(jax.nn.softmax(_numbers(logits), axis=-1))

    def fill_in(self, text: str) -> list[tuple[str, float]]:
        """Returns the five likeliest tokens for the ___ in a text, with their probabilities.

        Special tokens, and that of unknown words, are left out.

        Raises:
          InvalidInput: There is not exactly one ___, or the model cannot fill in such a text.
        """
        tokenizer = self.tokenizer_for("masked_language_modelling")
        parts = text.split("___")
        if len(parts) != 2:
            raise InvalidInput(f"expected a text with one ___ to fill in, got {text!r}")
        specials = special_tokens(tokenizer)
        if isinstance(tokenizer, BPETokenizer) or getattr(tokenizer, "is_byte_level", False):
            parts[0] = parts[0].removesuffix(" ")  # a word's token holds the space before it
        before, after = (tokenizer.encode(part).tolist() for part in parts)
        warn_of_unknown(tokenizer, np.array([*before, *after]))
        tokens = [specials.begin, *before, specials.mask, *after]
        if len(tokens) > self.model.max_length:
            raise InvalidInput(
                f"text: got {len(tokens)} tokens; model.max_length is {self.model.max_length}"
            )
        logits = logits_of(self.model, self.params, {"tokens": np.asarray(tokens)[None]})
        probabilities = np.asarray(jax.nn.softmax(logits[0, 1 + len(before)]))
        ranked = np.argsort(-probabilities[: tokenizer.vocab_size])
        no_word = [n for n in (*specials[:4], getattr(tokenizer, "unknown", None)) if n is not None]
        ranked = ranked[~np.isin(ranked, no_word)][:5]
        return [(tokenizer.decode([token]), float(probabilities[token])) for token in ranked]

    def tokenizer_for(self, task: str) -> Tokenizer:
        """Returns the tokenizer if the model was trained on this task, else raises InvalidInput."""
        if self.config.data.task != task and not is_user_defined(self.config.data.task):
            raise InvalidInput(
                f"expected a run with data.task={task}, got data.task={self.config.data.task}"
            )
        if self.tokenizer is None:
            raise InvalidInput("this run has no tokenizer.json, so its model cannot read text")
        return self.tokenizer

    @staticmethod
    def _by_rows(inputs: dict[str, np.ndarray], apply: Callable) -> np.ndarray:
        """Applies a function to batches of rows of the same size; returns the joined results."""
        count, results = len(next(iter(inputs.values()))), []
        for first in range(0, count, _ROWS_AT_ONCE):
            places = np.minimum(np.arange(first, first + _ROWS_AT_ONCE), count - 1)
            rows = {name: array[places] for name, array in inputs.items()}
            results.append(whole(apply(rows)))
        return np.concatenate(results)[:count]


def logits_of(model: Any, params: Any, inputs: Any) -> jax.Array:
    """Returns a model's logits for some inputs, complete in each process."""
    return whole(_apply(model, params, inputs))


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: Any, params: Any, inputs: Any) -> jax.Array:
    return model.apply(variables_of(params), **inputs)


def key_of(seed: int) -> jax.Array:
    """Returns the PRNG key of a seed, an integer in [0, 2^32)."""
    if not (isinstance(seed, Integral) and OPTIONS["seed"].accepts(int(seed))):
        raise InvalidInput(f"seed: expected {OPTIONS['seed'].allowed}, got {seed}")
    return jax.random.key(seed)


def _ends_of(stop: str | Sequence[str]) -> list[str]:
    is_one = isinstance(stop, str) or not isinstance(stop, Iterable | None)
    ends: list[Any] = [stop] if is_one else list(stop or ())
    if not all(end and isinstance(end, str) for end in ends):
        raise InvalidInput("stop: expected non-empty strings")
    return ends


def _text_before(text: str, ends: Iterable[str]) -> str:
    """Returns the part of a text before the first occurrence of any string in `ends`."""
    return text[: min([len(text), *[text.find(end) for end in ends if end in text]])]


def _sure_length(text: str, ends: Iterable[str]) -> int:
    """Returns the length of the text without a partial character or stop string at its end."""
    whole = text.rstrip("\N{REPLACEMENT CHARACTER}")
    begun = [n for end in ends for n in range(1, len(end)) if whole.endswith(end[:n])]
    return len(whole) - max(begun, default=0)


def _several(texts: Iterable[Any]) -> list[Any]:
    """Returns the texts as a list; refuses a single string, which would become characters."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidInput(f"expected a list of texts, got {str(texts)[:40]!r}")
    texts = list(texts)
    if not texts:
        raise InvalidInput("expected at least one text, got none")
    return texts


def _numbers(results: Any) -> np.ndarray:
    """Returns results as a numpy array; raises InvalidInput for NaN logits or the token -1."""
    results = np.asarray(whole(results))
    if np.isnan(results).any() if results.dtype.kind == "f" else (results < 0).any():
        raise InvalidInput("the model's logits are NaN: a parameter or an output is not finite")
    return results


def to_write(run: Run, sharding: Sharding | None) -> Run:
    """Returns a run whose model can generate with the given sharding; see without_kernels."""
    if sharding is None:
        return run
    return dataclasses.replace(run, model=without_kernels(run.model))
