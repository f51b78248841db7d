"""The two runs of a diagnosis over its sequences, the state carried and reset, each able to go on where it was stopped.

n sequences, L positions. A run is saved at ends of whole segments alone, so that one that goes on cuts the rest as one
run would have, and finds the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from lengthen.diagnosis.checkpoint import Checkpoint
from lengthen.diagnosis.pieces import Pieces
from lengthen.diagnosis.position_loss import Interval, IntervalSums
from lengthen.diagnosis.states import Statistics, head_statistics
from lengthen.models import SequenceState
from lengthen.state import RecurrentState
from lengthen.streaming import Progress, Tokens, reset_losses, segment_for, stream


@dataclass(frozen=True)
class Carried:
    """What a run with the state carried found.

    sums: of losses. statistics: of the states before each cut. kept: the state before one of them.
    """

    sums: IntervalSums
    statistics: dict[int, Statistics]
    kept: RecurrentState | None


def carried_pass(
    model: nn.Module,
    tokens: Tokens,
    intervals: Sequence[Interval],
    *,
    cuts: Sequence[int] = (),
    keep: int | None = None,
    segment: int | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Carried:
    """One run over tokens [n, L + 1] with the state carried. keep: the cut whose state is kept.

    A hybrid's run is saved only where it ends: what attention saw goes into no file.
    """
    n, length = tokens.shape[0], tokens.shape[1] - 1
    segment = segment or segment_for(model, n)
    saved = checkpoint.load("carried") if checkpoint is not None else None
    start = saved.position if saved is not None else 0
    sums = IntervalSums(intervals, n)
    statistics: dict[int, Statistics] = {}
    state = kept = None
    if saved is not None:
        sums.sums = saved.arrays.pop("sums")
        statistics = {int(cut): values for cut, values in saved.arrays.items()}
        state, kept = saved.states.get("state"), saved.states.get("kept")
    if start == length:
        return Carried(sums, statistics, kept)
    rest = Pieces(tokens, [start], length - start)
    for part in stream(model, rest, segment=segment, cuts=cuts, initial_state=state, start=start):
        sums.add(part.start, part.losses)
        if part.end in cuts:
            statistics[part.end] = head_statistics(part.final_state)
            kept = part.final_state if part.end == keep else kept
        whole = part.end % segment == 0 or part.end == length
        savable = not isinstance(part.final_state, SequenceState)
        if checkpoint is not None and savable and whole and (part.end == length or checkpoint.due()):
            arrays = {"sums": sums.sums} | {str(cut): values for cut, values in statistics.items()}
            states = {"state": part.final_state} | ({} if kept is None else {"kept": kept})
            checkpoint.save("carried", part.end, arrays, states)
        if progress is not None:
            progress(part.end, length)
    return Carried(sums, statistics, kept)


def reset_pass(
    model: nn.Module,
    tokens: Tokens,
    intervals: Sequence[Interval],
    train_context: int,
    *,
    segment: int | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> IntervalSums:
    """The reset baseline of a model: the same tokens with the state zeroed before inputs k T."""
    n, length = tokens.shape[0], tokens.shape[1] - 1
    segment = segment or segment_for(model, n)
    whole = segment // train_context * train_context or train_context
    saved = checkpoint.load("reset") if checkpoint is not None else None
    first = saved.position if saved is not None else 0
    sums = IntervalSums(intervals, n)
    if saved is not None:
        sums.sums = saved.arrays["sums"]
    if first == length:
        return sums
    rest = Pieces(tokens, [first], length - first)
    for start, losses in reset_losses(model, rest, train_context, segment=segment):
        sums.add(first + start, losses)
        end = first + start + losses.shape[1]
        if checkpoint is not None and (end == length or (end % whole == 0 and checkpoint.due())):
            checkpoint.save("reset", end, {"sums": sums.sums}, {})
        if progress is not None:
            progress(end, length)
    return sums
