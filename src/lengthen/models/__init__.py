"""How known layer families use a kernel, and how a user's model gets its state in and out."""

from lengthen.models.attention import SequenceState
from lengthen.models.converting import convert
from lengthen.models.library_path import check_library_path, compatibility_page, survey
from lengthen.models.loading import load, load_library_model, tokenizer_for
from lengthen.models.parity import check
from lengthen.models.wrapping import (
    family_name,
    is_wrapped,
    library_model,
    require_wrapped,
    sequence_start,
    unwrap,
    weights_fingerprint,
    wrap,
    zero_state,
)

__all__ = [
    "SequenceState",
    "check",
    "check_library_path",
    "compatibility_page",
    "convert",
    "family_name",
    "is_wrapped",
    "library_model",
    "load",
    "load_library_model",
    "require_wrapped",
    "sequence_start",
    "survey",
    "tokenizer_for",
    "unwrap",
    "weights_fingerprint",
    "wrap",
    "zero_state",
]
