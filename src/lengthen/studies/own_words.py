"""A small tokenizer trained on a task's own sentences, so that a whole prompt fits into a short training context."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lengthen.tasks.catalogue import task_named
from lengthen.tasks.codec import Codec
from lengthen.tasks.prompts import Wanted

PROMPTS, BYTES = 200, 1024
"""Prompts of the training split that are read, and how long they are."""
VOCABULARY = 512
"""At most."""
START = "<s>"


@functools.cache
def own_tokenizer(task: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE, a token for each digit and for nearly each word of the task in noise.

    It puts <s> before a prompt: where a state was passed, that is what tells whose prompt begins.
    """
    tokenizer = Tokenizer(models.BPE())
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(task), trainer)
    starts = [(START, tokenizer.token_to_id(START))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=starts)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START)


def _texts(task: str) -> Iterator[str]:
    codec = Codec("bytes")
    for index in range(PROMPTS):
        wanted = Wanted(BYTES, codec, index=index, split="train", haystack="noise", answered=True)
        prompt = next(iter(task_named(task).group(wanted).values()))[0]
        yield codec.decode(prompt.ids) + codec.decode(prompt.answer)
