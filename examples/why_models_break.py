"""Why recurrent models break past their training length, in a toy that takes seconds: docs/why-models-break.md tells it.

python examples/why_models_break.py

The model's state is a row of leaky sums of its input, two fast and the others slow; only its readout is trained, by least
squares, on windows of T = 64 positions. What it has to tell hangs on the last thirty inputs or so: the slow units matter
for nothing, and a good readout ignores them. Errors are shares of the target's variance: 0 is perfect, 1 is a constant.
"""

import numpy as np

T, LENGTH, WINDOWS, SEQUENCES = 64, 64 * 64, 512, 64
FAST = np.array([1 / 2, 1 / 16])  # how much of a unit's state leaks away at each position
STARTS = [32 << k for k in range(7)]  # ranges of positions to judge: [32, 64), [64, 128), ... up to 64 T


def slow(units: int) -> np.ndarray:
    """Leaks of units that forget over 64 to 2,000 positions."""
    return np.geomspace(1 / 64, 1 / 2000, units)


class Toy:
    """A state of two fast and some slow leaky sums, and inputs to run it on."""

    def __init__(self, units: int, seed: int = 0) -> None:
        self.leak = np.concatenate([FAST, slow(units)])
        self.random = np.random.default_rng(seed)

    def run(self, rows: int, length: int, initial: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """States [rows, length, units] from an initial state (zero unless given), and the fast target [rows, length]."""
        x = self.random.standard_normal((rows, length))
        state = np.zeros((rows, len(self.leak))) if initial is None else initial
        recent, states, recents = np.zeros((rows, 2)), [], []
        for t in range(length):
            state = (1 - self.leak) * state + self.leak**0.5 * x[:, t, None]
            recent = (1 - FAST) * recent + FAST**0.5 * x[:, t, None]  # what the target hangs on starts from zero
            states.append(state)
            recents.append(recent)
        recent = np.stack(recents, 1)
        return np.stack(states, 1), np.tanh(2 * recent[..., 0]) * np.cos(2 * recent[..., 1])

    def passed(self, hops: int) -> np.ndarray:
        """Initial states: final states of windows that began from final states, so many windows deep."""
        state = np.zeros((WINDOWS, len(self.leak)))
        for _ in range(hops):
            state = self.run(WINDOWS, T, state)[0][:, -1]
        return state


def features(states: np.ndarray) -> np.ndarray:
    """A layer of random rectified units on the states, and the states themselves."""
    random, units = np.random.default_rng(1), states.shape[-1]
    weights, biases = random.standard_normal((units, 200)) / units**0.5, random.uniform(-2, 2, 200)
    return np.concatenate([np.maximum(states @ weights + biases, 0), states, np.ones_like(states[..., :1])], -1)


def readout(states: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The weights of least squares, with a little ridge."""
    made, told = features(states).reshape(-1, 201 + states.shape[-1]), target.reshape(-1)
    return np.linalg.solve(made.T @ made + 1e-5 * len(made) * np.eye(made.shape[1]), made.T @ told)


def errors(weights: np.ndarray, states: np.ndarray, target: np.ndarray) -> list[float]:
    """The share of the target's variance that is missed, in each range of positions."""
    found = []
    for start in STARTS:
        at = np.linspace(start, 2 * start, 32, endpoint=False).astype(int)
        found.append(float(np.mean((features(states[:, at]) @ weights - target[:, at]) ** 2) / target.var()))
    return found


def coverage(units: int = 8) -> tuple[dict[str, float], list[float], dict[str, list[float]]]:
    """How large the slowest unit gets in training, by what windows start from; when reading on; and the errors."""
    toy = Toy(units)
    states, target = toy.run(SEQUENCES, LENGTH)
    seen, missed = {}, {}
    for name, hops in {"zero": 0, "one hop": 1, "four hops": 4, "passed on": 64}.items():
        shown, told = toy.run(WINDOWS, T, toy.passed(hops))
        seen[name] = float(np.quantile(np.abs(shown[..., -1]), 0.99))
        missed[name] = errors(readout(shown, told), states, target)
    reading = [float(np.quantile(np.abs(states[:, s : 2 * s, -1]), 0.99)) for s in STARTS]
    return seen, reading, missed


def noise() -> dict[int, dict[str, float]]:
    """The error at [32 T, 64 T) by the number of slow units: states passed on, or noise as large, unit by unit."""
    found = {}
    for units in (1, 2, 4, 8, 16, 32):
        toy = Toy(units)
        states, target = toy.run(SEQUENCES, LENGTH)
        passed = toy.passed(64)
        starts = {"passed on": passed, "independent noise": toy.random.standard_normal(passed.shape) * passed.std(0)}
        found[units] = {n: errors(readout(*toy.run(WINDOWS, T, s)), states, target)[-1] for n, s in starts.items()}
    return found


def memory() -> dict[str, list[float]]:
    """Errors where half of what is asked lies far back, in the slowest unit: of a state that forgets, and one that keeps."""
    toy = Toy(8)
    states, recent = toy.run(SEQUENCES, LENGTH, toy.passed(64)[:SEQUENCES])
    shown, shown_recent = toy.run(WINDOWS, T, toy.passed(64))

    def asked(states: np.ndarray, recent: np.ndarray) -> np.ndarray:
        return recent + 0.7 * np.sin(3 * states[..., -1])

    found = {}
    for name, units in {"forgets within T": 2, "remembers": 10}.items():
        weights = readout(shown[..., :units], asked(shown, shown_recent))
        found[name] = errors(weights, states[..., :units], asked(states, recent))
    return found


def main() -> None:
    seen, reading, missed = coverage()
    print("slowest unit, largest of 99 %:", {k: round(v, 2) for k, v in seen.items()}, np.round(reading, 2).tolist())
    by_units, by_memory = noise(), memory()
    for name, found in {**missed, **by_memory}.items():
        print(f"missed by position, {name}:", " ".join(f"{e:.3f}" for e in found))
    for units, found in by_units.items():
        print(f"missed at 64 T with {units} slow units:", ", ".join(f"{n} {e:.3f}" for n, e in found.items()))


if __name__ == "__main__":
    main()
