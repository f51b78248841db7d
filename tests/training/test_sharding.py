"""Two gloo processes, replicated (DDP) or sharded (FSDP2), learn what one process learns."""

import json
import sys

import pytest
import torch

from lengthen import post_train
from tests.conftest import plain_transformers
from tests.training.launching import finish, start
from tests.training.matrix_cases import RUN, corpus, model
from tests.training.test_matrix import INTERVENTIONS, distance, plain

SHARDED = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Mamba2Block"]}}
WAYS = {
    "ddp": ({}, 1e-3),
    "fsdp2": ({"config": SHARDED, "save_steps": 2}, 1e-3),
    "fsdp2 bf16": ({"config": {"bf16": True, **SHARDED}}, 0.3),
}
WATCHED = {**RUN, "train_context": 4, "intervention": "state-passing", "watch_steps": 2}
__all__ = ["plain"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which two processes have trained every case."""
    folder = tmp_path_factory.mktemp("sharded")
    cases = {
        f"{name} {way}": {**RUN, "intervention": name, **options}
        for name in INTERVENTIONS
        for way, (options, _) in WAYS.items()
    }
    cases |= {f"watched {way}": {**WATCHED, "watched": True, **options} for way, (options, _) in WAYS.items()}
    cases["resumed"] = {**cases["tbptt fsdp2"], "resume": True, "checkpoint": "tbptt fsdp2/checkpoint-2"}
    (folder / "cases.json").write_text(json.dumps(cases))
    said = finish(start([sys.executable, "-m", "tests.training.matrix_worker", str(folder)], None))
    assert [code for code, _, _ in said] == [0, 0], said
    return folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("intervention", INTERVENTIONS)
def test_two_processes_learn_what_one_does(trained, plain, intervention, way):
    (losses, effect), (_, share) = plain[intervention], WAYS[way]
    found = json.loads((trained / f"{intervention} {way}.json").read_text())
    assert distance(found["losses"], losses) < share * effect
    assert found["dtypes"] == ["torch.float32"]  # also inside a bf16 unit


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_probes_find_the_same(trained, tmp_path, way):
    post_train(model(), corpus(), out=tmp_path, watch=corpus(), **WATCHED)
    one, two = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if "far_loss" in line]
        for folder in (tmp_path, trained / f"watched {way}")
    )
    assert [line["step"] for line in one] == [2, 4]
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in zip(one, two, strict=True))


def test_a_sharded_run_resumes_and_its_model_is_the_library_s(trained):
    whole, resumed = (plain_transformers(trained / n / "model") for n in ("tbptt fsdp2", "resumed"))
    losses = [json.loads((trained / f"{n}.json").read_text())["losses"] for n in ("tbptt fsdp2", "resumed")]
    assert losses[0] == losses[1] and len(losses[0]) == RUN["steps"]
    for (name, one), other in zip(whole.named_parameters(), resumed.parameters()):
        assert torch.equal(one, other), name
    assert any(not torch.equal(a, b) for a, b in zip(whole.parameters(), model().parameters()))
