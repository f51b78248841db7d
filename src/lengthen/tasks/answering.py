"""A model's answers to prompts: what it would put at each token of a known answer, or what it says greedily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lengthen.models import library_model
from lengthen.models.head import head_logits
from lengthen.models.language_models import run_base
from lengthen.state import RecurrentState
from lengthen.streaming import evaluating, generate
from lengthen.tasks.chunks import states_to_answer_from
from lengthen.tasks.codec import Codec, Ids
from lengthen.tasks.prompts import Prompt
from lengthen.tasks.scoring import Scoring, strict, substring
from lengthen.tasks.shared_prefixes import Cost

LOGITS_TOGETHER = 256
"""Positions whose logits are computed at once."""
ROOM = 16
"""Tokens that a model may say beyond the answer's own, where nothing else is asked for."""


def scores(
    model: nn.Module,
    prompts: Sequence[Prompt],
    codec: Codec,
    scoring: Scoring,
    *,
    max_new_tokens: int | None = None,
    cost: Cost | None = None,
) -> tuple[list[float], list[float] | None]:
    """Each prompt's score, and where the rule is exact the share of the answer's tokens that are right.

    For exact scoring the answer itself is run through the model: its greedy continuation is the answer if and only if at
    each of the answer's tokens, those before given, the largest logit is the next one's. Else max_new_tokens are generated
    greedily (the answer's tokens and 16 more unless said).
    """
    found, shares = [0.0] * len(prompts), [0.0] * len(prompts)
    for members, state in states_to_answer_from(model, prompts, cost):
        for rows in alike([len(prompts[m].answer) for m in members]):
            asked = [prompts[members[r]] for r in rows]
            last = torch.from_numpy(np.stack([p.ids[-1:] for p in asked])).to(state.device)
            if scoring == "exact":
                right, _ = known_answers(model, last, np.stack([p.answer for p in asked]), state.index(rows))
                for r, row in zip(rows, right):
                    found[members[r]], shares[members[r]] = float(row.all()), float(row.mean())
                continue
            count = max_new_tokens or len(asked[0].answer) + ROOM
            said, _ = generate(model, last, count, initial_state=state.index(rows))
            for r, prompt, ids in zip(rows, asked, said.cpu().numpy()):
                found[members[r]] = judged(codec.decode(before_end(ids, codec)), prompt, scoring)
    return found, shares if scoring == "exact" else None


def judged(output: str, prompt: Prompt, scoring: Scoring) -> float:
    """The score of an answer in text."""
    if scoring == "strict":
        return strict(output, prompt.targets, prompt.candidates, prompt.question)
    return substring(output, prompt.targets)


def alike(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Which have the same size, for each size."""
    for size in sorted(set(sizes)):
        yield [i for i, s in enumerate(sizes) if s == size]


def before_end(ids: Ids, codec: Codec) -> Ids:
    """The ids before an end of text."""
    ends = [] if codec.end is None else np.flatnonzero(ids == codec.end).tolist()
    return ids[: ends[0]] if ends else ids


def known_answers(
    model: nn.Module, last: torch.Tensor, answers: Ids, state: RecurrentState
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """At each token of answers [n, A] that follow on `last` [n, 1]: whether the largest logit is that token's, and its
    log-probability in nats, both [n, A]. Logits are never held but for a few positions."""
    wanted = torch.from_numpy(answers).to(last.device)
    inputs = torch.cat([last, wanted[:, :-1]], dim=1)
    step = max(1, LOGITS_TOGETHER // len(answers))
    # Whole from the beginning: pieces kept one by one would keep the heap from shrinking between calls.
    right, chances = torch.empty_like(wanted, dtype=torch.bool), torch.empty_like(wanted, dtype=torch.float64)
    with evaluating(model):
        for low in range(0, inputs.shape[1], step):
            base, state = run_base(model, {"input_ids": inputs[:, low : low + step]}, state)
            logits, there = head_logits(library_model(model), base[0]), wanted[:, low : low + step]
            right[:, low : low + step] = logits.argmax(-1) == there
            chances[:, low : low + step] = logits.double().log_softmax(-1).gather(-1, there[..., None])[..., 0]
    return right.cpu().numpy(), chances.cpu().numpy()
