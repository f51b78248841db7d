"""Samples of a task to train on: prompt and answer in a window each, the loss on the answer alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from lengthen.data import Corpus
from lengthen.data.arrays import IGNORED, array_corpus
from lengthen.errors import InputError
from lengthen.tasks.catalogue import task_named
from lengthen.tasks.codec import Codec
from lengthen.tasks.prompts import Wanted


def training_samples(
    task: str, *, train_context: int, count: int, tokenizer: Any = "bytes", seed: int = 0, haystack: str | None = None
) -> Corpus:
    """`count` samples of a task by name, each a document of train_context tokens, for post_train and pretrain.

    A sample is a prompt of the training split with its first question, and the answer; its targets are the answer's
    tokens, -100 elsewhere. Facts lie at random depths. What is asked is never asked in a test, whatever the seeds. Raises
    InputError for an unknown task, one that comes as a file, or a training context that is too short.
    """
    made, codec = task_named(task), Codec(tokenizer)
    if made.count is not None:
        raise InputError(
            f"{task} is there to be evaluated, not to be trained on; name a task that prompts are made for."
        )
    if count < 1:
        raise InputError(f"The number of samples is {count}; give at least 1.")
    inputs, targets = [], []
    for index in range(count):
        depth = random.Random(f"{seed}/depth/{index}").random()
        wanted = Wanted(train_context + 1, codec, seed, index, "train", (depth,), haystack, answered=True)
        prompt = next(iter(made.group(wanted).values()))[0]
        whole = np.concatenate([prompt.ids, prompt.answer]).astype(np.int32)
        target = np.full(train_context, IGNORED, np.int32)
        target[-len(prompt.answer) :] = prompt.answer
        inputs.append(whole[:-1])
        targets.append(target)
    return array_corpus(inputs, targets, codec.vocabulary_size, None)


def unfit(task: str, intervention: str) -> str | None:
    """Why an intervention, by its name, does not suit samples of a task, in a sentence; None where it does.

    Every sample stands for itself: what another one left in the state is no state that a real prompt begins in, and it
    holds another answer. Fitted noise has the spread of such states without their content (Buitrago Ruiz and Gu, 2025).
    """
    name = intervention.partition(":")[0]
    if name == "state-passing":
        return (
            f"State passing starts a sample of {task} from what another one left, its answer included; fitted-noise suits "
            "samples that stand for themselves."
        )
    if name == "tbptt":
        return f"No sample of {task} continues another, so that TBPTT is the same as zero here; fitted-noise is the usual choice."
    return None
