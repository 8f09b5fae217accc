"""Our models in EleutherAI's lm-evaluation-harness (Gao et al. 2021), an extra."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import InvalidInput, require, suggest

if TYPE_CHECKING:
    from transformer_jax.training.run import Run


def run_tasks(
    run: "Run", names: Sequence[str], folder: str | None, batch_size: int, begin: int | None
) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Evaluates a run on tasks of the harness; returns results by task, and a row per document.

    Args:
      run: A run of a causal language model.
      names: Names of tasks or groups.
      folder: Folder with further tasks, or None for those of the harness alone.
      batch_size: Number of requests in a batch; affects only speed.
      begin: As in choices.score_items.
    Raises:
      InvalidInput: The harness is not installed, has no such task, or cannot read its data.
    """
    require("lm_eval", "--tasks", "benchmarks")
    import lm_eval
    from lm_eval.tasks import TaskManager

    run.tokenizer_for("language_modelling")
    run.refuse_other_than_causal()
    manager = TaskManager(include_path=folder)
    if unknown := [name for name in names if name not in manager.all_tasks]:
        near = suggest(unknown[0], manager.all_tasks)
        raise InvalidInput(f"--tasks={unknown[0]}: the harness has no such task{near}")
    model = _model_of(run, batch_size, begin)
    options: dict[str, Any] = {"log_samples": True, "bootstrap_iters": 0}
    try:
        told = lm_eval.simple_evaluate(model, tasks=list(names), task_manager=manager, **options)
    except (OSError, ValueError) as error:  # e.g. data that would have to be downloaded
        why = str(error).partition("\n")[0]
        raise InvalidInput(f"--tasks={','.join(names)}: {why}") from error
    results = {
        task: {key.removesuffix(",none"): v for key, v in means.items() if isinstance(v, float)}
        for task, means in told["results"].items()
    }
    rows = [
        {"item": f"{task}/{s['doc_id']}", "task": task, "version": told["versions"].get(task)}
        | {"target": str(s["target"]), "filter": s.get("filter"), "scores": s["filtered_resps"]}
        | {name: s[name] for name in s["metrics"] if isinstance(s.get(name), int | float)}
        for task, samples in told["samples"].items()
        for s in sorted(samples, key=lambda s: s["doc_id"])
    ]
    return results, rows


def _model_of(run: Any, batch_size: int, begin: int | None) -> Any:
    """Returns a run as a model of the harness."""
    from lm_eval.api.model import TemplateLM

    from transformer_jax.training.choices import score_tokens, tell_cut

    most = run.model.max_length
    encode = lambda text: run.encode(text).tolist()  # noqa: E731

    class Model(TemplateLM):
        """The harness prepares pairs of texts; their tokens are scored here."""

        @property
        def eot_token_id(self) -> int:
            if begin is None:
                raise InvalidInput(
                    "--begin: a document has no context; expected a special token to begin with, "
                    "e.g. <|endoftext|>"
                )
            return begin

        def tok_encode(self, string: str, *_: Any, **__: Any) -> list[int]:
            return encode(string)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            pairs = [(context + tokens, len(tokens)) for _, context, tokens in requests]
            long = [count for _, count in pairs if not 1 <= count <= most]
            if long:
                raise InvalidInput(
                    f"--tasks: a continuation has {long[0]} tokens; expected 1 to {most}, which is "
                    "model.max_length"
                )
            sums, exact = score_tokens(run, pairs, batch_size)
            return list(zip(sums.tolist(), exact.tolist(), strict=True))

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

            totals = []
            for request in requests:
                text = encode(request.args[0])
                windows = get_rolling_token_windows(text, self.eot_token_id, most, 1)
                pairs = [make_disjoint_window(window) for window in windows]
                found = self._loglikelihood_tokens([(None, *pair) for pair in pairs])
                totals.append(math.fsum(total for total, _ in found))
            return totals

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            texts, long = [], 0
            for request in requests:
                prompt, asked = request.args
                draws = asked.get("do_sample") and asked.get("temperature", 1.0)
                count, ends = asked.get("max_gen_toks", 256), asked.get("until") or ()
                if len(tokens := encode(prompt)) + count > most:  # cut as the harness cuts
                    prompt = run.tokenizer.decode(tokens[-max(1, most - count) :])
                    long += len(tokens) > max(1, most - count)
                texts.append(run.sample(prompt, count, temperature=draws or 0.0, stop=ends))
            tell_cut(long, len(texts), most)
            return texts

    return Model()
