"""Which form of a recurrence runs: the compiled kernel, a CUDA library's, or the portable one."""

import contextlib
import enum
import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor


class Form(enum.Enum):
    """The forms a recurrence may run in."""

    COMPILED = "compiled"
    CUDA_LIBRARY = "cuda library"
    PORTABLE = "portable"


def _import_compiled() -> ModuleType | None:
    try:
        return importlib.import_module("lengthen.kernels._compiled")
    except ModuleNotFoundError:
        return None


compiled = _import_compiled()
"""The extension, or None where it was not built."""

_forced: Form | None = None


def choose_form(*tensors: Tensor | None, compiled_function: str, cuda_library: bool = False) -> Form:
    """The form for these tensors: compiled on a CPU in fp32 or bf16, a library's on CUDA, otherwise portable.

    Args:
        tensors: the operator's arguments; None for one left out.
        compiled_function: the extension's function for this operator.
        cuda_library: whether a library with a kernel for exactly these arguments was found.
    """
    if _forced is Form.PORTABLE:
        return Form.PORTABLE
    given = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.is_cuda for tensor in given):
        return Form.CUDA_LIBRARY if cuda_library else Form.PORTABLE
    if any(not tensor.is_cpu or tensor.dtype not in _COMPILED_DTYPES for tensor in given):
        return Form.PORTABLE
    if compiled is None:
        _notice()
        return Form.PORTABLE
    return Form.COMPILED if hasattr(compiled, compiled_function) else Form.PORTABLE


@contextlib.contextmanager
def portable_only() -> Iterator[None]:
    """Inside, every recurrence runs in its portable form."""
    global _forced
    before, _forced = _forced, Form.PORTABLE
    try:
        yield
    finally:
        _forced = before


_COMPILED_DTYPES = (torch.float32, torch.bfloat16)


def _notice() -> None:
    global _noticed
    if not _noticed:
        _noticed = True
        warnings.warn(
            "lengthen was installed without its compiled kernels, so its recurrences run in PyTorch, several times "
            "slower: reinstall it where a C++17 compiler is on the PATH.",
            stacklevel=2,
        )


_noticed = False
