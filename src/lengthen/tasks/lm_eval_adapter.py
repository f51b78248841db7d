"""A wrapped model as lm-eval's harness takes models: prompts of any length, run segment by segment with the state carried.

Nothing is truncated or padded, and logits are computed where something is scored alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import LM
from torch import nn

from lengthen.errors import InputError
from lengthen.models import require_wrapped
from lengthen.state import RecurrentState
from lengthen.streaming import generate, stream
from lengthen.tasks.answering import alike, before_end, known_answers
from lengthen.tasks.codec import Codec, Ids
from lengthen.tasks.shared_prefixes import Cost, final_states, rows_together

STEP = 16
"""Tokens generated between two looks at whether an answer has ended."""
MOST_TOKENS = 256
"""Tokens that a task may have generated where it does not say (lm-eval's own default)."""


class StateCarryingLM(LM):
    """lm_eval.api.model.LM over a wrapped language model; give it to lm_eval.simple_evaluate(model=...).

    An empty context is the tokenizer's BOS or EOS, or a line break where it has neither (as "bytes"). cost: the tokens of
    contexts, and how many of them were processed; contexts: how many there were. Raises InputError for a request to sample: answers are greedy.
    """

    def __init__(self, model: nn.Module, codec: Codec) -> None:
        super().__init__()
        require_wrapped(model)
        self.model, self.codec = model, codec
        self.cost, self.contexts = Cost(), 0
        self._device = next(model.parameters()).device
        end = [] if codec.end is None else [codec.end]
        self._nothing = np.array([*codec.before, *end, *codec.encode("\n")], np.int64)[:1]

    @property
    def tokenizer_name(self) -> str:
        """What decides the ids."""
        return self.codec.identity

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability of the continuation after the context in nats, whether it is the greedy one) of each request."""
        pairs = [self._pair(*request.args) for request in requests]
        found: dict[int, tuple[float, bool]] = {}
        for members, last, state in self._contexts([context for context, _ in pairs]):
            for rows in alike([len(pairs[m][1]) for m in members]):
                answers = np.stack([pairs[members[r]][1] for r in rows])
                if answers.shape[1] == 0:
                    found |= {members[r]: (0.0, True) for r in rows}
                    continue
                right, chances = known_answers(self.model, last[rows], answers, state.index(rows))
                found |= {
                    members[r]: (float(c.sum()), bool(greedy.all())) for r, greedy, c in zip(rows, right, chances)
                }
        return [found[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text in nats, in one pass: the state rolls on from its first token to its last."""
        found = []
        for request in requests:
            ids = np.concatenate([self._nothing, self.codec.encode(request.args[0])])
            parts = stream(self.model, torch.from_numpy(ids)[None]) if len(ids) > 1 else []
            self.contexts += 1
            self.cost.tokens += len(ids) - 1
            self.cost.processed += len(ids) - 1
            found.append(-sum(float(part.losses.double().sum()) for part in parts))
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The greedy continuation of each context, up to a string of `until`, the end of text or max_gen_toks tokens."""
        found: dict[int, str] = {}
        settings = [_generation(request.args[1]) for request in requests]
        for members, last, state in self._contexts([self._context(request.args[0]) for request in requests]):
            for until, most in dict.fromkeys(settings[m] for m in members):
                rows = [i for i, m in enumerate(members) if settings[m] == (until, most)]
                said = self._continue(last[rows], state.index(rows), until, most)
                found |= dict(zip((members[r] for r in rows), said))
        return [found[i] for i in range(len(requests))]

    def _continue(self, last: torch.Tensor, state: RecurrentState, until: tuple[str, ...], most: int) -> list[str]:
        """What follows on rows of a last token [n, 1] and the state before it."""
        said: list[Ids] = [np.zeros(0, np.int64) for _ in last]
        running = list(range(len(last)))
        while running:
            count = min(STEP, most - len(said[running[0]]))
            made, state = generate(self.model, last, count, initial_state=state)
            for row, ids in zip(running, made.cpu().numpy()):
                said[row] = np.concatenate([said[row], ids])
            going = [i for i, row in enumerate(running) if not self._ended(said[row], until, most)]
            running, last, state = [running[i] for i in going], made[going, -1:], state.index(going)
        return [_cut(self.codec.decode(before_end(ids, self.codec)), until) for ids in said]

    def _ended(self, ids: Ids, until: tuple[str, ...], most: int) -> bool:
        kept = before_end(ids, self.codec)
        return len(ids) >= most or len(kept) < len(ids) or any(stop in self.codec.decode(kept) for stop in until)

    def _contexts(self, contexts: Sequence[Ids]) -> Iterator[tuple[list[int], torch.Tensor, RecurrentState]]:
        """The last token [n, 1] of contexts and the state before it, what contexts share run once: (which, last, state)."""
        self.contexts += len(contexts)
        first = 0
        while first < len(contexts):
            count = rows_together(self.model, max(map(len, contexts[first : first + 64])))
            some = contexts[first : first + count]
            for members, state in final_states(self.model, [ids[:-1] for ids in some], self.cost):
                last = torch.from_numpy(np.stack([some[m][-1:] for m in members])).to(self._device)
                yield [first + m for m in members], last, state
            first += count

    def _context(self, text: str) -> Ids:
        ids = np.concatenate([self.codec.before, self.codec.encode(text)])
        return ids if len(ids) else self._nothing

    def _pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Ids of both as the harness splits them: the whole text's, parted after as many as the context has by itself.

        Spaces at the end of the context belong to the continuation.
        """
        if not context:
            return self._nothing, self.codec.encode(continuation)
        bare = context.rstrip()
        whole, before = self.codec.encode(context + continuation), len(self.codec.encode(bare))
        if len(self.codec.before) + before == 0:
            return self._nothing, whole
        return np.concatenate([self.codec.before, whole[:before]]), whole[before:]


def _generation(settings: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Where a task's generation ends: (strings, tokens)."""
    if settings.get("do_sample") and settings.get("temperature", 1.0) > 0:
        raise InputError(
            "The task asks for answers drawn at random, but here they are greedy; set do_sample to false in its gen_kwargs."
        )
    until = settings.get("until") or ()
    strings = (until,) if isinstance(until, str) else tuple(until)
    return tuple(filter(None, strings)), int(settings.get("max_gen_toks", MOST_TOKENS))


def _cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of some strings."""
    return text[: min((text.index(stop) for stop in until if stop in text), default=len(text))]
