"""Parity of the state that a model carries: cut, padded, packed and mixed runs against one run. No gradients.

Each check has the name of its function and runs a probe's model on its tokens; its sentence says what a failure would
do to the user.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lengthen.models.agreement import relative_error, state_error
from lengthen.models.attention import SequenceState
from lengthen.models.binding import sequence_start
from lengthen.models.parity_probe import POSITIONS, Probe
from lengthen.results import Check
from lengthen.state import RecurrentState

SEGMENTS = (1, 7, 64, 129)


def segments(probe: Probe) -> Check:
    with torch.no_grad():
        logits, final = probe.in_segments(lambda i: SEGMENTS[i % len(SEGMENTS)], None)
    return probe.within(
        "segments",
        max(relative_error(logits, probe.whole), probe.final_error(final, probe.final)),
        "If segments of odd sizes differ from one run, long texts are read wrongly wherever they are cut.",
    )


def token_by_token(probe: Probe) -> Check:
    with torch.no_grad():
        logits, final = probe.in_segments(lambda i: 1, None)
    return probe.within(
        "token-by-token",
        max(relative_error(logits, probe.whole), probe.final_error(final, probe.final)),
        "If token by token differs from one run, generation continues another state than the one that read the prompt.",
    )


def random_state(probe: Probe) -> Check:
    with torch.no_grad():
        logits, final = probe.in_segments(lambda i: SEGMENTS[(i + 1) % len(SEGMENTS)], probe.random)
    used = relative_error(probe.from_random, probe.whole)
    error = max(relative_error(logits, probe.from_random), probe.final_error(final, probe.final_from_random))
    return probe.within(
        "random-state",
        error if used > 10 * probe.tolerance or error > probe.tolerance else float("inf"),
        "If a run from a random state ignores it or depends on the cuts, post-training from such states teaches nothing.",
    )


def rows(probe: Probe) -> Check:
    with torch.no_grad():
        logits, final = probe.run(probe.tokens[1:], probe.random.index([1]))
        order = [1, 0, 0, 1, 0]
        many, many_final = probe.run(probe.tokens[order], probe.random.index(order))
    error = max(
        relative_error(logits, probe.from_random[1:]),
        probe.final_error(final, probe.final_from_random.index([1])),
        relative_error(many, probe.from_random[order]),
        state_error(many_final, probe.final_from_random.index(order)),
    )
    return probe.within("rows", error, "If rows depend on each other, a batch mixes the memories of its sequences.")


def padding(probe: Probe, side: str) -> Check:
    pad = 13
    padded, mask = (_padded(x, pad, 0) if side == "left" else _padded(x, 0, pad) for x in (probe.tokens, probe.ones))
    with torch.no_grad():
        logits, final = probe.run(padded, probe.random, attention_mask=mask)
    real = logits[:, pad:] if side == "left" else logits[:, :-pad]
    error = max(relative_error(real, probe.from_random), probe.final_error(final, probe.final_from_random))
    return probe.within(
        f"{side}-padding", error, f"If {side} padding changes the state, batches of unequal texts are wrong."
    )


def padding_identity(probe: Probe) -> Check:
    with torch.no_grad():
        mask = torch.ones_like(probe.ones[:, :9])
        mask[0] = 0
        _, final = probe.run(probe.tokens[:, :9], probe.random, attention_mask=mask)
    same = all(
        torch.equal(t[0], probe.random.tensors[layer][name][0])
        for layer, named in final.tensors.items()
        for name, t in named.items()
    )
    return Check(
        "padding-identity",
        same,
        0.0 if same else 1.0,
        0.0,
        "If a fully padded row does not keep its state bit for bit, short rows of a batch drift.",
    )


def packing(probe: Probe, pad: int = 0) -> Check:
    """pad: so many positions of padding in front of and behind every row."""
    cut = 70
    reset = torch.zeros_like(probe.ones, dtype=torch.bool)
    reset[:, cut] = True
    reset[0, cut + 1] = True
    padded = [_padded(x, pad, pad) for x in (probe.tokens, probe.ones, reset)]
    with torch.no_grad():
        logits, final = probe.run(padded[0], probe.random, attention_mask=padded[1] if pad else None, reset=padded[2])
        logits = logits[:, pad : pad + POSITIONS]
        before, _ = probe.run(probe.tokens[:, :cut], probe.random)
        one, _ = probe.run(probe.tokens[:1, cut : cut + 1])
        after, end = probe.run(probe.tokens[:1, cut + 1 :])
        other, other_end = probe.run(probe.tokens[1:, cut:])
    expected = torch.cat([before, torch.cat([torch.cat([one, after], 1), other], 0)], 1)
    ends = [probe.final_error(final.index([row]), alone) for row, alone in enumerate((end, other_end))]
    error = max(relative_error(logits, expected), *ends)
    name = "packing-with-padding" if pad else "packing"
    return probe.within(name, error, "If a reset lets anything through, packed documents leak into each other.")


def reset_at_start(probe: Probe) -> Check:
    reset = torch.zeros_like(probe.ones, dtype=torch.bool)
    reset[:, 0] = True
    with torch.no_grad():
        logits, final = probe.run(probe.tokens, probe.random, reset=reset)
    error = max(relative_error(logits, probe.whole), probe.final_error(final, probe.final))
    return probe.within(
        "reset-at-start",
        error,
        "If a reset before the first token is ignored, a new document starts from the old state.",
    )


def state_dtype(probe: Probe) -> Check:
    wanted = torch.float64 if probe.weights_dtype == torch.float64 else torch.float32
    wrong = [
        t.dtype
        for layer, named in probe.final.tensors.items()
        for name, t in named.items()
        if probe.final.specs[layer][name].kind == "recurrent" and t.dtype != wanted
    ]
    return Check(
        "state-dtype",
        not wrong,
        float(len(wrong)),
        0.0,
        "If a recurrent state is kept below float32, it is rounded at every boundary and drifts with the number of segments.",
    )


def state_unchanged(probe: Probe) -> Check:
    before = _all_tensors(probe.random.clone())
    with torch.no_grad():
        _, final = probe.run(probe.tokens[:, :3], probe.random)
    after = _all_tensors(probe.random)
    shared = len({t.data_ptr() for t in after if t.numel()} & {t.data_ptr() for t in _all_tensors(final)})
    changed = any(not torch.equal(a, b) for a, b in zip(after, before))
    return Check(
        "state-unchanged",
        shared == 0 and not changed,
        float(shared + changed),
        0.0,
        "If a run writes into the state it was given, a bank of states is corrupted.",
    )


def causal(probe: Probe) -> Check:
    changed = probe.tokens.clone()
    changed[:, -1] = changed[:, -1] + 1
    if not changed.is_floating_point():
        changed[:, -1] %= int(probe.tokens.max() + 1)
    with torch.no_grad():
        logits, _ = probe.run(changed)
    return probe.within(
        "causal",
        relative_error(logits[:, :-1], probe.whole[:, :-1]),
        "If a later token changes an earlier output, losses are too good to be true.",
    )


def half_precision(probe: Probe, exact: Probe) -> Check:
    """Segments of seven from a random state, against one run of the float32 copy: the median over positions.

    Rounding makes it up to 2 % in tiny models, a lost state a quarter and more; other experts move only the mean.
    """
    tokens, tolerance = probe.tokens[:, :77], 0.1
    start = exact.random.map(lambda t, _: t)
    beginning = sequence_start(probe.model, start.rows, probe.device)
    carried = SequenceState(start, beginning.attention) if isinstance(beginning, SequenceState) else start
    with torch.no_grad():
        found, _ = probe.in_segments(lambda i: 7, carried, tokens.shape[1])
        expected, _ = exact.run(tokens.float() if tokens.is_floating_point() else tokens, start)
    difference, size = (x.flatten(2).norm(dim=-1) for x in (found.double() - expected, expected.double()))
    error = float(difference.median() / size.median())
    return Check(
        "half-precision",
        error <= tolerance,
        error,
        tolerance,
        "If half precision strays from float32 where a text is cut, the state is carried in one and lost in the other.",
    )


def unknown_keyword(probe: Probe) -> Check:
    accepted = 0
    for wrong in ("no_such_argument", "cach", "initial_states"):
        try:
            with torch.no_grad():
                probe.model(input_ids=probe.tokens[:, :2], **{wrong: probe.random})
            accepted += 1
        except TypeError:
            pass
    return Check(
        "unknown-keyword",
        accepted == 0,
        float(accepted),
        0.0,
        "If a misspelt argument is swallowed, the model starts from zero without a word.",
    )


def _padded(x: Tensor, left: int, right: int) -> Tensor:
    """x [B, T, ...] with zeros in front of and behind its positions."""
    parts = [x.new_zeros(x.shape[0], left, *x.shape[2:]), x, x.new_zeros(x.shape[0], right, *x.shape[2:])]
    return torch.cat(parts, 1)


def _all_tensors(state: RecurrentState) -> list[Tensor]:
    """Every tensor of a state, a carried attention cache included."""
    tensors = [t for named in state.tensors.values() for t in named.values()]
    if isinstance(state, SequenceState):
        tensors += [state.attention.lengths, *(t for pair in state.attention.layers.values() for t in pair)]
    return tensors
