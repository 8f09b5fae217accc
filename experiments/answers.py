"""What the committed studies answer, and which of them decide nothing."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.options.config import flatten
from transformer_jax.options.schema import completed
from transformer_jax.runs.files import read_json
from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.inference.words import (
    BETTER,
    CANNOT_TELL,
    IDENTICAL,
    NO_VERDICT,
    NOT_PRIMARY,
    REFUSED,
    SAME,
    UNRESOLVED,
    UNTUNED,
    WORSE,
)
from transformer_jax.studies.judging.adequacy import passed

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_PLAIN = (BETTER, WORSE, UNRESOLVED)  # words that counts of solved runs stand beside
_DECIDES_NOTHING = (IDENTICAL, UNRESOLVED, CANNOT_TELL, REFUSED, NO_VERDICT, NOT_PRIMARY)
# Of a page, with what each shows.
FIGURES = {
    "forest.svg": "Paired differences",
    "sweep.svg": "Scores over the option",
    "curves.svg": "Learning curves",
    "ladder.svg": "What the rungs found",
}
ABOUT = "about.json"  # what a ladder speaks for, and how to repeat it
GATE = "gate.json"  # what the base of a study that sealed no gate is beside a simple method

# Studies that cannot decide what they ask, whatever came out.
WITHDRAWN = {
    "agreement_far": "no arm is tuned, and 1,500 updates are too few for the LSTM; at another "
    "rate, which does not fall, it is at chance then too, and solves it later "
    "(agreement_far_solved)",
    "agreement": "every arm answers everything rightly; agreement_solved asks who needs fewer "
    "updates",
    "cross_attention": "true by construction: without cross-attention nothing leads from source to "
    "decoder, which a check of the course shows; the LSTM has the transformer's learning rate",
    "depth": "all arms have four heads, so that those of deeper and narrower ones are smaller",
    "free_running": "a decoder that reverses eight symbols makes no mistakes to learn from",
    "leak": "the task can be solved without what leaks, so that the loss has nothing to hide",
    "norm_kinds": "post-norm's verdict is an artefact of 200 updates: after 400 it was unresolved",
    "pretrained": "no arm is tuned, and the net from scratch, after 50 updates, is below a linear "
    "model",
    "pretrained_ladder": "no arm is tuned, the head on frozen features has a learning rate a "
    "hundred times the others', and some nets from scratch diverged",
    "projections": "the arms have up to 23 % fewer parameters than the base",
    "recall": "the recurrent nets never beat a guess among the values that were seen, so there was "
    "nothing to forget; recall_solved asks who learns it",
    "rotary_ladder": "its bases, of 500 updates at one learning rate, had not learned their text",
    "text_models": "all arms have the transformer's learning rate; text_models_wide, with 7.5 "
    "times the parameters, more updates and a rate for each, has the LSTM, worst here, ahead of "
    "the transformer",
    "translations": "without cross-attention true by construction; the LSTM has the transformer's "
    "learning rate",
    "word_vectors_ladder": "its bases have no gate; at 3,200 labels a linear model of the same "
    "words is better (word_vectors)",
    "vocabulary": "as many tokens hold more text where the vocabulary is larger, and the arms have "
    "up to 3.4 times the parameters; as many bytes at as many operations would tell",
}

# Studies of which some arm has a word, and whose question is open all the same.
OPEN_ALL_THE_SAME = {
    "heads_wide": "16 heads are worse beside these runs of the base; beside the same model and "
    "seeds at a rate a little higher, which text_models_wide trained, they would be unresolved",
    "norms_wide": "Where the norm stands, and what warm-up does, is unresolved in it; no norm is "
    "worse at pre-norm's initial size, and not told in another model (8 blocks of width 96) at "
    "twice that size (residuals_wide)",
    "post_norm": "Both were unresolved by the procedure that it was sealed with, and are better by "
    "one that changed after its scores were seen; post_norm_rates asks the first with fresh seeds",
}
# What the words of a study leave out, and its page says.
LEFT_OUT = {
    "agreement_far_solved": "One run chose each rate; counted from when runs stay at the target, "
    "the tanh net's word is not told",
    "agreement_solved": "Counted from when runs stay at the target, no word is told: one run of "
    "the base is at chance once more, after 2,900 of 3,000 updates",
    "mup_ladder": "Under muP, by a gate of 3-grams: no width is better than 4-grams. The rate, "
    "0.009, of which half and twice are told, lies below the interval of the best one at every "
    "width, 64 too",
    "patches_wide": "Of these 450 test images, on which the base's config was chosen: for others "
    "8 x 8 is not shown to be worse",
    "positions": "That rotary is better by more than 0.01 hangs on these runs of the base: beside "
    "heads_wide's, of the same model and seeds at a rate 5 % lower, it would be better, and not "
    "surely by more than 0.01",
    "post_norm": "Whether post-norm needs warm-up was not asked: both stand beside pre-norm",
    "post_norm_rates": "Whether warm-up helps is not told: at 0.0024 it is unresolved, and at "
    "0.0017 the rate differs from the base's too (without warm-up it alone costs 0.032, which is "
    "not judged). Pre-norm's mean is better at the lower of its rates; none below was tried",
    "recall_solved": "Each net at three rates, with settings that were made for the transformer",
    "reverse": "Judged with the right answers before each given; at one length and after few "
    "updates: ALiBi, and a decoder without positions, may only need longer",
    "standard_ladder": "At 128 all seeds at twice the rate fall apart, which bends the parabola; "
    "there half the rate is not told from the rate",
    "sums": "A decay of 0.01 is nearly none",
    "text_models_wide": "The transformer is worse than 5-grams; LSTM and GRU are better than "
    "6-grams. It has learned positions; beside rotary ones, which were not judged here, the tanh "
    "net's lead is not surely more than the margin",
    "vocabulary_by_bytes": "All seeds of an arm have one sign; five seeds leave it open, and so "
    "does how far each rate may be from its best",
}
# How arms of studies without a tuning got their rates.
BY_HAND = {
    "agreement_far_solved": "each rate the best of two to five in one run",
    "post_norm_rates": "rates fixed beforehand, those that post_norm chose, and of arms lower ones",
}

# Studies whose words changed with the procedure, after their scores were seen: what was said.
SAID_FIRST = {
    "post_norm": "post and post without warm-up unresolved",
    "depth_wide": "depth 1 worse",
}
# Studies whose question, or a part of it, a later one asks so that it can be decided.
ASKED_AGAIN = {
    "agreement": "agreement_solved",
    "agreement_far": "agreement_far_solved",
    "depth": "depth_wide",
    "heads": "heads_wide",
    "norm_kinds": "norms_wide",
    "norms": "post_norm_rates",
    "norms_wide": "post_norm_rates",
    "patches": "patches_wide",
    "poolings": "poolings_wide",
    "poolings_wide": "class_token",
    "positions_long": "positions_256",
    "post_norm": "post_norm_rates",
    "recall": "recall_solved",
    "residuals": "residuals_wide",
    "text_models": "text_models_wide",
    "vocabulary": "vocabulary_by_bytes",
}
# What no committed study asks so that it could be answered.
NEXT = (
    "Do recurrent nets learn to recall after 50,000 updates, or with a state that is larger than "
    "the text?",
    "Do eight blocks without residual connections learn from other initial values?",
    "Does a linear map of patches suffice for Fashion-MNIST, of a base that beats the nearest "
    "neighbour there?",
    "How large should a vocabulary be after as many bytes of text at as many operations, with "
    "more seeds, and learning rates that are known better, than in vocabulary_by_bytes?",
    "Are sixteen heads worse than four, with more seeds?",
    "Is post-norm worse without warm-up, with some 36 seeds at one rate and at the best of each, "
    "and better than pre-norm in deeper models and on another text?",
)


class CommittedStudy(NamedTuple):
    """A committed study.

    Attributes:
      name: of its folder.
      record: what study.json holds.
      verdicts: what verdicts.json holds.
      learned: of adequacy.whether_learned; None where no simple method is known.
    """

    name: str
    record: dict[str, Any]
    verdicts: dict[str, Any]
    learned: dict[str, Any] | None


@functools.cache
def read_study(name: str) -> CommittedStudy | None:
    """Returns a committed study; None if there is none of that name."""
    folder = RESULTS / name
    if not (folder / "verdicts.json").exists():
        return None
    verdicts = read_json(folder / "verdicts.json")
    gate = read_json(folder / GATE) if (folder / GATE).exists() else None
    record = read_json(folder / "study.json")
    return CommittedStudy(name, record, verdicts, verdicts.get("learned") or gate)


def withheld(study: CommittedStudy) -> str:
    """Returns why what a study found does not bear on its question; empty where it does."""
    reasons = [WITHDRAWN[study.name]] if study.name in WITHDRAWN else []
    if study.learned and not study.learned["passed"]:
        reasons.append(f"the base has not learned: {study.learned['told']}")
    return "; ".join(reasons)


def undecided(study: CommittedStudy) -> str:
    """Returns why a study leaves its question open; empty where it does not."""
    said = [*study.verdicts["arms"].values(), *filter(None, [study.verdicts.get("trend")])]
    # Within a margin that a simple method is within too nothing is told apart.
    nothing = (*_DECIDES_NOTHING, *([SAME] if margin_of(study) else []))
    is_open = all(its["verdict"] in nothing for its in said) or study.name in OPEN_ALL_THE_SAME
    return withheld(study) or (in_the_overview(study) if is_open else "")


def in_the_overview(study: CommittedStudy) -> str:
    """The words of a study, and what these leave out."""
    return ". ".join(filter(None, [words_of(study), *left_out(study), below_the_gate(study)]))


def left_out(study: CommittedStudy) -> list[str]:
    """What the words of a study leave out, a sentence each without its full stop."""
    further = [OPEN_ALL_THE_SAME.get(study.name), LEFT_OUT.get(study.name), margin_of(study)]
    return [sentence for sentence in further if sentence]


def margin_of(study: CommittedStudy) -> str:
    """That a margin is more than what the base is ahead of a simple method by; empty if not.

    Then what is "no different" may be as bad as that method.
    """
    learned, metric = study.learned, study.verdicts["metric"]
    if not learned or metric != f"{learned['split']}/{learned['metric']}":
        return ""
    if not any(its["verdict"] == SAME for its in study.verdicts["arms"].values()):
        return ""
    ahead = abs(learned["base"] - learned["score"])
    if study.verdicts["margin"] <= ahead:
        return ""
    method = METHODS.get(learned["method"], learned["method"])
    return (
        "“No different” decides nothing here: the margin is more than what the base is ahead of "
        f"{method} by ({ahead:.2g})"
    )


def below_the_gate(study: CommittedStudy) -> str:
    """Which arms are not surely better than the method that the base had to beat; empty if none."""
    learned = study.learned
    if not learned or study.verdicts["metric"] != f"{learned['split']}/loss":
        return ""
    values = study.verdicts["values"].items()
    below = [
        f"“{arm}”"
        for arm, its in values
        if its["mean"] and not passed([*its["by_seed"].values()], learned["score"], False)
    ]
    return f"Arms that are not surely better than the gate: {', '.join(below)}" if below else ""


def words_of(study: CommittedStudy) -> str:
    """The word of each arm and of a trend; that none was tuned is said once."""
    said = study.verdicts["arms"]
    if study.record["sealed"].get("target") is not None:
        return _solved_by(study)
    if trend := study.verdicts.get("trend"):
        said = said | {f"more {trend['key']}": trend}
    by_arm = {name: its["words"].removesuffix(UNTUNED) for name, its in said.items()}
    words = "; ".join(f"{name}: {each}" for name, each in by_arm.items())
    is_untuned = any(its["words"].endswith(UNTUNED) for its in said.values())
    changed = " (words changed with the procedure, see the page)" * (study.name in SAID_FIRST)
    return words + " (no arm was tuned)" * is_untuned + changed


def _solved_by(study: CommittedStudy) -> str:
    """How many runs of each arm reach a target, when, and its word; equal ones together."""
    by_words: dict[str, list[str]] = {}
    of_base = ""
    for name, its in study.verdicts["arms"].items():
        if not its.get("solved"):  # refused: it has no counts
            by_words.setdefault(its["words"].removesuffix(UNTUNED), []).append(name)
            continue
        counts = []
        for (solved, runs), updates in zip(its["solved"], its["updates"], strict=True):
            when = "" if updates is None else f", median {updates:,.0f} updates"
            counts.append(f"{solved} of {runs} runs{when}")
        word = its["verdict"] if its["verdict"] in _PLAIN else its["words"].removesuffix(UNTUNED)
        by_words.setdefault(f"{word} ({counts[0]})", []).append(name)
        budget = study.record["arms"][study.verdicts["base"]]["cost"]["updates"]
        solve = f" runs solve it within {budget:,} updates"
        of_base = f"of the base {counts[1].replace(' runs', solve)}"
    arms = "; ".join(f"{', '.join(names)}: {words}" for words, names in by_words.items())
    return f"{of_base}; {arms}" if of_base else arms


def domain_of(study: CommittedStudy) -> str:
    """Returns what a verdict speaks for: sizes, budget, data, and how options were chosen."""
    record = study.record
    flat = completed(flatten(record["sealed"]["base_config"]))
    cost = record["arms"][study.verdicts["base"]]["cost"]
    sizes = sorted({facts["cost"]["parameters"] for facts in record["arms"].values()})
    spread = f"{cost['parameters']:,} parameters"
    if sizes[0] < 0.95 * sizes[-1]:
        spread += f" (arms {sizes[0]:,} to {sizes[-1]:,})"
    count = len(study.verdicts["seeds"])
    pooled = max(len(its.get("seeds", ())) for its in study.verdicts["arms"].values())
    seeds = f"{count} seeds" + f" ({pooled} with those of an earlier look)" * (pooled > count)
    tuning = record["sealed"].get("tuning")
    keys = (tuning.get("options") or [tuning["key"]]) if tuning else []
    tuned = f"{', '.join(keys)} tuned for each arm" if keys else ""
    tuned = tuned or BY_HAND.get(study.name, "no arm tuned")
    share = tuning["rungs"][-1][0] if tuning and tuning.get("rungs") else 1
    tuned += f" in runs of {share:.0%} of the updates" if share < 1 else ""
    windows = f" in windows of {flat['data.length']}" if record["counted"] == "tokens" else ""
    if flat["data.task"] == "synthetic":
        tokens = cost["counted"] // (cost["updates"] * flat["training.batch_size"])
        windows = f", examples of {tokens} tokens"
    return (
        f"{spread}, {cost['updates']:,} updates ({cost['counted']:,} "
        f"{record['counted']} of {flat['data.source']}{windows}), "
        f"{seeds}, {tuned}"
    )
