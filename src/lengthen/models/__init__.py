"""How known layer families use a kernel, and how a user's model gets its state in and out."""

from lengthen.models.attention import SequenceState
from lengthen.models.binding import (
    family_name,
    is_language_model,
    library_model,
    sequence_start,
    vocabulary_size,
    weights_fingerprint,
    zero_state,
)
from lengthen.models.converting import convert
from lengthen.models.families import register_family
from lengthen.models.family import Family, LayerKind
from lengthen.models.library_path import check_library_path, compatibility_page, survey
from lengthen.models.loading import load, load_library_model, tokenizer_for
from lengthen.models.parity import check
from lengthen.models.plain_modules import ModuleOutput
from lengthen.models.stateful_layer import StatefulLayer
from lengthen.models.wrapping import is_wrapped, require_wrapped, unwrap, wrap

__all__ = [
    "Family",
    "LayerKind",
    "ModuleOutput",
    "SequenceState",
    "StatefulLayer",
    "check",
    "check_library_path",
    "compatibility_page",
    "convert",
    "family_name",
    "is_language_model",
    "is_wrapped",
    "library_model",
    "load",
    "load_library_model",
    "register_family",
    "require_wrapped",
    "sequence_start",
    "survey",
    "tokenizer_for",
    "unwrap",
    "vocabulary_size",
    "weights_fingerprint",
    "wrap",
    "zero_state",
]
