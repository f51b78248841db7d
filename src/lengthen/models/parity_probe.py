"""What the checks of the parity gate share: a model, random inputs, a random state, and one run from either start.

In a hybrid every run carries the attention cache (a SequenceState), and the random state is one whose rows have seen
texts of unequal length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.attention import SequenceState
from lengthen.models.binding import is_language_model, library_model, sequence_start, zero_state
from lengthen.models.modes import mode
from lengthen.models.plain_modules import ModuleOutput, require_predictions
from lengthen.results import Check
from lengthen.state import RecurrentState

POSITIONS = 273


class Probe:
    """A model and what its checks hold their runs against.

    tokens [2, POSITIONS, ...]: random inputs; whole, final: outputs and final state of one run over them from the zero
    state; from_random, final_from_random: of one from the state `random`; tolerance: of errors, by the weights' dtype.
    """

    def __init__(self, model: nn.Module, seed: int, example: Tensor | None = None) -> None:
        self.model = model
        self.library: Any = library_model(model)
        parameter = next(model.parameters())
        self.device, self.weights_dtype = parameter.device, parameter.dtype
        self.generator = torch.Generator().manual_seed(seed)
        self.tokens = self._inputs(example).to(self.device)
        self.ones = torch.ones(self.tokens.shape[:2], dtype=torch.long, device=self.device)
        self.hybrid = isinstance(sequence_start(model, 1, "meta"), SequenceState)
        # float32 sums in another order differ by about sqrt(width) * 1e-7 of the logits' size. In float64 the
        # libraries' attention and routers still work in float32, so that its roundings differ by 6e-8.
        self.tolerance = 2e-5
        if self.weights_dtype == torch.float64:
            self.tolerance = 1e-6 if self.hybrid else 1e-9
        with torch.no_grad(), mode(model, training=False):
            self.whole, self.final = self.run(self.tokens)
            self.random = self._random_state(2)
            self.from_random, self.final_from_random = self.run(self.tokens, self.random)

    def _inputs(self, example: Tensor | None) -> Tensor:
        """Random inputs of two rows: tokens [2, T], or frames [2, T, ...] like the example's."""
        if is_language_model(self.model):
            vocabulary = self.library.config.get_text_config().vocab_size
            return torch.randint(vocabulary, (2, POSITIONS), generator=self.generator)
        if example is None or example.dim() < 2:
            raise InputError(
                f"What {type(self.library).__name__} reads is not known; give check an example of it as inputs, a tensor "
                "[rows, positions, ...]."
            )
        shape = (2, POSITIONS, *example.shape[2:])
        if not example.is_floating_point():
            return torch.randint(int(example.max()) + 1, shape, generator=self.generator)
        drawn = torch.randn(shape, generator=self.generator) * float(example.std()) + float(example.mean())
        return drawn.to(self.weights_dtype)

    def run(self, tokens: Tensor, state: RecurrentState | None = None, **more: Any) -> tuple[Tensor, RecurrentState]:
        """Outputs and final state of one call, from the zero state where none is given."""
        if state is None and self.hybrid:
            state = sequence_start(self.model, tokens.shape[0], self.device)
        output = self.model(input_ids=tokens, initial_state=state, **more)
        if isinstance(output, ModuleOutput):
            return require_predictions(self.library, output.predictions), output.final_state
        return output[0] if "logits" not in output else output.logits, output.final_state

    def _random_state(self, rows: int) -> RecurrentState:
        """Normal entries of the size of the state after one run, so that they matter as much as real ones."""
        sizes = {layer: {n: spread(t) or 1.0 for n, t in named.items()} for layer, named in self.final.tensors.items()}

        def draw(layer: str, name: str, t: Tensor, spec: Any) -> Tensor:
            drawn = torch.randn(t.shape, generator=self.generator, dtype=torch.float64) * sizes[layer][name]
            return (drawn if spec.noise else drawn.abs()).to(t)

        drawn = zero_state(self.model, rows, self.device).map_named(draw)
        if not self.hybrid:
            return drawn
        mask = torch.ones_like(self.ones[:, :11])
        mask[0, 5:] = 0
        with torch.no_grad():
            _, seen = self.run(self.tokens[:, -11:], attention_mask=mask)
        assert isinstance(seen, SequenceState)
        return SequenceState(drawn, seen.attention)

    def in_segments(
        self, sizes: Callable[[int], int], state: RecurrentState | None, positions: int = POSITIONS
    ) -> tuple[Tensor, RecurrentState]:
        """The same of as many calls as it takes, the i-th over sizes(i) positions."""
        parts, low, i = [], 0, 0
        while low < positions:
            high = min(positions, low + sizes(i))
            logits, state = self.run(self.tokens[:, low:high], state)
            parts.append(logits)
            low, i = high, i + 1
        assert state is not None
        return torch.cat(parts, 1), state

    def final_error(self, found: RecurrentState, expected: RecurrentState) -> float:
        """Error of a final state; in a hybrid also of what attention makes of its cache in the next few tokens."""
        error = state_error(found, expected)
        if not self.hybrid:
            return error
        with torch.no_grad():
            after = [self.run(self.tokens[: found.rows, :3], state)[0] for state in (found, expected)]
        return max(error, relative_error(*after))

    def within(self, name: str, error: float, meaning: str) -> Check:
        """A check that passes up to the tolerance."""
        return Check(name, error <= self.tolerance, error, self.tolerance, meaning)


def spread(t: Tensor) -> float:
    """The standard deviation of the entries; 0 where there are none."""
    return float(t.detach().double().std()) if t.numel() else 0.0
