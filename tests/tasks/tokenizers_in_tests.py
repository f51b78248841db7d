"""Tokenizers trained in the test: a byte-level BPE, a unigram and a WordPiece, small, of transformers' class."""

from __future__ import annotations

import string

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lengthen.data import bundled_plays

SIZE = 500
EVERY = string.ascii_letters + string.digits + ".|?!,:'-\n "


def trained(kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a kind: bpe (puts <s> before a text), unigram, wordpiece (in lower case)."""
    specials = ["<unk>", "<s>", "</s>"]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=SIZE, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=SIZE, special_tokens=specials, unk_token="<unk>", initial_alphabet=list(EVERY)
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=specials, initial_alphabet=list(EVERY))
    text = bundled_plays()[0][0].text[:60_000]
    tokenizer.train_from_iterator([text, EVERY, *(f"{i:05d} " for i in range(0, 100_000, 997))], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>" if kind == "bpe" else None, eos_token="</s>"
    )
    if kind == "bpe":
        from tokenizers.processors import TemplateProcessing

        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return made
