"""The bundled plays: all there, whole, and with nothing of a publisher in them."""

import re

from lengthen.data import bundled_plays
from lengthen.data.plays import HELD_OUT


def test_plays_are_37_whole_texts_split_by_name() -> None:
    training, held_out = bundled_plays()
    assert [play.name for play in held_out] == sorted(HELD_OUT)
    names = [play.name for play in training + held_out]
    assert len(names) == len(set(names)) == 37
    for play in training + held_out:
        assert play.text.isascii() and play.text == play.text.strip("\n") + "\n"
        acts = re.findall(r"^ *(?:ACT|Act|Actus)\b", play.text, flags=re.MULTILINE)
        assert len(acts) >= 5, f"{play.name} lacks acts"
        assert re.search(r"exeunt|exit|finis|the end|epilogue|\.\n$", play.text[-200:], flags=re.IGNORECASE)


def test_plays_hold_nothing_of_a_publisher() -> None:
    training, held_out = bundled_plays()
    strange = re.compile(r"gutenberg|etext|e-text|ebook|copyright|https?:|www\.|@|\*\*\*|open knowledge", re.IGNORECASE)
    # "pretext" is Shakespeare's.
    assert [m.group() for p in training + held_out for m in strange.finditer(p.text.replace("pretext", ""))] == []


def test_held_out_plays_have_room_for_sixteen_long_sequences() -> None:
    _, held_out = bundled_plays()
    assert sum(len(play.text) for play in held_out) > 1_200_000
    assert min(len(play.text) for play in held_out) > 2 * 32 * 1024
