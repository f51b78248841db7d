"""The state that a prompt is answered from: after the whole prompt, or after the chunk of it that leaves least doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models import library_model
from lengthen.models.head import head_logits
from lengthen.models.hooked_layers import chunking_hook
from lengthen.models.hooks import Hook
from lengthen.models.language_models import run_base
from lengthen.state import RecurrentState
from lengthen.streaming import evaluating
from lengthen.tasks.codec import Ids
from lengthen.tasks.prompts import Prompt
from lengthen.tasks.shared_prefixes import Cost, final_states


def states_to_answer_from(
    model: nn.Module, prompts: Sequence[Prompt], cost: Cost | None = None
) -> Iterator[tuple[list[int], RecurrentState]]:
    """The state before each prompt's last token, as final_states has it.

    Under a hook that answers from chunks it is that of the chunk after which the next token's entropy is least; its last
    token is the prompt's own. Raises InputError then for a prompt without a question apart from its text.
    """
    cost = cost if cost is not None else Cost()
    hook = chunking_hook(model)
    if hook is None:
        yield from final_states(model, [p.ids[:-1] for p in prompts], cost)
        return
    found = [chunks_of(prompt, hook) for prompt in prompts]
    rows = [chunk for chunks in found for chunk in chunks]
    owners = [i for i, chunks in enumerate(found) for _ in chunks]
    here = Cost()
    best: dict[int, tuple[float, RecurrentState]] = {}
    for members, state in final_states(model, [row[:-1] for row in rows], here, chunks=True):
        last = torch.from_numpy(np.stack([rows[m][-1:] for m in members])).to(state.device)
        for i, (member, entropy) in enumerate(zip(members, _entropies(model, last, state).tolist())):
            owner = owners[member]
            if owner not in best or entropy < best[owner][0]:
                best[owner] = entropy, state.index([i])
    cost.tokens += sum(len(prompt.ids) - 1 for prompt in prompts)
    cost.processed += here.processed + len(rows)
    for i, (_, state) in sorted(best.items()):
        yield [i], state


def chunks_of(prompt: Prompt, hook: Hook) -> list[Ids]:
    """The rows of at most hook.chunk ids that a prompt becomes: introduction, a part of its text, question.

    Raises InputError where there is no question, or no room for text.
    """
    assert hook.chunk is not None
    if prompt.asked == 0:
        raise InputError(
            f"{hook.name} needs a question apart from the text that it is about, which this task's prompts have not; "
            "choose another task."
        )
    end = len(prompt.ids) - prompt.asked
    room = hook.chunk - prompt.introduced - prompt.asked
    if room < 1:
        raise InputError(
            f"The chunk of {hook.name} is {hook.chunk} tokens, but introduction and question alone have "
            f"{prompt.introduced + prompt.asked}; give more."
        )
    introduction, question = prompt.ids[: prompt.introduced], prompt.ids[end:]
    starts = range(prompt.introduced, end, room) or [end]
    return [np.concatenate([introduction, prompt.ids[low : min(low + room, end)], question]) for low in starts]


def _entropies(model: nn.Module, last: Tensor, state: RecurrentState) -> Tensor:
    """In nats, [n]: of what follows on `last` [n, 1]; infinite where that is not a number."""
    with evaluating(model):
        base, _ = run_base(model, {"input_ids": last}, state)
        chances = head_logits(library_model(model), base[0])[:, -1].double().softmax(-1)
    return torch.special.entr(chances).sum(-1).nan_to_num(nan=math.inf)
