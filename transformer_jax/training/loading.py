"""A trained model with all that it needs, out of its run directory."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax.data.tokenizers import Tokenizer, fingerprint
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import generate_from
from transformer_jax.training.build import make_model
from transformer_jax.training.checkpoints import Checkpoints
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.rules import RULES
from transformer_jax.training.runs import RunDirectory
from transformer_jax.training.step import make_initial_state


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model with all that it needs.

    Attributes:
      config: the run's resolved config.
      model: the Linen module; `model.apply({'params': params}, tokens)` gives logits.
      params: of the newest whole checkpoint.
      tokenizer: text <-> tokens.
      step: optimizer updates behind the parameters.
    """

    config: ConfigDict
    model: nn.Module
    params: Any
    tokenizer: Tokenizer
    step: int

    def sample(
        self,
        prompt: str = "\n",
        num_tokens: int = 300,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Continues a prompt.

        Args:
          prompt: text in characters that the tokenizer knows; not empty.
          num_tokens: tokens to add.
          temperature: 0 takes the likeliest token.
          top_k: draw among the k likeliest only.
          top_p: draw among the likeliest that together reach this probability.
          seed: the same seed gives the same text; in [0, 2^32).
        Returns:
          The continuation, without the prompt.
        Raises:
          InvalidInput: an unknown character, an empty prompt, an option without meaning, or a
            model whose logits are not numbers.
        """
        if not RULES["seed"].accepts(seed):
            raise InvalidInput(f"seed: expected {RULES['seed'].allowed}, got {seed}")
        drawn = generate_from(
            self.model,
            self.params,
            jnp.asarray(self.tokenizer.encode(prompt)),
            jax.random.key(seed),
            num_tokens=num_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        if (drawn < 0).any():
            raise InvalidInput("the model's logits are NaN: its parameters are broken")
        return self.tokenizer.decode(drawn.tolist())


def load_run(workdir: str | Path, say: Callable[[str], None] = print) -> Run:
    """Loads the newest whole checkpoint of a run; writes nothing, so a read-only copy will do.

    Args:
      workdir: the run's directory.
      say: takes one line about each checkpoint that is skipped.
    Returns:
      The run, ready to apply or to sample from.
    Raises:
      InvalidInput: no run, no whole checkpoint, a damaged or foreign one, or another tokenizer
        than the run was trained with.
    """
    directory = RunDirectory(workdir)
    config, tokenizer = directory.config(), directory.tokenizer()
    if fingerprint(tokenizer) != directory.manifest()["data"]["tokenizer_sha256"]:
        raise InvalidInput(
            f"{directory.tokenizer_path}: not the tokenizer that this run was trained with"
        )
    model = make_model(config.model, tokenizer.vocab_size)
    template = jax.eval_shape(make_initial_state(model, make_optimizer(config), config))
    restored = Checkpoints(directory.checkpoints, say=say).restore(template, read_only=True)
    if restored is None:
        raise InvalidInput(f"--workdir={workdir}: no checkpoint yet; train it first")
    return Run(config, model, restored.state.params, tokenizer, restored.step)
