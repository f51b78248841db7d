"""Interventions: which rows start from what, reproducibly, whatever the order or number of processes."""

import copy

import pytest
import torch

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, RecurrentState, Rows, StatePassing, Zero
from lengthen.errors import InputError
from lengthen.interventions import StateBank, intervention_named
from lengthen.state import TensorSpec

SPECS = {
    "l": {
        "h": TensorSpec("recurrent", head_axis=1),
        "m": TensorSpec("recurrent", noise=False),
        "w": TensorSpec("window"),
    }
}


def zero(rows):
    return RecurrentState(
        {"l": {"h": torch.zeros(rows, 2, 30, 40), "m": torch.zeros(rows, 4), "w": torch.zeros(rows, 3, 2)}}, SPECS, "t"
    )


def filled(values):
    """A state whose row i holds values[i] everywhere."""
    v = torch.as_tensor(values, dtype=torch.float32)
    return zero(len(v)).map(lambda t, _: t + v.view(-1, *[1] * (t.dim() - 1)))


def rows(lanes, step=0, total=None, start=None, shuffled=True):
    lane = torch.as_tensor(lanes)
    begins = torch.zeros(len(lane), dtype=torch.bool) if start is None else torch.as_tensor(start)
    return Rows(lane=lane, start=begins, step=step, lanes=total or len(lane), shuffled=shuffled, tokens=5)


def h(state):
    return state.tensors["l"]["h"][:, 0, 0, 0]


def test_zero_gives_nothing():
    assert Zero().initial_state(rows([0, 1]), zero(2)) is None


def test_state_passing_hands_each_lane_its_own_state_and_keeps_the_lowest_lanes_at_zero():
    sp = StatePassing(zero_fraction=0.25, p_zero=0)
    assert h(sp.initial_state(rows(range(8)), zero(8))).tolist() == [0] * 8
    sp.observe(rows(range(8)), filled(range(1, 9)))
    given = sp.initial_state(rows([7, 0, 3, 1, 2, 4, 5, 6], step=1), zero(8))
    assert h(given).tolist() == [8, 0, 4, 0, 3, 5, 6, 7]
    assert given.tensors["l"]["w"].abs().sum() == 0  # the window state stays zero unless asked for
    passing = StatePassing(zero_fraction=0, p_zero=0, window_state=True)
    passing.observe(rows([0, 1]), filled([1, 2]))
    assert passing.initial_state(rows([0, 1]), zero(2)).tensors["l"]["w"][1, 0, 0] == 2


def test_state_passing_does_not_depend_on_how_rows_are_batched():
    whole, parts = StatePassing(p_zero=0.5), StatePassing(p_zero=0.5)
    whole.observe(rows(range(8)), filled(range(1, 9)))
    for part in ([4, 5, 6, 7], [0, 1, 2, 3]):
        parts.observe(rows(part, total=8), filled([x + 1 for x in part]))
    one = h(whole.initial_state(rows(range(8), step=3), zero(8)))
    two = torch.cat([h(parts.initial_state(rows(p, step=3, total=8), zero(4))) for p in ([0, 1, 2, 3], [4, 5, 6, 7])])
    assert torch.equal(one, two)
    assert 0 < (one == 0).sum() < 8


def test_state_passing_never_zeroes_no_lane_silently():
    with pytest.raises(InputError, match="at least 4 rows"):
        StatePassing(zero_fraction=0.25).initial_state(rows([0, 1, 2]), zero(3))
    StatePassing(zero_fraction=0).initial_state(rows([0, 1, 2]), zero(3))


def test_p_zero_zeroes_its_share():
    sp = StatePassing(zero_fraction=0, p_zero=0.3)
    sp.observe(rows(range(1000)), filled([1.0] * 1000))
    share = (h(sp.initial_state(rows(range(1000), step=1), zero(1000))) == 0).float().mean()
    assert 0.25 < share < 0.35


def test_tbptt_continues_documents_and_starts_them_from_zero():
    t = TBPTT()
    t.observe(rows([0, 1, 2], shuffled=False, start=[True] * 3), filled([1, 2, 3]))
    given = t.initial_state(rows([0, 1, 2], step=1, shuffled=False, start=[False, True, False]), zero(3))
    assert h(given).tolist() == [1, 0, 3] and given.tensors["l"]["w"][0].abs().sum() > 0
    with pytest.raises(InputError, match="shuffled"):
        t.initial_state(rows([0, 1, 2]), zero(3))


def test_random_noise_has_its_std_leaves_windows_and_maxima_alone_and_is_keyed_on_step_and_lane():
    noise = RandomNoise(std=3.0, seed=5)
    one = noise.initial_state(rows(range(8), step=2), zero(8))
    assert abs(one.tensors["l"]["h"].std() - 3.0) < 0.05
    assert one.tensors["l"]["m"].abs().sum() == 0 and one.tensors["l"]["w"].abs().sum() == 0
    again = RandomNoise(std=3.0, seed=5).initial_state(rows([5, 3], step=2, total=8), zero(2))
    assert torch.equal(again.tensors["l"]["h"], one.tensors["l"]["h"][[5, 3]])
    for other in (
        noise.initial_state(rows(range(8), step=3), zero(8)),
        RandomNoise(3.0, seed=6).initial_state(rows(range(8), step=2), zero(8)),
    ):
        assert not torch.equal(other.tensors["l"]["h"], one.tensors["l"]["h"])


def test_relative_noise_is_measured_on_the_first_step_alone():
    """Later final states hold the noise itself: measuring them would let it grow without bound."""
    noise = RandomNoise(std=10.0, relative=True)
    assert noise.initial_state(rows(range(4)), zero(4)) is None
    for step, size in enumerate((0.2, 50.0, 50.0)):
        generator = torch.Generator().manual_seed(step)
        noise.observe(
            rows(range(4), step=step),
            zero(4).map(lambda t, _, g=generator, s=size: torch.randn(t.shape, generator=g) * s),
        )
        given = noise.initial_state(rows(range(4), step=step + 1), zero(4))
        assert abs(given.tensors["l"]["h"].std() - 2.0) < 0.1


def final_states(step, n=16):
    g = torch.Generator().manual_seed(step)
    base = torch.randn(n, 2, 30, 40, generator=g) * torch.tensor([0.5, 2.0]).view(1, 2, 1, 1) + torch.tensor(
        [1.0, -3.0]
    ).view(1, 2, 1, 1)
    return zero(n).map(lambda t, spec: base if t.dim() == 4 else t)


def test_fitted_noise_fits_each_head_and_follows_with_momentum():
    fitted = FittedNoise(momentum=0.9)
    assert fitted.initial_state(rows(range(16)), zero(16)) is None
    fitted.observe(rows(range(16)), final_states(0))
    drawn = fitted.initial_state(rows(range(16), step=1), zero(16)).tensors["l"]["h"]
    assert torch.allclose(drawn.mean((0, 2, 3)), torch.tensor([1.0, -3.0]), atol=0.1)  # five standard errors
    assert torch.allclose(drawn.std((0, 2, 3)), torch.tensor([0.5, 2.0]), atol=0.05)
    fitted.observe(rows(range(16), step=1), final_states(1).map(lambda t, _: t + 10))
    moved = fitted.initial_state(rows(range(16), step=2), zero(16)).tensors["l"]["h"]
    assert torch.allclose(moved.mean((0, 2, 3)), torch.tensor([2.0, -2.0]), atol=0.1)  # a tenth of the way


def test_fitted_moments_do_not_depend_on_micro_batches_and_move_once_a_step():
    whole, parts = FittedNoise(), FittedNoise()
    for step in range(3):
        everyone, half = (
            rows(range(16), step=step),
            [rows(range(8), step=step, total=16), rows(range(8, 16), step=step, total=16)],
        )
        whole.initial_state(everyone, zero(16))
        whole.observe(everyone, final_states(step))
        for i, part in enumerate(half):
            parts.initial_state(part, zero(8))
            parts.observe(part, final_states(step).index(range(8 * i, 8 * i + 8)))
    one = whole.initial_state(rows(range(16), step=3), zero(16))
    two = parts.initial_state(rows(range(16), step=3), zero(16))
    assert torch.allclose(one.tensors["l"]["h"], two.tensors["l"]["h"], rtol=0, atol=1e-6)


def test_mixture_gives_each_part_its_share_of_the_lanes():
    m = Mixture([(StatePassing(zero_fraction=0, p_zero=0), 0.5), (Zero(), 0.25), (RandomNoise(1.0), 0.25)])
    m.observe(rows(range(8)), filled(range(1, 9)))
    given = m.initial_state(rows([7, 6, 5, 4, 3, 2, 1, 0], step=1), zero(8))
    assert h(given)[4:].tolist() == [4, 3, 2, 1] and h(given)[2:4].tolist() == [0, 0]
    assert (given.tensors["l"]["h"][:2].std() - 1).abs() < 0.1
    with pytest.raises(InputError, match="add up"):
        Mixture([(Zero(), 0.5)])
    with pytest.raises(InputError, match="no lane"):
        Mixture([(Zero(), 0.9), (TBPTT(), 0.1)]).initial_state(rows([0, 1]), zero(2))


def test_the_noises_of_a_mixture_are_independent():
    m = Mixture([(RandomNoise(1.0), 0.5), (RandomNoise(1.0), 0.5)])
    drawn = m.initial_state(rows(range(4), step=1), zero(4)).tensors["l"]["h"]
    assert not torch.equal(drawn[:2], drawn[2:])


def test_a_process_without_rows_of_a_part_still_begins_its_steps():
    """Every process reduces the moments of every part, or the others would wait for it for ever."""
    m = Mixture([(FittedNoise(), 0.5), (Zero(), 0.5)])
    begun = []
    m.parts[0][0].advance = lambda step, zero: begun.append(step)
    for step in range(3):
        m.initial_state(rows([4, 5], step=step, total=8), zero(2))
        m.observe(rows([4, 5], step=step, total=8), zero(2))
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("fraction, lanes, zero_lanes", [(0.29, 100, 29), (0.58, 100, 58), (0.25, 7, 1), (1.0, 5, 5)])
def test_the_share_of_zero_lanes(fraction, lanes, zero_lanes):
    sp = StatePassing(zero_fraction=fraction, p_zero=0)
    sp.observe(rows(range(lanes)), filled([1.0] * lanes))
    assert (h(sp.initial_state(rows(range(lanes), step=1), zero(lanes))) == 0).sum() == zero_lanes


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatePassing(zero_fraction=0),
        TBPTT,
        FittedNoise,
        lambda: RandomNoise(2.0, True),
        lambda: Mixture([(StatePassing(zero_fraction=0), 0.5), (FittedNoise(), 0.5)]),
    ],
)
def test_save_and_restore(tmp_path, make):
    first = make()
    shuffled = not isinstance(first, TBPTT)
    for step in range(2):
        first.initial_state(rows(range(16), step=step, shuffled=shuffled), zero(16))
        first.observe(rows(range(16), step=step, shuffled=shuffled), final_states(step))
    first.save(tmp_path)
    second = make()
    second.load(tmp_path)
    now = rows(range(16), step=2, shuffled=shuffled)
    one, two = copy.deepcopy(first).initial_state(now, zero(16)), second.initial_state(now, zero(16))
    assert torch.equal(one.tensors["l"]["h"], two.tensors["l"]["h"])


def test_the_bank_is_not_changed_by_what_happens_to_the_state_it_was_given():
    bank = StateBank()
    given = filled([1.0, 2.0]).requires_grad()
    bank.put([0, 1], given.map(lambda t, _: t * 1))
    taken = bank.get([1, 0], zero(2))
    assert h(taken).tolist() == [2, 1] and all(not t.requires_grad for t in taken.tensors["l"].values())
    with pytest.raises(InputError, match="lane"):
        bank.put([0, 0], filled([1.0, 2.0]))


def test_provenance_counts_the_age_of_a_chain():
    t = TBPTT()
    for step in range(3):
        r = rows([0, 1], step=step, shuffled=False, start=[step == 0, step != 1])
        t.observe(r, filled([1, 2]))
    assert (t.bank.provenance(0).age, t.bank.provenance(1).age) == (15, 5)
    sp = StatePassing(zero_fraction=0.5, p_zero=0)
    for step in range(3):
        sp.observe(rows([0, 1], step=step), filled([1, 2]))
    assert (sp.bank.provenance(0).age, sp.bank.provenance(1).age) == (5, 15)


@pytest.mark.parametrize(
    "text, match",
    [
        ("noise", "no intervention 'noise'; choose one of state-passing, tbptt"),
        ("state-pass", "perhaps 'state-passing' was meant"),
        ("state-passing:std=1", "state-passing has no setting 'std'; choose one of zero_fraction"),
        ("state-passing:zero_fraction=half", "zero_fraction of state-passing is 'half'; give a number"),
        ("state-passing:window_state=maybe", "window_state of state-passing is 'maybe'; give true or false"),
        ("zero:seed=1", "zero has no setting 'seed'; leave it out"),
        ("state-passing:zero_fraction", "no value"),
        ("random-noise:std=0", "above 0"),
        ("fitted-noise:momentum=1.0", "momentum"),
        ("state-passing:zero_fraction=2", "zero_fraction"),
        ("0.5 zero + 0.5 none", "no intervention 'none'"),
        ("0.5 zero + tbptt", "'tbptt' of a mixture has no share"),
        ("0.5 zero + 0.4 tbptt", "add up to 1"),
        ("nan zero + 0.5 tbptt", "add up to 1"),
    ],
)
def test_bad_settings_are_a_sentence(text, match):
    with pytest.raises(InputError, match=match):
        intervention_named(text)


def test_settings_from_text():
    assert intervention_named("state-passing:zero_fraction=0.5,window_state=true").describe() == {
        "name": "state-passing",
        "zero_fraction": 0.5,
        "p_zero": 0.02,
        "window_state": True,
        "seed": 0,
    }
    assert intervention_named("random-noise").describe() == {
        "name": "random-noise",
        "std": 10.0,
        "relative": True,
        "seed": 0,
    }


def test_a_mixture_by_name_has_each_part_on_its_share():
    made = intervention_named("0.25 zero + 0.75 state-passing:zero_fraction=0", seed=3)
    assert [(part.name, share) for part, share in made.parts] == [("zero", 0.25), ("state-passing", 0.75)]
    assert (made.parts[1][0].zero_fraction, made.parts[1][0].seed) == (0, 3)


def test_random_noise_by_name_keeps_its_size_where_only_the_seed_is_set():
    made = intervention_named("random-noise:seed=3")
    assert (made.std, made.relative, made.seed) == (10.0, True, 3)
