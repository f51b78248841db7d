"""Rivals in one table: texts apart, what is read counted, the same figures after an interruption, the fair yardstick."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lengthen.cli import main
from lengthen.data import load_corpus
from lengthen.errors import InputError
from lengthen.models import load
from lengthen.results import Rivals
from lengthen.training_free import METHODS, load_fitted, method_of
from lengthen.training_free.contest import CONTROL, GIVEN, PASSED, Contestant, Course, contest, entries
from lengthen.training_free.decay_totals import decay_totals
from lengthen.training_free.judging import far_loss, judged
from lengthen.training_free.rivalling import rivals
from lengthen.training_free.splits import Splits, calibration_from, parts
from tests.conftest import tiny_mamba2
from tests.training_free.small_models import IDS, small_model

T, L = 8, 32
SHORT = ("decay-matching", "soft-reset:keep=0.25", "soft-reset:keep=0.75", "deci-mamba")


def text(length=6000, seed=0):
    return "".join(map(chr, np.random.default_rng(seed).integers(97, 123, length)))


@pytest.fixture(scope="module")
def course():
    return Course(Splits.of(load_corpus([text(), text(3000, 1)])), T, L, n=16)


@pytest.fixture(scope="module")
def model():
    from lengthen import wrap

    return wrap(tiny_mamba2())


@pytest.fixture(scope="module")
def table(model, course, tmp_path_factory):
    return contest(arms(model), SHORT, course, name="tiny", cells=tmp_path_factory.mktemp("cells"))


def arms(model):
    return [Contestant(GIVEN, model), Contestant(CONTROL, model, 640, 5, 2.0), Contestant(PASSED, model, 640, 5, 2.0)]


def row(table, model, method):
    (found,) = [r for r in table.rivals if (r.model, r.method) == (model, method)]
    return found


def test_splits_share_no_position_and_lose_none():
    corpus = load_corpus([text(1000), text(30, 1), text(970, 2)])
    splits = Splits.of(corpus)
    places = [set(range(c.boundaries[0], c.boundaries[-1])) for c in (splits.calibrate, splits.select, splits.report)]
    assert [len(p) for p in places] == [500, 500, 1000] and len(set.union(*places)) == 2000
    assert splits.report.boundaries.tolist() == [1000, 1030, 2000], "documents stay apart"


def test_what_methods_read_lies_in_their_own_part():
    """Of a text that counts up, every window that is fitted on, chosen by or reported on says where it comes from."""
    corpus = load_corpus([np.arange(4000)])
    course = Course(Splits.of(corpus), T, L, n=16)
    fitted_on = calibration_from(
        course.splits.calibrate, method_of("mamba-extend:search=gradient"), train_context=T, length=L, seed=0
    )
    assert fitted_on.text.max() < 1000 and fitted_on.long_text.max() < 1000
    chosen_by = course.splits.to_select_by(L, 0)[:, 0 : L + 1]
    assert chosen_by.min() >= 1000 and chosen_by.max() < 2000
    assert course.report()[:, 0 : L + 1].min() >= 2000


def test_a_text_to_train_on_is_not_the_one_to_judge_by():
    judged_by, training = load_corpus([text()]), load_corpus([text(3000, 1)])
    splits = Splits.of(judged_by, training)
    assert splits.calibrate is training and splits.select.boundaries[0] == 0 and splits.report.boundaries[-1] == 6000
    with pytest.raises(InputError, match="is the one to judge by"):
        Splits.of(judged_by, load_corpus([text()]))


def test_parts_keep_short_ends():
    assert [p.boundaries.tolist() for p in parts(load_corpus([text(7)]), (0.5, 0.5))] == [[0, 4], [4, 7]]


def test_what_always_stands_in_the_table():
    named = entries(["constant-delta", "soft-reset:keep=0.3", "soft-reset"])
    assert ["hard-reset"] in named and ["constant-delta"] in named and named.count(["constant-delta"]) == 1
    assert named[-1] == ["soft-reset:keep=0.3", "soft-reset"]
    assert {method_of(t[0]).name for t in entries([])} == set(METHODS)
    with pytest.raises(InputError, match="no training-free method 'constant-dleta'"):
        entries(["constant-dleta"])


def test_the_table(table):
    models = {r.model for r in table.rivals}
    assert models == {GIVEN, CONTROL, PASSED}
    assert {r.method for r in table.rivals if r.model == CONTROL} == {"untouched", "hard-reset"}
    same = [[r.method for r in table.rivals if r.model == m] for m in (GIVEN, PASSED)]
    assert same[0] == same[1] and {"untouched", "hard-reset", "constant-delta", "soft-reset"} <= set(same[0])
    assert "must see the whole prompt" in table.left_out["deci-mamba"] and len(table.left_out) == 1
    assert (table.far_start, table.max_length, table.n) == (16, 32, 16)


def test_everything_read_is_counted(table):
    """Calibration 32 windows of T, selection 4 sequences of L for each candidate, post-training its own."""
    assert row(table, GIVEN, "untouched").tokens == 0
    assert (row(table, GIVEN, "decay-matching").tokens, row(table, GIVEN, "decay-matching").forwards) == (32 * T, 1)
    assert (row(table, GIVEN, "soft-reset").tokens, row(table, GIVEN, "soft-reset").forwards) == (2 * 4 * L, 2 * 4)
    assert row(table, PASSED, "untouched").tokens == 640 and row(table, PASSED, "untouched").seconds == 2.0
    assert row(table, PASSED, "decay-matching").tokens == 640 + 32 * T
    assert row(table, PASSED, "soft-reset").forwards == 5 + 2 * 4


def test_the_best_candidate_by_the_text_to_choose_by_stands_in_the_table(table, model, course):
    tokens = course.splits.to_select_by(L, 0)
    losses = {}
    for keep in (0.25, 0.75):
        method = method_of(f"soft-reset:keep={keep}")
        losses[keep] = far_loss(model, method.fit(model, course.calibration(method)), tokens, T)
    assert losses[0.25] != losses[0.75]
    assert row(table, GIVEN, "soft-reset").settings["keep"] == min(losses, key=losses.get)
    assert row(table, GIVEN, "soft-reset").chosen and not row(table, GIVEN, "constant-delta").chosen


def test_differences_are_paired_with_the_yardstick_and_the_untouched_model(table):
    reset, found = row(table, CONTROL, "hard-reset"), row(table, GIVEN, "constant-delta")
    assert reset.over_reset.difference == 0 and found.over_reset.against == "control, hard-reset"
    expected = np.mean(np.array(found.losses_far) - np.array(reset.losses_far))
    assert found.over_reset.difference == pytest.approx(expected) and expected != 0
    assert found.over_untouched.against == GIVEN and found.over_untouched.low <= found.over_untouched.high
    assert found.far.value == pytest.approx(np.exp(np.mean(found.losses_far)))


def test_an_interrupted_table_goes_on_to_the_same(model, course, tmp_path):
    class Interrupted(Exception):
        pass

    def stop(done, todo):
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        contest(arms(model), SHORT[:1], course, cells=tmp_path, progress=stop)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.json")}
    assert len(kept) == 3
    found = contest(arms(model), SHORT[:1], course, cells=tmp_path)
    assert all(p.stat().st_mtime_ns == at for p, at in kept.items())
    assert contest(arms(model), SHORT[:1], course, cells=tmp_path).to_json() == found.to_json()
    (fit, *_) = sorted(tmp_path.glob("decay-matching-*/"))
    assert load_fitted(fit).method == method_of("decay-matching")
    other = replace(course, seed=1)
    assert contest(arms(model)[:1], [], other, cells=None).rivals[0].losses_far != found.rivals[0].losses_far


@torch.no_grad()
def test_log_decays_are_those_under_the_method():
    model = small_model("Mamba2")
    with decay_totals(model) as plain:
        model(IDS)
    fitted = method_of("constant-delta:ratio=0.5").fit(model)
    with fitted.apply(model), decay_totals(model) as halved:
        model(IDS[:, :20], initial_state=None)
        model(IDS[:, 20:])
    with decay_totals(model) as pieces:
        model(IDS[:, :20])
        model(IDS[:, 20:])
    (first, *_) = plain
    assert torch.allclose(halved[first], pieces[first] / 2) and plain[first].max() < 0
    assert torch.allclose(plain[first], pieces[first], rtol=0.05), (
        "the first layer's inputs but for a convolution's width"
    )


@pytest.mark.parametrize("name", ["Mamba", "LSTM", "Bamba"])
def test_heads_of_every_sort_are_told(name):
    model = small_model(name)
    tokens = load_corpus([np.random.default_rng(0).integers(3, 64, 2000)])
    sequences = Course(Splits.of(tokens), T, 16, n=2).report()
    heads = judged(model, None, sequences, T).heads
    assert all(h.norm_in_context > 0 and h.norm_far > 0 for h in heads)
    assert all((h.log_decay is None) == (name == "LSTM") for h in heads)


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    tiny_mamba2().save_pretrained(folder / "model")
    (folder / "text.txt").write_text(text(9000))
    (folder / "other.txt").write_text(text(2000, 1))
    return folder


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def asked(folder, command, *more):
    return [command, folder / "model", "--data", folder / "text.txt", "--train-context", T, "--max-length", L, *more]


def test_the_command_trains_what_is_missing_and_goes_on(capsys, folder, tmp_path):
    more = [
        "--methods",
        "soft-reset",
        "--steps",
        2,
        "--rows",
        4,
        "--learning-rate",
        1e-2,
        "--out",
        tmp_path / "run",
        "--json",
    ]
    code, out, err = run(capsys, *asked(folder, "rivals", *more))
    assert code == 0 and err == ""
    found = json.loads(out)
    trained = [r for r in found["rivals"] if r["method"] == "untouched" and r["model"] != GIVEN]
    assert [r["tokens"] for r in trained] == [2 * 4 * T] * 2 and trained[0]["losses_far"] != trained[1]["losses_far"]
    assert Rivals.load(tmp_path / "run" / "results" / "rivals.json").to_json() == found
    page = (tmp_path / "run" / "report.html").read_text()
    assert "soft reset" in page and (tmp_path / "run" / "figures" / "rivals.svg").exists()
    again = run(capsys, *asked(folder, "rivals", *more))
    assert again == (0, out, "")


def test_the_control_arm_is_as_long_and_from_zero(model, course, folder, tmp_path):
    from lengthen import post_train

    for name, intervention, steps in (
        ("zero", "zero", 1),
        ("passed", "state-passing", 1),
        ("longer", "state-passing", 2),
    ):
        arm, out = load(folder / "model"), tmp_path / name
        post_train(arm, folder / "other.txt", train_context=T, steps=steps, intervention=intervention, rows=4, out=out)
    for control, passed, why in (
        ("passed", "zero", "starts from zero"),
        ("zero", "longer", "steps 1 and .* 2; train both alike"),
        ("zero", "mistyped", "mistyped holds no finished run"),
    ):
        with pytest.raises(InputError, match=why):
            rivals(
                model,
                folder / "text.txt",
                train_context=T,
                max_length=L,
                control=tmp_path / control,
                post_trained=tmp_path / passed,
            )


def test_diagnose_and_evaluate_run_under_a_method(capsys, folder, tmp_path):
    fast = ["--no-remembrance", "--no-drift", "--no-patching", "--json"]
    _, plain, _ = run(capsys, *asked(folder, "diagnose", *fast))
    _, out, err = run(
        capsys, *asked(folder, "diagnose", *fast, "--with", "constant-delta:ratio=0.5", "--out", tmp_path / "run")
    )
    under = json.loads(out)
    assert err == "" and under["model"].endswith("model under constant-delta")
    assert under["buckets"][-1]["loss"] != json.loads(plain)["buckets"][-1]["loss"]
    saved = tmp_path / "run" / "method"
    _, again, _ = run(capsys, *asked(folder, "diagnose", *fast, "--with", saved))
    assert json.loads(again) == under
    tasks = ["evaluate", folder / "model", "--tasks", "copying", "--lengths", 64, "--n", 2, "--json", "--with", saved]
    code, out, _ = run(capsys, *tasks)
    assert code == 0 and json.loads(out)["model"].endswith("under constant-delta")


def test_what_a_method_lacks_is_told_in_a_sentence(capsys, folder, tmp_path):
    refused = {
        ("--with", "deci-mamba"): "must see the whole prompt",
        ("--with", "decay-matching"): "decay-matching needs calibration text",
        ("--with", "decay-matching", "--calibration", folder / "text.txt"): "give --calibration another text",
        ("--with", "nothing"): "no training-free method",
    }
    for more, why in refused.items():
        code, out, err = run(capsys, *asked(folder, "diagnose", *more, "--out", tmp_path / "run"))
        assert code == 2 and out == "" and why in err and err.count("\n") == 1, more
        assert not (tmp_path / "run").exists()
    more = ("--with", "decay-matching", "--calibration", folder / "other.txt", "--json")
    assert run(capsys, *asked(folder, "diagnose", *more))[0] == 0


def test_a_resumed_diagnosis_goes_on_under_its_own_method(model, tmp_path):
    from lengthen.training_free.using import used

    given = {"train_context": T, "length": L}
    with used(model, "constant-delta", streamed=True, kept=tmp_path / "method", **given) as fitted:
        assert float(fitted.tensors["ratio"]) == T / L
    with used(model, "constant-delta", streamed=True, kept=tmp_path / "method", resume=True) as again:
        assert again.tensors == fitted.tensors
    for method, why in ((None, "begun under constant-delta; name it again"), ("soft-reset", "go on under it")):
        with (
            pytest.raises(InputError, match=why),
            used(model, method, streamed=True, kept=tmp_path / "method", resume=True),
        ):
            pass
    with used(model, None, streamed=True) as nothing:
        assert nothing is None
