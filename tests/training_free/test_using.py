"""A method for a whole command: fitted or read, kept, gone on under, refused in a sentence."""

import json

import pytest
import torch

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.training_free.using import fitted_for, used
from tests.conftest import tiny_mamba2
from tests.training_free.command_line import asked, run
from tests.training_free.texts import L, T


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


def test_a_resumed_diagnosis_goes_on_under_its_own_method(model, tmp_path):
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


def test_a_resumed_run_does_not_go_on_under_another_fit(model, tmp_path):
    given = {"train_context": T, "length": L}
    kept = tmp_path / "method"
    fitted_for(model, "constant-delta", **given).save(tmp_path / "same")
    fitted_for(model, "constant-delta", train_context=T, length=2 * L).save(tmp_path / "other")
    with used(model, str(tmp_path / "same"), streamed=True, kept=kept):
        pass
    for method, lengths in ((tmp_path / "same", {}), ("constant-delta", given), ("constant-delta", {})):
        with used(model, str(method), streamed=True, kept=kept, resume=True, **lengths) as fitted:
            assert float(fitted.tensors["ratio"]) == T / L
    for method, lengths in ((tmp_path / "other", given), ("constant-delta", {"train_context": T, "length": 2 * L})):
        with (
            pytest.raises(InputError, match=rf"train context of {T} and a length of {L}; go on under it"),
            used(model, str(method), streamed=True, kept=kept, resume=True, **lengths),
        ):
            pytest.fail("a run went on under another fit")


def test_lengths_that_a_method_does_not_depend_on_may_change_where_a_run_is_resumed(model, tmp_path):
    given = {"train_context": T, "length": L}
    with used(model, "constant-delta:ratio=0.5", streamed=True, kept=tmp_path, **given):
        pass
    with used(model, "constant-delta:ratio=0.5", streamed=True, kept=tmp_path, resume=True, train_context=T, length=1):
        pass
    with (
        pytest.raises(InputError, match=r"begun under ConstantDelta\(ratio=0\.5\); go on under it"),
        used(model, "constant-delta:ratio=0.25", streamed=True, kept=tmp_path, resume=True, **given),
    ):
        pytest.fail("a run went on under another setting")


def test_a_resumed_run_does_not_go_on_under_a_fit_to_other_text(model, tmp_path, plays):
    text, other, given = tmp_path / "text.txt", tmp_path / "other.txt", {"train_context": T, "length": L}
    for path, low in ((text, 0), (other, 4096)):
        path.write_bytes(bytes(plays[0].values[low : low + 4096].astype("uint8")))
    with used(model, "decay-matching", streamed=True, kept=tmp_path / "kept", calibration=text, **given) as began:
        assert began.data
    for calibration in (text, None):
        resumed = {"kept": tmp_path / "kept", "resume": True, "calibration": calibration, **given}
        with used(model, "decay-matching", streamed=True, **resumed) as fitted:
            assert fitted.data == began.data
    with (
        pytest.raises(InputError, match=f"length of {L}, on the calibration text given then; go on under it"),
        used(model, "decay-matching", streamed=True, **(resumed | {"calibration": other})),
    ):
        pytest.fail("a run went on under a fit to another text")
    assert fitted_for(model, "constant-delta", calibration=text, **given).data == ""


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


def test_a_folder_with_a_fit_stands_for_the_method_and_its_settings(model, folder, tmp_path):
    given = {"train_context": T, "length": L, "calibration": str(folder / "other.txt")}
    fitted = fitted_for(model, "decay-matching:share=0.1", **given)
    assert fitted.tokens_read == 32 * T and fitted_for(model, "constant-delta:ratio=0.5").tokens_read == 0
    fitted.save(tmp_path)
    again = fitted_for(model, str(tmp_path))
    assert again.method == fitted.method and again.tokens_read == fitted.tokens_read
    assert all(torch.equal(again.tensors[name], t) for name, t in fitted.tensors.items())


def test_a_command_that_fails_leaves_the_model_as_it_was(model, tmp_path):
    weights = weights_fingerprint(model)
    with pytest.raises(ZeroDivisionError), used(model, "spectrum-winsorising:quantile=0.3", streamed=True):
        assert weights_fingerprint(model) != weights
        raise ZeroDivisionError
    assert weights_fingerprint(model) == weights
    with (
        pytest.raises(InputError, match="must see the whole prompt"),
        used(model, "deci-mamba", streamed=True, kept=tmp_path, train_context=T),
    ):
        pass
    assert not any(tmp_path.iterdir())
