"""The referee: its evidence, its journal, and what it keeps over hundreds of tries."""

import json
import math
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from scipy import integrate, stats

from tests.conftest import TINY, attempt, command, refused, start_command, tiny_config
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.runs.progress import Silent
from transformer_jax.studies import pairs
from transformer_jax.studies import referee as evidence
from transformer_jax.studies.referee import DROPPED, KEPT, UNDECIDED, CannotTrain, Journal, Referee


def test_the_e_value_is_the_ratio_of_its_two_averaged_likelihoods(rng):
    """Noncentral t densities of scipy, averaged over the prior's positive half, beside the null's."""
    for n, prior in ((2, 2.0), (5, 2.0), (8, 0.5)):
        d = rng.normal(0.7, 2.0, n)
        t = d.mean() / (d.std(ddof=1) / math.sqrt(n))

        def weighed(effect, n=n, t=t, prior=prior):
            chance = stats.nct.pdf(t, n - 1, effect * math.sqrt(n))
            return chance * 2 * stats.norm.pdf(effect, scale=math.sqrt(prior))

        average, _ = integrate.quad(weighed, 0, 12)
        expected = average / stats.t.pdf(t, n - 1)
        assert float(evidence.e_value(d, prior)) == pytest.approx(expected, rel=1e-5)


def test_e_values_are_no_evidence_where_there_is_no_effect(rng):
    """On average 1 at any number of seeds, and over all looks at least 20 in 1 series of 20 at most."""
    d = rng.normal(size=(20_000, 12))
    looks = np.stack([evidence.e_value(d[:, :n]) for n in range(1, 13)], 1)
    np.testing.assert_allclose(looks[:, :4].mean(0), 1, atol=0.06)
    assert (looks.max(1) >= 20).mean() < 0.05
    worse = np.stack([evidence.e_value(d[:, :n] - 0.5) for n in (3, 12)], 1)
    assert (worse.mean(0) < 0.5).all()


def test_e_values_know_no_unit_and_survive_the_ends():
    d = np.array([0.1, 0.3, 0.2, 0.15])
    assert evidence.e_value(d * 1e-9) == pytest.approx(evidence.e_value(d))
    assert evidence.e_value([]) == evidence.e_value([0.0, 0.0]) == 1
    assert evidence.e_value([1.0, 1.001] * 4) > 1e4
    assert evidence.e_value([-1.0, -1.001] * 4) < 0.1
    assert evidence.e_value([3.0]) > 1 > evidence.e_value([-3.0])
    # Seeds that differ in nothing, as by one more right answer of 2,000 in each.
    assert evidence.e_value([0.0005] * 6) == 1
    assert evidence.e_value([0.9005 - 0.9, 0.8005 - 0.8, 0.7005 - 0.7, 0.6005 - 0.6]) == 1
    assert evidence.e_value([0.0005, 0.0006, 0.0005, 0.0005]) > 5


def test_intervals_hold_at_every_look(rng):
    outside = 0
    for _ in range(60):
        d = rng.normal(0.3, 1, 12)
        bounds = [evidence.anytime_interval(d[:n]) for n in (3, 6, 12)]
        outside += any(not low <= 0.3 <= high for low, high in bounds)
    assert outside / 60 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)
    assert evidence.anytime_interval([1.0]) == (-math.inf, math.inf)


def test_shares_of_the_level_add_up_to_one():
    spent = sum(evidence.share_of(t) for t in range(1, 20_000))
    tail = 20_000**-0.3 / 0.3 / (1 / evidence.share_of(1))  # the integral beyond
    assert spent + tail == pytest.approx(1, abs=1e-4)
    assert evidence.needed(1, 0) == pytest.approx(1 / (0.05 * evidence.share_of(1)))
    assert evidence.needed(7, 3) == pytest.approx(evidence.needed(7, 0) / 4)


def simulated(tries, effect, good=0.1, bad=0.3, repeats=6):
    """Share of good changes that are kept, and mean share of kept changes that are not good."""
    rng = np.random.default_rng(0)
    true, planted, false = 0, 0, 0.0
    for _ in range(repeats):
        kinds = rng.choice([1, 0, -1], size=tries, p=[good, 1 - good - bad, bad])
        kept = wrong = tests = 0
        for kind in kinds:
            if not evidence.looks_good(rng.normal(kind * effect, 1, evidence.SCREENING)):
                continue
            tests += 1
            d = rng.normal(kind * effect, 1, evidence.MOST)
            enough = evidence.needed(tests, kept)
            for count in range(evidence.FEWEST, evidence.MOST + 1):
                is_kept = float(evidence.e_value(d[:count])) >= enough
                if is_kept or evidence.is_futile(d[:count]):
                    break
            kept += is_kept
            wrong += is_kept and kind < 1
        true, planted = true + kept - wrong, planted + int((kinds == 1).sum())
        false += wrong / max(kept, 1)
    return true / max(planted, 1), false / repeats


def test_power_of_a_hundred_tries_and_what_is_false_among_them():
    power, false = simulated(100, 2.0)
    assert power > 0.85
    assert false <= 0.05
    _, false = simulated(100, 2.0, good=0.0, bad=0.0)
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 6)


class MadeUp:
    """Pairs whose differences are drawn: a change has the effect that its value says."""

    cost, files = ("parameters +3%",), {}

    def __init__(self, effect, rng, clock=None):
        self.effect, self.rng, self.clock = effect, rng, clock
        self.known = {}

    def missing(self, seeds):
        return sum(seed not in self.known for seed in seeds)

    def train(self, seeds):
        for seed in seeds:
            if seed not in self.known:
                if self.effect is None:
                    raise CannotTrain(f"seed {seed} diverged")
                self.known[seed] = self.rng.normal(self.effect)
                if self.clock is not None:
                    self.clock[0] += 10

    def differences(self, seeds):
        return [self.known[seed] for seed in seeds if seed in self.known]


def begun(folder, **facts):
    journal = Journal(folder)
    journal.begin(tiny_config(), {"metric": "loss", "margin": 0.0, "gate": None, **facts})
    return journal


def referee_of(journal, effects, rng, clock=None, runs=None):
    """Finds a change's effect by its learning rate; runs are kept as cells are."""
    runs = {} if runs is None else runs

    def pairs_of(this):
        key = json.dumps([this.change, this.base])
        effect = effects[this.change["optimizer.learning_rate"]]
        return runs.setdefault(key, MadeUp(effect, rng, clock))

    ticks = {} if clock is None else {"clock": lambda: clock[0]}
    return Referee(journal, pairs_of, Silent(), **ticks)


def rate(value):
    return {"optimizer.learning_rate": str(value)}


def test_good_changes_are_kept_and_become_the_base_bad_ones_are_dropped(tmp_path, rng):
    journal = begun(tmp_path)
    effects = {"0.1": 3.0, "0.2": -3.0, "0.3": None, "0.4": 3.0}
    referee = referee_of(journal, effects, rng)
    kept = referee.attempt(rate(0.1), 1e9)
    assert (kept["outcome"], kept["try"], kept["cost"]) == (KEPT, 1, ["parameters +3%"])
    assert kept["e_value"] >= kept["needed"]
    assert kept["interval"][0] < kept["estimate"] < kept["interval"][1]
    assert journal.base() == rate(0.1)
    bad = referee.attempt(rate(0.2), 1e9)
    assert (bad["outcome"], bad["seeds"], bad["needed"]) == (DROPPED, 0, None)
    assert bad["level_left"] == kept["level_left"]  # screening spends nothing
    lost = referee.attempt(rate(0.3), 1e9)
    assert (lost["outcome"], lost["reason"]) == (DROPPED, "seed 0 diverged")
    assert referee.attempt(rate(0.3), 1e9) == {**journal.tries()[-1].ended, "known": True}
    # What was kept is told again, to a program that lost the answer; another way to say it too.
    for known in (0.1, "1e-1"):
        assert referee.attempt(rate(known), 1e9) == {**journal.tries()[0].ended, "known": True}
    with pytest.raises(InvalidInput, match="the base has this change already"):
        referee.attempt({"model.num_heads": str(tiny_config().model.num_heads)}, 1e9)
    again = referee.attempt(rate(0.4), 1e9)
    assert again["outcome"] == KEPT
    assert journal.try_of(rate(0.1)).number == 5  # the base has another one by now
    assert again["needed"] == pytest.approx(evidence.needed(2, 1))
    assert [each.base for each in journal.tries()] == [{}, rate(0.1), rate(0.1), rate(0.1)]
    first, second = (each.confirmation.seeds for each in journal.tries() if each.confirmation)
    assert not set(first) & set(second) | set(first) & set(range(evidence.SCREENING))


def test_what_is_undecided_goes_on_with_its_seeds_and_its_level(tmp_path):
    journal, runs = begun(tmp_path), {}  # whose cells a second launch finds
    clock, rng, effects = [0.0], np.random.default_rng(4), {"0.1": 1.2}
    referee = referee_of(journal, effects, rng, clock, runs)
    first = referee.attempt(rate(0.1), 75)  # three pairs of the screening and four more
    assert (first["outcome"], first["seeds"]) == (UNDECIDED, 4)
    assert first["seconds"] == 70
    left = journal.level_left()
    second = referee_of(Journal(tmp_path), effects, rng, clock, runs)
    found = second.attempt(rate(0.1), 1e9)
    assert found["outcome"] in (KEPT, DROPPED)
    assert found["seeds"] > 4
    assert (found["try"], found["needed"]) == (1, first["needed"])
    assert journal.level_left() == left
    assert found["seconds"] == 30 + 10 * found["seeds"]


def test_a_kill_at_any_line_of_the_journal_loses_nothing(tmp_path):
    rng, effects, runs = np.random.default_rng(3), {"0.1": 2.0}, {}
    journal = begun(tmp_path / "whole")
    whole = referee_of(journal, effects, rng, runs=runs).attempt(rate(0.1), 1e9)
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [
        *("begun", "tried", "screened", "confirming", "ended")
    ]
    for count in range(1, len(lines)):
        folder = tmp_path / str(count)
        folder.mkdir()
        torn = "\n".join(lines[:count]) + "\n" + lines[count][:9]
        (folder / "journal.jsonl").write_text(torn)
        again = referee_of(Journal(folder), effects, rng, runs=runs)
        found = again.attempt(rate(0.1), 1e9)
        assert {**found, "seconds": 0} == {**whole, "seconds": 0}
        assert len(Journal(folder).tries()) == 1


def test_a_journal_that_was_damaged_is_refused(tmp_path, rng):
    """Only a write that was killed is forgiven: another line lost may be what was kept."""
    journal = begun(tmp_path)
    referee_of(journal, {"0.1": 9.0}, rng).attempt(rate(0.1), 1e9)
    file = tmp_path / "journal.jsonl"
    whole = file.read_bytes().splitlines()
    for cut in range(0, len(whole[-1]), 3):  # wherever a write ended
        file.write_bytes(b"\n".join([*whole[:-1], whole[-1][:cut], *whole[:1]]))
        assert not journal.base()
    for line in (b"12", b"\xff\xfe", whole[-1].replace(b":", b";", 1), b"[]"):
        file.write_bytes(b"\n".join([*whole[:-1], line]))
        with pytest.raises(InvalidInput, match=f"line {len(whole)}: expected a row"):
            journal.base()


@pytest.mark.parametrize("arm", ["base", "change"])
@pytest.mark.parametrize(
    ("state", "reason", "error"),
    [
        ("diverged", "", CannotTrain),
        ("out of memory", "", CannotTrain),
        ("failed", "ValueError: heads", CannotTrain),
        ("failed", "SaveFailed: no space left on device", Stop),
        ("missing", "", Stop),
    ],
)
def test_a_full_disk_drops_no_change(monkeypatch, state, reason, error, arm):
    monkeypatch.setattr(pairs, "Workers", MagicMock())
    trained = object.__new__(pairs.TrainedPairs)
    trained._arms, trained._told, trained._where = {}, "model.depth=3", "tries"
    trained._progress = trained._stop = MagicMock()
    error = InvalidInput if (arm, error) == ("base", CannotTrain) else error
    cell = SimpleNamespace(arm=arm, seed=0, state=lambda: state, reason=lambda: reason)
    with pytest.raises(error, match="seed 0 ") as found:
        trained._run([cell])
    assert found.type is error


@pytest.mark.thorough
def test_of_a_hundred_changes_that_do_nothing_hardly_any_is_kept(tmp_path, monkeypatch):
    """Through the journal, as programs use it; a twentieth of such series may keep one."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    rng, journal = np.random.default_rng(11), begun(tmp_path)
    values = [str(2e-3 + n * 1e-6) for n in range(100)]
    referee = referee_of(journal, dict.fromkeys(values, 0.0), rng)
    outcomes = [referee.attempt(rate(value), 1e9)["outcome"] for value in values]
    assert outcomes.count(KEPT) == 0
    assert outcomes.count(UNDECIDED) == 0
    confirmed = sum(each.confirmation is not None for each in journal.tries())
    assert 0.1 < confirmed / len(values) < 0.35  # a standard error above 0, of three


def test_a_change_has_to_be_better_by_more_than_the_margin(tmp_path, rng):
    journal = begun(tmp_path, margin=5.0)
    referee = referee_of(journal, {"0.1": 3.0, "0.2": 9.0}, rng)
    assert referee.attempt(rate(0.1), 1e9)["outcome"] == DROPPED
    found = referee.attempt(rate(0.2), 1e9)
    assert found["outcome"] == KEPT
    assert 8 < found["estimate"] < 10


def test_what_was_fixed_at_the_beginning_is_not_changed_silently(tmp_path):
    journal = begun(tmp_path)
    journal.note(journal.try_of(rate(0.1)), {})
    for flag, told in (("--margin=0.5", "began with 0"), ("--metric=accuracy", "began with loss")):
        refused(attempt("try_change", f"--base={tmp_path}", "--change=model.depth=3", flag), told)


CONFIG, DEEPER = f"--config={TINY}", "--change=model.depth=3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --change=KEY=VALUE, or --list"),
        (("--list",), "nothing has begun"),
        ((DEEPER,), "nothing has begun there; give --config"),
        ((DEEPER, "--budget=3x"), "expected a time such as 90s"),
        ((DEEPER, "--config.model.width=16"), "expected --config=FILE too"),
        (("--change=model.dept=3", CONFIG), "did you mean model.depth"),
        (("--change=depth", CONFIG), "expected KEY=VALUE"),
        (("--change=seed=3", CONFIG), "the referee chooses the seeds"),
        (("--change=seeds.initial=3", CONFIG), "the referee chooses the seeds"),
        ((DEEPER, CONFIG, "--config.seeds.order=3"), "the referee chooses the"),
        ((DEEPER, CONFIG, "--gate=5"), "expected one of 1-gram"),
        ((DEEPER, CONFIG, "--metric=los"), "expected one of loss"),
        ((DEEPER, CONFIG, "--metric=bleu"), "expected one of loss"),
        ((DEEPER, CONFIG, "--margin=-1"), "expected a number >= 0"),
    ],
)
def test_wrong_tries_are_refused_and_begin_nothing(tmp_path, arguments, words):
    refused(attempt("try_change", f"--base={tmp_path / 'tries'}", *arguments), words)
    assert not (tmp_path / "tries").exists()


OPTIONS = ("model.depth=1", "optimizer.learning_rate=0.004", "schedule.warmup_steps=10")
BASE = (
    CONFIG,
    *(f"--config.{o}" for o in (*OPTIONS, "training.steps=150", "evaluation.every=150")),
)


@pytest.mark.commands
def test_real_changes_are_kept_and_dropped_and_a_killed_confirmation_goes_on(tmp_path):
    """Twice the batch is better, a rate that teaches nothing is worse; planted, with real runs."""
    folder = tmp_path / "tries"
    begins = (*BASE, "--gate=1-gram")
    good = (f"--base={folder}", "--change=training.batch_size=32", "--json")
    process, journal = start_command("try_change", *begins, *good), folder / "journal.jsonl"
    deadline = time.monotonic() + 200
    while not (journal.exists() and "confirming" in journal.read_text()):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    result = command("try_change", *good)
    assert result.returncode == 0, result.stderr
    kept = json.loads(result.stdout)
    assert (kept["outcome"], kept["try"], kept["metric"]) == (KEPT, 1, "validation/loss")
    assert kept["interval"][0] > 0
    assert [line for line in kept["cost"] if "counted" in line]
    assert journal.read_text().count('"confirming"') == 1
    bad = (f"--base={folder}", "--change=optimizer.learning_rate=1e-7", "--json")
    for run, known in ((command, None), (attempt, True)):
        result = run("try_change", *bad)
        assert result.returncode == 10, result.stderr
        found = json.loads(result.stdout)
        assert (found["outcome"], found.get("known")) == (DROPPED, known)
    again = attempt("try_change", *good)
    assert not again.returncode
    assert json.loads(again.stdout)["known"] is True
    listed = json.loads(attempt("try_change", f"--base={folder}", "--list", "--json").stdout)
    assert listed["base"] == {"training.batch_size": "32"}
    assert [each["outcome"] for each in listed["tries"]] == [KEPT, DROPPED]
    other = (f"--base={tmp_path / 'other'}", *BASE)
    unlearned = command("try_change", *other, *good[1:])
    assert unlearned.returncode == 2
    told = unlearned.stderr.partition("error: ")[2]  # after the progress
    assert "the base has not learned" in told
    assert "4-gram" in told
