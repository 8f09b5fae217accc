r"""Times by length: reading at once, training beside an LSTM, and writing with a cache or without.

Every length has a decoder of the config's shape that can hold as much, and an LSTM of 2 layers with
as many parameters. All programs of a length take turns within each round; what counts are the
ratios within a round.

Example:
  python -m experiments.speed --config=configs/shakespeare.py --lengths=64,128,256,512
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from experiments.command import Parser, execute, file_to_write, use_compilation_cache
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.provenance import machine_name

# what is asked -> what the seconds of one program are divided by: above 1, the second is faster
RATIOS = {
    "reading at once": ("one by one", "at once"),
    "training": ("LSTM, update", "transformer, update"),
    "the cache": ("transformer without cache, next token", "transformer, next token"),
    "inference": ("LSTM, next token", "transformer, next token"),
}
_BATCH_TOKENS = 2048
_WRITTEN = 16  # tokens in one call, so that calling costs little


def main(argv: list[str]) -> dict[str, Any]:
    """Runs the rounds, prints the table, writes it if asked, and returns it."""
    parser = Parser("speed", __doc__, takes_config=True)
    parser.add_argument("--lengths", default="64,128,256,512", help="tokens (64,128,256,512)")
    parser.add_argument("--rounds", type=int, default=7, help="of all programs (7)")
    parser.add_argument("--out", help="a JSON file for the figures")
    parser.add_json()
    arguments = parser.read(argv)
    parts = arguments.lengths.split(",")
    if not all(part.isdecimal() and _WRITTEN < int(part) <= _BATCH_TOKENS for part in parts):
        raise InvalidInput(
            f"--lengths={arguments.lengths}: expected integers in "
            f"[{_WRITTEN + 1}, {_BATCH_TOKENS}], separated by commas"
        )
    if arguments.rounds < 3:
        raise InvalidInput(f"--rounds={arguments.rounds}: expected at least 3")
    if arguments.config.data.task != "language_modelling":
        raise InvalidInput(f"data.task={arguments.config.data.task}: expected language_modelling")
    if arguments.config.model.architecture != "decoder":
        raise InvalidInput(
            f"model.architecture={arguments.config.model.architecture}: expected decoder; the LSTM "
            "beside it is made of its size"
        )
    out = file_to_write(arguments.out, "--out") if arguments.out else None
    use_compilation_cache()
    machine = machine_name()
    print(f"{machine}; {arguments.rounds} rounds, median and range of the ratios within a round")
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in RATIOS}
    for length in map(int, parts):
        seconds = measure(arguments.config, length, arguments.rounds)
        medians = ", ".join(f"{n} {statistics.median(s) * 1e3:.3g} ms" for n, s in seconds.items())
        print(f"{length} tokens: {medians}", flush=True)
        for name, (slow, fast) in RATIOS.items():
            ratios = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
            figures[name][str(length)] = ratios
    for name, by_length in figures.items():
        slow, fast = RATIOS[name]
        print(f"\n{name}: ({slow}) / ({fast})")
        for length, ratios in by_length.items():
            middle = statistics.median(ratios)
            print(f"  {length:>5} tokens  {middle:8.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    stored = {"machine": machine, "config": arguments.config_path, "ratios": figures}
    if out is not None:
        out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(f"\nwrote {out}")
    return stored


def measure(config: Any, length: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each program in each round, per token that it writes or per call.

    Args:
      config: of the decoder.
      length: tokens.
      rounds: in each of which every program runs once.
    """
    programs = {}
    for name, changes in {
        "transformer": {},
        "LSTM": {
            "architecture": "recurrent_decoder",
            "match_parameters": "decoder",
            "recurrent_decoder": {"cell": "lstm", "depth": 2},
        },
    }.items():
        changed = config.copy_and_resolve_references()
        with changed.unlocked():
            changed.model.update({**changes, "max_length": length, "dropout_rate": 0.0})
        programs |= _programs_of(name, changed, length)
    for run in programs.values():
        run()  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, run in programs.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    for name, column in seconds.items():
        if name.endswith("next token"):
            seconds[name] = [taken / _WRITTEN for taken in column]
    return seconds


def _programs_of(name: str, config: Any, length: int) -> dict[str, Callable[[], Any]]:
    """What is timed of a model: compiled functions without arguments that wait for their result."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.generation import windowed_next_logits
    from transformer_jax.training.build import make_model
    from transformer_jax.training.own import own_modules

    model = make_model(config.model, {"vocab_size": 65}, own_modules(config))
    if not model.can_cache():  # a recurrent one always can
        if model.hides_what_follows():
            own = ", ".join(sorted(own_modules(config)))
            raise InvalidInput(f"{own}: rows of your own have no cache, as what is timed has")
        raise InvalidInput(
            f"model.mask={config.model.mask}: what is read may not see what comes after it, "
            "since what is timed keeps a cache"
        )
    rows = max(1, _BATCH_TOKENS // length)
    tokens = jax.random.randint(jax.random.key(0), (rows, length), 0, 65)
    params = jax.jit(model.init)(jax.random.key(0), tokens[:1])["params"]

    def read(params: Any, cache: Any, tokens: Any) -> tuple[Any, Any]:
        variables = {"params": params, "cache": cache}
        logits, kept = model.apply(variables, tokens, mutable=["cache"])
        return logits, kept["cache"]

    def update(params: Any) -> Any:
        def loss(params: Any) -> Any:
            logits: Any = model.apply({"params": params}, tokens[:, :-1])
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
            return -chosen.mean()

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)

    _, begun = jax.jit(read)(params, {}, tokens[:1, : length - 1])

    def write(params: Any, begun: Any) -> Any:
        """Writes the token after `length - 1` others, again and again."""

        def next_token(_: Any, carry: Any) -> Any:
            token, cache = carry
            logits, cache = read(params, cache, token)
            counted = {name: begun[name] for name in begun if name == "length"}
            return logits.argmax(-1).astype(token.dtype), {**cache, **counted}

        return jax.lax.fori_loop(0, _WRITTEN, next_token, (tokens[:1, :1], begun))[0]

    def write_again(params: Any) -> Any:
        """The same, from the whole text each time."""
        next_logits = windowed_next_logits(lambda text: model.apply({"params": params}, text))

        def next_token(_: Any, text: Any) -> Any:
            logits, _ = next_logits(text, jnp.int32(length), None)
            return text.at[:, -1].set(logits.argmax(-1))

        return jax.lax.fori_loop(0, _WRITTEN, next_token, tokens[:1])

    def one_by_one(params: Any) -> Any:
        _, cache = read(params, {}, tokens[:1, :0])

        def step(cache: Any, token: Any) -> tuple[Any, Any]:
            logits, cache = read(params, cache, token[:, None])
            return cache, logits

        return jax.lax.scan(step, cache, tokens[:1].T)[1]

    def timed(function: Callable, *more: Any) -> Callable[[], Any]:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(params, *more))

    programs = {f"{name}, update": timed(update), f"{name}, next token": timed(write, begun)}
    if name == "transformer":
        programs |= {
            "transformer without cache, next token": timed(write_again),
            "one by one": timed(one_by_one),
            "at once": timed(lambda params: model.apply({"params": params}, tokens[:1])),
        }
    return programs


if __name__ == "__main__":
    execute(main)
