"""The bundled text: Shakespeare's plays, a part of them held out by name."""

from __future__ import annotations

import json
import lzma
from importlib.resources import files

from lengthen.data.documents import Document

HELD_OUT = (
    "As You Like It",
    "Hamlet",
    "Henry V",
    "King Lear",
    "Measure for Measure",
    "Richard III",
    "The Winter's Tale",
    "Troilus and Cressida",
)


def bundled_plays() -> tuple[list[Document], list[Document]]:
    """The 37 plays as (training, held_out): 29 and 8 whole plays, each list sorted by name.

    Public domain; assets/README.md says where the texts come from. About 3.7 and 1.2 million characters, all
    ASCII, so that characters, bytes and the tokens of the "bytes" tokenizer are the same.
    """
    packed = (files("lengthen") / "assets" / "plays.jsonl.xz").read_bytes()
    plays = [Document(**json.loads(line)) for line in lzma.decompress(packed).splitlines()]
    training = [play for play in plays if play.name not in HELD_OUT]
    held_out = [play for play in plays if play.name in HELD_OUT]
    return training, held_out
