"""Text or arrays in, training windows and held-out sequences out."""

from lengthen.data.corpus import Corpus
from lengthen.data.documents import Document
from lengthen.data.evaluation import evaluation_layout, evaluation_sequences
from lengthen.data.lanes import LaneWindows
from lengthen.data.loading import load_corpus
from lengthen.data.plays import bundled_plays
from lengthen.data.sequences import HeldOutSequences
from lengthen.data.shuffled import ShuffledWindows
from lengthen.data.windows import Batch, Windows

__all__ = [
    "Batch",
    "Corpus",
    "Document",
    "HeldOutSequences",
    "LaneWindows",
    "ShuffledWindows",
    "Windows",
    "bundled_plays",
    "evaluation_layout",
    "evaluation_sequences",
    "load_corpus",
]
