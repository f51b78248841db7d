"""The parity gate: is the recurrent state really carried? One run = segments = token by token, with gradients.

Every check runs the wrapped model itself, on random tokens, against one run of the same tokens. A failure has a name
and a sentence that says what it would do to the user. In a hybrid every run carries the attention cache (a SequenceState), from a
random state whose rows have seen texts of unequal length, except where gradients into the state and gradient
checkpointing are checked, which concern the state alone.

Where the weights are in half precision, errors are measured on a float32 copy of the model, to float32's tolerance:
half precision would hide small faults behind its rounding, and may rightly send a token to another expert when it is
computed in another order. The model itself is asked for what needs no tolerance (what is bit-equal, the state's type,
unknown keywords), and for one loose agreement with its copy.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.attention import SequenceState
from lengthen.models.binding import family_name, is_language_model, library_model, sequence_start, zero_state
from lengthen.models.modes import HeldChoices, checkpointing, mode, no_dropout
from lengthen.models.plain_modules import ModuleOutput, require_predictions
from lengthen.models.wrapping import is_wrapped, unwrap, wrap
from lengthen.results import Check, CheckResult
from lengthen.state import RecurrentState

POSITIONS = 273
SEGMENTS = (1, 7, 64, 129)


def check(
    model: nn.Module, *, inputs: Tensor | None = None, seed: int = 0, short: bool = False, name: str | None = None
) -> CheckResult:
    """Every parity check on a wrapped model (or a library model, which is wrapped for the time of the check).

    inputs: for a module that is no language model, an example [B, T, ...] of what it reads: the checks draw their own,
    ids below its largest or frames of its mean and spread.
    short: only what decides whether the state is carried (segments, token by token, from a random state).
    """
    wrapped_here = not is_wrapped(model)
    wrap(model)
    try:
        half = next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
        probe = _Probe(copy.deepcopy(model).float() if half else model, seed, inputs)
        given = _Probe(model, seed, inputs) if half else probe
        with mode(probe.model, training=False), mode(model, training=False):
            checks = [probe.segments(), probe.token_by_token(), probe.random_state()]
            if not short:
                checks += [
                    probe.rows(),
                    probe.padding("left"),
                    probe.padding("right"),
                    given.identity(),
                    probe.packing(),
                    probe.packing(pad=5),
                ]
                checks += [probe.reset_at_zero(), given.dtype(), given.fresh(), probe.causal()]
            if half:
                checks.append(given.half_precision(probe))
        if not short:
            checks += [probe.gradient_into_state(), probe.gradient_through_state(), probe.train_mode()]
            if getattr(library_model(model), "supports_gradient_checkpointing", False):
                checks.append(probe.gradient_checkpointing())
            checks.append(given.keywords())
        library = library_model(model)
        title = name or getattr(getattr(library, "config", None), "_name_or_path", "") or type(library).__name__
        return CheckResult(title, family_name(model), all(c.passed for c in checks), checks)
    finally:
        if wrapped_here:
            unwrap(model)


class _Probe:
    """Random tokens for one model, one run over them, and the checks."""

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
        if state is None and self.hybrid:
            state = sequence_start(self.model, tokens.shape[0], self.device)
        output = self.model(input_ids=tokens, initial_state=state, **more)
        if isinstance(output, ModuleOutput):
            return require_predictions(self.library, output.predictions), output.final_state
        return output[0] if "logits" not in output else output.logits, output.final_state

    def _random_state(self, rows: int) -> RecurrentState:
        """Normal entries of the size of the state after one run, so that they matter as much as real ones."""
        sizes = {layer: {n: _spread(t) or 1.0 for n, t in named.items()} for layer, named in self.final.tensors.items()}

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
        parts, low, i = [], 0, 0
        while low < positions:
            high = min(positions, low + sizes(i))
            logits, state = self.run(self.tokens[:, low:high], state)
            parts.append(logits)
            low, i = high, i + 1
        assert state is not None
        return torch.cat(parts, 1), state

    def _final_error(self, found: RecurrentState, expected: RecurrentState) -> float:
        """Error of a final state; in a hybrid also of what attention makes of its cache in the next few tokens."""
        error = _state_error(found, expected)
        if not self.hybrid:
            return error
        with torch.no_grad():
            after = [self.run(self.tokens[: found.rows, :3], state)[0] for state in (found, expected)]
        return max(error, _error(*after))

    # -- the checks --------------------------------------------------------------------------------------------

    def segments(self) -> Check:
        with torch.no_grad():
            logits, final = self.in_segments(lambda i: SEGMENTS[i % len(SEGMENTS)], None)
        return self._check(
            "segments",
            max(_error(logits, self.whole), self._final_error(final, self.final)),
            "If segments of odd sizes differ from one run, long texts are read wrongly wherever they are cut.",
        )

    def token_by_token(self) -> Check:
        with torch.no_grad():
            logits, final = self.in_segments(lambda i: 1, None)
        return self._check(
            "token-by-token",
            max(_error(logits, self.whole), self._final_error(final, self.final)),
            "If token by token differs from one run, generation continues another state than the one that read the prompt.",
        )

    def random_state(self) -> Check:
        with torch.no_grad():
            logits, final = self.in_segments(lambda i: SEGMENTS[(i + 1) % len(SEGMENTS)], self.random)
        used = _error(self.from_random, self.whole)
        error = max(_error(logits, self.from_random), self._final_error(final, self.final_from_random))
        return self._check(
            "random-state",
            error if used > 10 * self.tolerance or error > self.tolerance else float("inf"),
            "If a run from a random state ignores it or depends on the cuts, post-training from such states teaches nothing.",
        )

    def rows(self) -> Check:
        with torch.no_grad():
            logits, final = self.run(self.tokens[1:], self.random.index([1]))
            order = [1, 0, 0, 1, 0]
            many, many_final = self.run(self.tokens[order], self.random.index(order))
        error = max(
            _error(logits, self.from_random[1:]),
            self._final_error(final, self.final_from_random.index([1])),
            _error(many, self.from_random[order]),
            _state_error(many_final, self.final_from_random.index(order)),
        )
        return self._check("rows", error, "If rows depend on each other, a batch mixes the memories of its sequences.")

    def padding(self, side: str) -> Check:
        pad = 13
        padded, mask = (_padded(x, pad, 0) if side == "left" else _padded(x, 0, pad) for x in (self.tokens, self.ones))
        with torch.no_grad():
            logits, final = self.run(padded, self.random, attention_mask=mask)
        real = logits[:, pad:] if side == "left" else logits[:, :-pad]
        error = max(_error(real, self.from_random), self._final_error(final, self.final_from_random))
        return self._check(
            f"{side}-padding", error, f"If {side} padding changes the state, batches of unequal texts are wrong."
        )

    def identity(self) -> Check:
        with torch.no_grad():
            mask = torch.ones_like(self.ones[:, :9])
            mask[0] = 0
            _, final = self.run(self.tokens[:, :9], self.random, attention_mask=mask)
        same = all(
            torch.equal(t[0], self.random.tensors[layer][name][0])
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

    def packing(self, pad: int = 0) -> Check:
        """pad: so many positions of padding in front of and behind every row."""
        cut = 70
        reset = torch.zeros_like(self.ones, dtype=torch.bool)
        reset[:, cut] = True
        reset[0, cut + 1] = True
        padded = [_padded(x, pad, pad) for x in (self.tokens, self.ones, reset)]
        with torch.no_grad():
            logits, final = self.run(padded[0], self.random, attention_mask=padded[1] if pad else None, reset=padded[2])
            logits = logits[:, pad : pad + POSITIONS]
            before, _ = self.run(self.tokens[:, :cut], self.random)
            one, _ = self.run(self.tokens[:1, cut : cut + 1])
            after, end = self.run(self.tokens[:1, cut + 1 :])
            other, other_end = self.run(self.tokens[1:, cut:])
        expected = torch.cat([before, torch.cat([torch.cat([one, after], 1), other], 0)], 1)
        ends = [self._final_error(final.index([row]), alone) for row, alone in enumerate((end, other_end))]
        error = max(_error(logits, expected), *ends)
        name = "packing-with-padding" if pad else "packing"
        return self._check(name, error, "If a reset lets anything through, packed documents leak into each other.")

    def reset_at_zero(self) -> Check:
        reset = torch.zeros_like(self.ones, dtype=torch.bool)
        reset[:, 0] = True
        with torch.no_grad():
            logits, final = self.run(self.tokens, self.random, reset=reset)
        error = max(_error(logits, self.whole), self._final_error(final, self.final))
        return self._check(
            "reset-at-start",
            error,
            "If a reset before the first token is ignored, a new document starts from the old state.",
        )

    def dtype(self) -> Check:
        wanted = torch.float64 if self.weights_dtype == torch.float64 else torch.float32
        wrong = [
            t.dtype
            for layer, named in self.final.tensors.items()
            for name, t in named.items()
            if self.final.specs[layer][name].kind == "recurrent" and t.dtype != wanted
        ]
        return Check(
            "state-dtype",
            not wrong,
            float(len(wrong)),
            0.0,
            "If a recurrent state is kept below float32, it is rounded at every boundary and drifts with the number of segments.",
        )

    def fresh(self) -> Check:
        before = _all_tensors(self.random.clone())
        with torch.no_grad():
            _, final = self.run(self.tokens[:, :3], self.random)
        after = _all_tensors(self.random)
        shared = len({t.data_ptr() for t in after if t.numel()} & {t.data_ptr() for t in _all_tensors(final)})
        changed = any(not torch.equal(a, b) for a, b in zip(after, before))
        return Check(
            "state-unchanged",
            shared == 0 and not changed,
            float(shared + changed),
            0.0,
            "If a run writes into the state it was given, a bank of states is corrupted.",
        )

    def causal(self) -> Check:
        changed = self.tokens.clone()
        changed[:, -1] = changed[:, -1] + 1
        if not changed.is_floating_point():
            changed[:, -1] %= int(self.tokens.max() + 1)
        with torch.no_grad():
            logits, _ = self.run(changed)
        return self._check(
            "causal",
            _error(logits[:, :-1], self.whole[:, :-1]),
            "If a later token changes an earlier output, losses are too good to be true.",
        )

    def gradient_into_state(self) -> Check:
        """The directional derivative of a loss along the initial state, against a central difference."""
        tolerance = 2e-2
        with mode(self.model, training=False):
            error, slope = self._slope_error(tolerance)
        return Check(
            "gradient-into-state",
            error <= tolerance and slope != 0,
            error,
            tolerance,
            "If gradients into the initial state are wrong or missing, learned initial states and long gradients are wrong.",
        )

    def _slope_error(self, tolerance: float) -> tuple[float, float]:
        """Relative error of a slope along a random direction, for the first step that is good enough; and the slope.

        Routers keep to the experts they chose: another one within the step would spoil the difference.
        """
        state, held = self.random.map(lambda t, _: t), HeldChoices()  # of a hybrid the state alone
        leaf = state.requires_grad()
        weights = torch.randn(self.from_random.shape, generator=self.generator).to(self.from_random)
        with held:
            loss = (self.run(self.tokens, leaf)[0] * weights).sum()
        leaves = [t for named in leaf.tensors.values() for t in named.values()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        direction = [torch.randn(t.shape, generator=self.generator).to(t) * _spread(t) for t in leaves]
        slope = float(sum((g * d).double().sum() for g, d in zip(grads, direction)))
        sizes = [float(torch.cat([x.double().flatten() for x in xs]).norm()) for xs in (grads, direction)]
        usual = sizes[0] * sizes[1] / sum(d.numel() for d in direction) ** 0.5
        for step in (
            1e-2,
            1e-3,
            3e-4,
        ):  # of the state's size; below that the library's float32 norms drown the difference
            with torch.no_grad():
                ends = []
                for sign in (1, -1):
                    moved = iter(direction)
                    shifted = state.map(functools.partial(_moved, moved, sign * step))
                    with held:
                        logits, _ = self.run(self.tokens, shifted)
                    ends.append(float((logits * weights).double().sum()))
            numeric = (ends[0] - ends[1]) / (2 * step)
            error = abs(slope - numeric) / max(abs(numeric), usual, 1e-30)
            if error <= tolerance:
                break
        return error, slope

    def gradient_through_state(self) -> Check:
        cut = 77

        def grads(two: bool) -> list[Tensor]:
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            if two:
                first, state = self.run(self.tokens[:, :cut])
                second, _ = self.run(self.tokens[:, cut:], state)
                logits = torch.cat([first, second], 1)
            else:
                logits, _ = self.run(self.tokens)
            loss = logits[:, cut:].double().square().mean()
            return list(torch.autograd.grad(loss, parameters, allow_unused=True))

        with mode(self.model, training=False):
            error = _gradient_error(grads(True), grads(False))
        tolerance = max(50 * self.tolerance, 1e-6)  # in float64 they pass the libraries' norms, which work in float32
        return Check(
            "gradient-through-state",
            error <= tolerance,
            error,
            tolerance,
            "If gradients do not flow out of a final state, two segments train differently from one.",
        )

    def train_mode(self) -> Check:
        with mode(self.model, training=True), no_dropout(self.model), torch.no_grad():
            logits, final = self.run(self.tokens, self.random)
        error = max(_error(logits, self.from_random), _state_error(final, self.final_from_random))
        return self._check(
            "train-mode",
            error,
            "If training mode drops or changes the state, post-training starts from zero without a word.",
        )

    def gradient_checkpointing(self) -> Check:
        state = self.random.map(lambda t, _: t)  # of a hybrid the state alone: training carries no cache

        def grads() -> tuple[list[Tensor], RecurrentState]:
            output = self.model(input_ids=self.tokens, labels=self.tokens, initial_state=state)
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            return list(torch.autograd.grad(output.loss, parameters, allow_unused=True)), output.final_state

        with mode(self.model, training=True), no_dropout(self.model):
            plain, final = grads()
            with checkpointing(self.library):
                recomputed, recomputed_final = grads()
        error = max(_gradient_error(recomputed, plain), _state_error(recomputed_final, final))
        return self._check(
            "gradient-checkpointing",
            error,
            "If gradient checkpointing drops the state, large models are post-trained from zero.",
        )

    def half_precision(self, exact: _Probe) -> Check:
        """Segments of seven from a random state, against one run of the float32 copy: the median over positions.

        Rounding makes it up to 2 % in tiny models, a lost state a quarter and more; other experts move only the mean.
        """
        tokens, tolerance = self.tokens[:, :77], 0.1
        start = exact.random.map(lambda t, _: t)
        beginning = sequence_start(self.model, start.rows, self.device)
        carried = SequenceState(start, beginning.attention) if isinstance(beginning, SequenceState) else start
        with torch.no_grad():
            found, _ = self.in_segments(lambda i: 7, carried, tokens.shape[1])
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

    def keywords(self) -> Check:
        accepted = 0
        for wrong in ("no_such_argument", "cach", "initial_states"):
            try:
                with torch.no_grad():
                    self.model(input_ids=self.tokens[:, :2], **{wrong: self.random})
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

    def _check(self, name: str, error: float, meaning: str) -> Check:
        return Check(name, error <= self.tolerance, error, self.tolerance, meaning)


def _padded(x: Tensor, left: int, right: int) -> Tensor:
    """x [B, T, ...] with zeros in front of and behind its positions."""
    parts = [x.new_zeros(x.shape[0], left, *x.shape[2:]), x, x.new_zeros(x.shape[0], right, *x.shape[2:])]
    return torch.cat(parts, 1)


def _moved(directions: Iterator[Tensor], step: float, t: Tensor, _: Any) -> Tensor:
    return t + step * next(directions)


def _spread(t: Tensor) -> float:
    """The standard deviation of the entries; 0 where there are none."""
    return float(t.detach().double().std()) if t.numel() else 0.0


def _error(found: Tensor, expected: Tensor) -> float:
    """The larger of norm(a - r) / norm(r) and max|a - r| / max|r|; infinite if anything is not finite.

    0 where there are no entries: a convolution over one position has a window of none.
    """
    a, r = found.detach().double(), expected.detach().double()
    if a.numel() == r.numel() == 0:
        return 0.0
    if not torch.isfinite(a).all():
        return float("inf")
    d = a - r
    return float(max(d.norm() / r.norm().clamp_min(1e-30), d.abs().max() / r.abs().max().clamp_min(1e-30)))


def _state_error(found: RecurrentState, expected: RecurrentState) -> float:
    return max(
        _error(t, expected.tensors[layer][name]) for layer, named in found.tensors.items() for name, t in named.items()
    )


def _all_tensors(state: RecurrentState) -> list[Tensor]:
    """Every tensor of a state, a carried attention cache included."""
    tensors = [t for named in state.tensors.values() for t in named.values()]
    if isinstance(state, SequenceState):
        tensors += [state.attention.lengths, *(t for pair in state.attention.layers.values() for t in pair)]
    return tensors


def _gradient_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Error of all gradients together, as one vector; infinite if one is missing."""
    if any((a is None) != (b is None) for a, b in zip(found, expected)):
        return float("inf")
    flat = [torch.cat([g.double().flatten() for g in grads if g is not None]) for grads in (found, expected)]
    return _error(flat[0], flat[1])
