"""The same training however it is carried out: micro-batches, checkpointing, autocast, compiled, adapters, processes."""

import pytest
import torch

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, StatePassing, Zero, post_train, wrap
from lengthen.data import LaneWindows
from lengthen.interventions import intervention_named
from lengthen.training import StateTrainer
from tests.training.matrix_cases import RUN, corpus, model

INTERVENTIONS = ("state-passing", "tbptt")
CHECKPOINTING = {"activation_checkpointing": True}
WAYS = {
    "micro-batches": ({"accumulation": 4}, 1e-3),
    "gradient checkpointing": ({"config": CHECKPOINTING}, 1e-3),
    "micro-batches under checkpointing": ({"accumulation": 2, "config": CHECKPOINTING}, 1e-3),
    "bf16 autocast": ({"config": {"bf16": True}}, 0.3),  # three digits of a loss near 7
    "bf16 autocast under checkpointing": ({"config": {"bf16": True, **CHECKPOINTING}}, 0.3),
    "torch.compile": ({"config": {"torch_compile": True, "torch_compile_backend": "aot_eager"}}, 1e-3),
}
"""Options, and how far losses may lie from the plain run's, as a share of what the states change in them."""


class Forgetting(TBPTT):
    """TBPTT's windows, each from zero."""

    def initial_state(self, rows, zero):
        return None


def train(intervention, make=model, **options):
    chosen = intervention_named(intervention) if isinstance(intervention, str) else intervention
    return post_train(make(), corpus(), intervention=chosen, **{**RUN, **options})


def distance(losses, others):
    return max(abs(a - b) for a, b in zip(losses, others))


@pytest.fixture(scope="module")
def plain():
    """Of each intervention: the plain run's losses, and what they lie from those without states."""
    found = {}
    for name, without in zip(INTERVENTIONS, (Zero(), Forgetting())):
        losses = train(name).losses
        found[name] = losses, distance(losses, train(without).losses)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("intervention", INTERVENTIONS)
def test_every_way_learns_the_same(plain, intervention, way):
    (options, share), (losses, effect) = WAYS[way], plain[intervention]
    assert effect > 0.05
    assert distance(train(intervention, **options).losses, losses) < share * effect


@pytest.mark.parametrize(
    "make",
    [
        *(Zero, StatePassing, FittedNoise, TBPTT, lambda: RandomNoise(0.5)),
        lambda: Mixture([(StatePassing(zero_fraction=0), 0.5), (FittedNoise(), 0.5)]),
    ],
    ids=["zero", "state passing", "fitted", "tbptt", "random", "mixture"],
)
def test_adapters_train_under_every_intervention(tmp_path, make):
    adapted = with_adapters()
    before = {name: p.detach().clone() for name, p in adapted.named_parameters()}
    losses = train(make(), lambda: adapted, out=tmp_path).losses
    moved = {name for name, p in adapted.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert (tmp_path / "model" / "adapter_model.safetensors").exists()
    without = train(Forgetting() if isinstance(make(), TBPTT) else Zero(), with_adapters).losses
    assert (distance(losses, without) > 1e-3) == (not isinstance(make(), Zero))  # the states reach the adapted layers


def with_adapters():
    import peft

    torch.manual_seed(0)
    return peft.get_peft_model(model(), peft.LoraConfig(r=4, target_modules=["in_proj"]))


@pytest.mark.parametrize("intervention", INTERVENTIONS)
def test_evaluation_on_the_way_changes_nothing(tmp_path, plain, intervention):
    """Over five rows in batches of two, the last of one; the loss is the one of a plain forward from zero."""
    windows = LaneWindows(corpus(), context=16, lanes=8)
    evaluated = [
        {"input_ids": row["input_ids"], "labels": row["input_ids"]}
        for row in ({k: v[i] for k, v in next(windows).items()} for i in range(5))
    ]
    config = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}
    seen = []

    class Evaluating(StateTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, eval_dataset=evaluated, **kwargs)

        def evaluate(self, *args, **kwargs):
            found = super().evaluate(*args, **kwargs)
            ids = torch.stack([row["input_ids"] for row in evaluated])
            with torch.no_grad():
                expected = wrap(self.model).eval()(input_ids=ids, labels=ids).loss
            seen.append((found["eval_loss"], float(expected)))
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthen.training.running.StateTrainer", Evaluating)
        assert train(intervention, config=config).losses == plain[intervention][0]
    assert len(seen) == 2 and all(found == pytest.approx(expected, rel=1e-5) for found, expected in seen)
