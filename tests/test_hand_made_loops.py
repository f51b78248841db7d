"""Two loops as people write them around a model, each with its fault, beside what takes their place."""

import torch

from lengthen import TBPTT, Rows, stream, wrap, zero_state
from tests.conftest import tiny_mamba2

TOKENS = torch.randint(256, (1, 121), generator=torch.Generator().manual_seed(0))


def rows(step: int, start: bool) -> Rows:
    return Rows(lane=torch.tensor([0]), start=torch.tensor([start]), step=step, lanes=1, shuffled=False)


@torch.no_grad()
def test_a_reset_that_is_appended_resets_nothing():
    """Truncated backpropagation by hand: zero states are appended to a list whose first entries go on being read."""
    model = wrap(tiny_mamba2())
    windows, reset_at = TOKENS[:, :120].split(30, 1), 2
    fresh = [model(windows[i]).logits for i in range(4)]

    states = [zero_state(model, 1)]
    for i, window in enumerate(windows):
        if i == reset_at:
            states.append(zero_state(model, 1))
        output = model(window, initial_state=states[0])
        assert torch.equal(output.logits, fresh[i]) == (i == 0)
        states[0] = output.final_state

    intervention = TBPTT()
    for i, window in enumerate(windows):
        start = i in (0, reset_at)
        given = intervention.initial_state(rows(i, start), zero_state(model, 1))
        output = model(window, initial_state=given)
        assert torch.equal(output.logits, fresh[i]) == start
        intervention.observe(rows(i, start), output.final_state)


@torch.no_grad()
def test_chunks_without_a_shared_token_shift_positions_and_a_stream_does_not():
    """Losses by hand: each chunk's own tokens shifted by one, so that nothing predicts the first of the next chunk."""
    model = wrap(tiny_mamba2())
    whole = torch.nn.functional.cross_entropy(model(TOKENS[:, :-1]).logits[0], TOKENS[0, 1:], reduction="none")
    state, losses = None, []
    for chunk in TOKENS[:, :120].split(30, 1):
        output = model(chunk, initial_state=state)
        losses.append(torch.nn.functional.cross_entropy(output.logits[0, :-1], chunk[0, 1:], reduction="none"))
        state = output.final_state
    shifted = torch.cat(losses)
    assert len(shifted) == 120 - 4
    torch.testing.assert_close(shifted[29:58], whole[30:59], rtol=1e-5, atol=1e-5)  # one position early, then two

    parts = list(stream(model, TOKENS, segment=30))
    torch.testing.assert_close(torch.cat([part.losses[0] for part in parts]), whole, rtol=1e-5, atol=1e-5)
