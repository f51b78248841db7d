"""What the recurrent state looks like at a position, per layer and head."""

from __future__ import annotations

from lengthen.results import HeadState
from lengthen.state import RecurrentState


def head_states(position: int, state: RecurrentState) -> list[HeadState]:
    """The state before input `position`, one entry per layer, tensor and head, over all rows."""
    found = []
    for layer, named in state.statistics().items():
        for tensor, stats in named.items():
            for head in range(stats["mean"].shape[1]):
                mean = stats["mean"][:, head]
                second = stats["std"][:, head].square() + mean.square()
                spread = (second.mean() - mean.mean().square()).clamp_min(0).sqrt()
                norm = stats["norm"][:, head].square().mean().sqrt()
                largest = stats["largest"][:, head].max()
                found.append(
                    HeadState(
                        position, layer, tensor, head, float(mean.mean()), float(spread), float(norm), float(largest)
                    )
                )
    return found
