"""Loading a trained model from its run directory or from a Hugging Face folder."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax import config_files as configs
from transformer_jax.config_files import fingerprint_of_own, own_modules
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer
from transformer_jax.data.tasks.translation import with_end
from transformer_jax.data.tokenizers import fingerprint, load_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.hub import folder_of, is_of_huggingface, read_generation, read_settings
from transformer_jax.own import changed_code
from transformer_jax.placement import with_places
from transformer_jax.resolve import import_own, problems_of
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.provenance import NUMERICS
from transformer_jax.sharding import Sharding
from transformer_jax.training.adapters import trained_model
from transformer_jax.training.build import make_model, make_run_sharding
from transformer_jax.training.optimizers import evaluated_params, make_optimizer
from transformer_jax.training.pretrained import config_to_use
from transformer_jax.training.run import Run
from transformer_jax.training.step import draw_state


def _run_of_huggingface(source: str | Path) -> Run:
    from transformer_jax.interop import from_huggingface

    config, folder = config_to_use(source), folder_of(source)
    settings, file = read_settings(folder), folder / "tokenizer.json"
    tokenizer = load_tokenizer(file) if file.is_file() else None
    model, params = from_huggingface(folder)
    begins = ()
    if config.data.task == "translation":
        begins = _begins_of(read_generation(folder), tokenizer, source, model.vocab_size)
    num_classes = getattr(model, "num_classes", None) or 0
    problem = settings.get("problem_type")
    if num_classes and (num_classes == 1 or problem not in (None, "single_label_classification")):
        raise InvalidInput(
            f"{source}: config.json: problem_type={problem} with {num_classes} labels: expected "
            "one label of several for each text, single_label_classification"
        )
    labels = settings.get("id2label")  # LABEL_0, ... if not all are named
    named = labels if isinstance(labels, dict) and len(labels) == num_classes else {}
    names = [str(named.get(str(number), f"LABEL_{number}")) for number in range(num_classes)]
    return Run(
        config=config,
        model=model,
        params=params,
        tokenizer=tokenizer,
        step=0,
        classes=tuple(name if name.isprintable() else repr(name) for name in names),
        num_texts=2 if settings.get("num_texts") == 2 else 1,  # as export_run writes it
        begins=begins,
    )


def _begins_of(
    settings: Mapping[str, Any], tokenizer: Any, source: str | Path, vocab_size: int
) -> tuple[int, ...]:
    """Returns the begin tokens of a Hugging Face encoder–decoder, or () if they are this package's.

    Raises:
      InvalidInput: The tokenizer or begin token is missing, a begin token is none of the
        vocabulary, or eos_token_id is not the tokenizer's alone.
    """
    start, end = settings.get("decoder_start_token_id"), settings.get("eos_token_id")
    forced = settings.get("forced_bos_token_id")
    if tokenizer is None or start is None:
        missing = "tokenizer.json" if tokenizer is None else "decoder_start_token_id"
        raise InvalidInput(
            f"{source}: no {missing}, which is needed to generate text; from_huggingface can load "
            "the model, and a config with these initial.weights can train it"
        )
    specials = special_tokens(tokenizer)
    if end not in (None, specials.end, [specials.end]):
        raise InvalidInput(
            f"{source}: eos_token_id={end}: expected {specials.end}, as in tokenizer.json"
        )
    begins = (start,) if forced is None else (start, forced)
    for begin in begins:
        if type(begin) is not int or not 0 <= begin < vocab_size:
            raise InvalidInput(
                f"{source}: begin token {begin}: expected an integer from 0 to {vocab_size - 1}"
            )
    reads_otherwise = isinstance(tokenizer, HuggingFaceTokenizer) and (
        tokenizer.encode_whole("") != with_end(tokenizer, "")
    )
    return () if begins == (specials.begin,) and not reads_otherwise else begins


def load_run(
    workdir: str | Path,
    say: Callable[[str], None] = print,
    allow: Collection[str] = (),
    mesh: Mapping[str, int] | None = None,
    average: int = 1,
) -> Run:
    """Loads a run from its newest whole checkpoint; writes nothing, so a read-only copy suffices.

    A Hugging Face model becomes a run at step 0, whose config allows longer texts.

    Args:
      workdir: A run; a folder with config.json and model.safetensors; or OWNER/NAME on the hub.
      say: Receives warnings, such as a line about each skipped checkpoint.
      allow: Modules with the run's user-defined classes that may be imported. A run that needs
        other modules is refused, and none of its code is executed.
      mesh: Number of devices by axis of `mesh` in a config, e.g. {"fsdp": 8}, over which the
        parameters are spread; None for one device, even if the run was trained on several. A
        Hugging Face model is spread after it is loaded.
      average: Number of checkpoints, the newest ones, whose weights are averaged.
    Returns:
      The run, ready to use, with averaged weights if averages were kept in training.
    Raises:
      InvalidInput: There is no run or no whole checkpoint, the run is damaged, its tokenizer has
        changed since training, or the mesh has more devices than there are.
    """
    most = 1 if is_of_huggingface(workdir) else average
    if not 1 <= average <= most:
        expected = "at least 1" if average < 1 else "1, the number of weights in this folder"
        raise InvalidInput(f"average={average}: expected {expected}")
    if is_of_huggingface(workdir):
        run = _run_of_huggingface(workdir)
        if (sharding := _over(mesh, run.config, allow)) is None:
            return run
        params = jax.device_put(run.params, sharding.of_state(run.params))
        return dataclasses.replace(run, params=params, sharding=sharding)
    directory = RunDirectory(workdir)
    config, manifest = directory.config(), directory.manifest()
    tokenizer = directory.tokenizer(allow)
    if tokenizer and fingerprint(tokenizer) != manifest["data"]["tokenizer_sha256"]:
        raise InvalidInput(f"{directory.path}/tokenizer.json: not the tokenizer of the training")
    if own_modules(config) <= set(allow):  # otherwise the calls below refuse
        flat = configs.flatten(config)
        configs.report(import_own(flat) or problems_of(flat))
        for choice in changed_code(manifest, fingerprint_of_own(config)):
            say(f"the code of {choice} differs from the code that this run was trained with")
    if manifest["numerics"] != NUMERICS:
        say("the numerics differ from those that this run was trained with; see CHANGELOG.md")
    sizes = directory.sizes()
    model = make_model(config, sizes, allow)
    optimizer = make_optimizer(config, allow)
    trains = trained_model(config, model)
    template = jax.eval_shape(lambda: draw_state(trains, optimizer, config.seed))
    if sharding := _over(mesh, config, allow):
        template = with_places(template, sharding.of_state(template))
    checkpoints = Checkpoints(directory.file("checkpoints"), say=say)
    restored = checkpoints.restore(template, read_only=True)
    if restored is None:
        raise InvalidInput(f"--workdir={workdir}: no checkpoint yet; train the run first")
    directory.refuse_foreign_checkpoint(restored.step, restored.extra)
    trained = [restored.state]
    if average > 1:
        before = checkpoints.earlier(template, restored.step, average - 1)
        trained += [each.state for each in before]
    params, *others = (evaluated_params(s.opt_state, s.params, s.state) for s in trained)
    if others:
        params = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), params, *others)
    return Run(
        config=config,
        model=model,
        params=params,
        tokenizer=tokenizer,
        step=restored.step,
        classes=tuple(manifest["data"].get("classes", ())),
        num_texts=sizes.get("num_types", 1),
        metrics=directory.metrics(),
        sharding=sharding,
    )


def _over(
    mesh: Mapping[str, int] | None, config: ConfigDict, allow: Collection[str]
) -> Sharding | None:
    if not mesh:
        return None
    if not isinstance(mesh, Mapping):
        raise InvalidInput(f"mesh={mesh!r}: expected devices by axis, e.g. {{'fsdp': 8}}")
    asked = configs.changed(configs.defaults(), {f"mesh.{axis}": n for axis, n in mesh.items()})
    asked.mesh.rules = config.mesh.rules
    return make_run_sharding(asked, allow)


def refuse_unlike(run: Run, task: Any, source: str) -> None:
    """Raises InvalidInput if a model does not fit the classes, tokens or sizes of a task.

    `source` is the name of the data in error messages.
    """
    if run.tokenizer is None and task.tokenizer is not None:
        raise InvalidInput("this run has no tokenizer.json, so its model cannot read text")
    both = [each.tokenizer for each in (run, task) if each.tokenizer is not None]
    if len({*map(fingerprint, both)}) > 1:
        raise InvalidInput(f"data.source={source}: its tokens come from a different tokenizer")
    classes = tuple(task.facts.get("classes", ()))
    if classes and classes != run.classes:
        own, known = (", ".join(names[:8]) or "none" for names in (classes, run.classes))
        raise InvalidInput(f"data.source={source}: its classes are {own}; the model's are {known}")
    if run.num_texts > task.sizes.get("num_types", 1):
        raise InvalidInput(f"data.source={source}: expected pairs of texts, got single texts")
    for name, size in task.sizes.items():
        expected = getattr(run.model, name, size)
        has_spare_rows = name == "vocab_size" and isinstance(expected, int) and expected >= size
        if expected != size and not has_spare_rows:
            raise InvalidInput(f"data.source={source}: its {name} is {size}; model: {expected}")
