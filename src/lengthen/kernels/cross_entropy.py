"""Cross entropy of a linear head without ever holding the whole logits.

Dims: N tokens, D channels, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lengthen.kernels.recurrence import compute_dtype

# Elements of the logits held at a time: 16 MB in fp32.
LOGITS_ELEMENTS = 1 << 22


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
) -> Tensor:
    """Cross entropy of hidden @ weight.T + bias against the targets, some tokens at a time.

    Args:
        hidden: [N, D].
        weight: [V, D].
        targets: int64 [N]; ignore_index marks tokens with loss 0 and no gradient.
        bias: [V].
        ignore_index: the target that is left out.
        reduction: "sum" forms the gradients along with the loss, for training; "none" gives each token's loss [N]
            and forms the logits again in backward, for evaluation.

    Returns:
        The loss in nats, fp32 (float64 for float64 hidden states).

    Raises:
        ValueError: a shape or dtype does not fit, or the reduction is unknown.
    """
    _check(hidden, weight, targets, bias, reduction)
    if reduction == "none":
        return token_losses(hidden, weight, targets, bias, ignore_index)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, weight, bias)):
        return summed_loss_with_gradients(hidden, weight, targets, bias, ignore_index)[0]
    return token_losses(hidden, weight, targets, bias, ignore_index).sum(dtype=torch.float64).to(compute_dtype(hidden))


def linear_cross_entropy_reference(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
) -> Tensor:
    """The definition of `linear_cross_entropy`; same arguments and result."""
    _check(hidden, weight, targets, bias, reduction)
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    logits = logits.to(compute_dtype(hidden))
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, reduction: str) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "linear_cross_entropy needs hidden [N, D] and weight [V, D], "
            f"got {list(hidden.shape)} and {list(weight.shape)}."
        )
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(
            f"linear_cross_entropy needs int64 targets of shape {list(hidden.shape[:1])}, "
            f"got {targets.dtype} {list(targets.shape)}."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear_cross_entropy needs bias of shape {list(weight.shape[:1])}, got {list(bias.shape)}.")
    if reduction not in ("sum", "none"):
        raise ValueError(f'linear_cross_entropy knows the reductions "sum" and "none", got {reduction!r}.')


@torch.library.custom_op("lengthen::summed_loss_with_gradients", mutates_args=())
def summed_loss_with_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss and its gradients by hidden, weight and bias (empty when left out)."""
    return _loss_and_gradients(None, hidden, weight, targets, bias, ignore_index)


@summed_loss_with_gradients.register_fake
def _(hidden, weight, targets, bias, ignore_index):  # type: ignore[no-untyped-def]
    return (
        hidden.new_empty((), dtype=compute_dtype(hidden)),
        hidden.new_empty(hidden.shape),
        weight.new_empty(weight.shape),
        hidden.new_empty(0) if bias is None else bias.new_empty(bias.shape),
    )


def _keep_gradients(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors)
    ctx.gradients = [gradient.detach() for gradient in output[1:]]
    ctx.set_materialize_grads(False)  # zeros for the unused outputs would be as large as these


def _scale_gradients(ctx, gradient, *others):  # type: ignore[no-untyped-def]
    """Scales the gradients where they are, as a copy would double the peak; another backward pass forms them anew."""
    hidden, weight, targets, bias = ctx.saved_tensors
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        gradients = summed_loss_with_gradients(
            hidden.detach(), weight.detach(), targets, None if bias is None else bias.detach(), ctx.ignore_index
        )[1:]
    if any(other is not None for other in others):  # somebody holds them
        gradients = [formed.clone() for formed in gradients]
    d_hidden, d_weight, d_bias = (formed.mul_(gradient.to(formed.dtype)) for formed in gradients)
    return d_hidden, d_weight, None, None if bias is None else d_bias, None


summed_loss_with_gradients.register_autograd(_scale_gradients, setup_context=_keep_gradients)


@torch.library.custom_op("lengthen::token_losses", mutates_args=())
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    """Each token's loss [N], 0 where ignored."""
    losses = hidden.new_empty(targets.shape, dtype=compute_dtype(hidden))
    head = weight.to(hidden.dtype)
    block = _block(hidden, weight)
    for rows in _row_blocks(hidden, weight):
        losses[rows] = _losses(block, hidden[rows], head, targets[rows], bias, ignore_index)[0]
    return losses


@token_losses.register_fake
def _(hidden, weight, targets, bias, ignore_index):  # type: ignore[no-untyped-def]
    return hidden.new_empty(targets.shape, dtype=compute_dtype(hidden))


@torch.library.custom_op("lengthen::token_losses_backward", mutates_args=())
def token_losses_backward(
    gradient: Tensor, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden, weight and bias (empty when left out), from those of each token's loss [N]."""
    return _loss_and_gradients(gradient, hidden, weight, targets, bias, ignore_index)[1:]


@token_losses_backward.register_fake
def _(gradient, hidden, weight, targets, bias, ignore_index):  # type: ignore[no-untyped-def]
    d_bias = hidden.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape), d_bias


def _save_inputs(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, gradient):  # type: ignore[no-untyped-def]
    hidden, weight, targets, bias = ctx.saved_tensors
    d_hidden, d_weight, d_bias = token_losses_backward(gradient, hidden, weight, targets, bias, ctx.ignore_index)
    return d_hidden, d_weight, None, None if bias is None else d_bias, None


token_losses.register_autograd(_differentiate, setup_context=_save_inputs)


def _rows(weight: Tensor) -> int:
    return max(1, LOGITS_ELEMENTS // weight.shape[0])


def _block(hidden: Tensor, weight: Tensor) -> Tensor:
    """Memory for the products of one block, taken once: taken block by block, the heap kept up to four of them."""
    return hidden.new_empty(min(_rows(weight), hidden.shape[0]), weight.shape[0])


def _row_blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = _rows(weight)
    return (slice(first, first + rows) for first in range(0, hidden.shape[0], rows))


def _losses(
    block: Tensor, hidden: Tensor, head: Tensor, targets: Tensor, bias: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses [N], probabilities [N, V] (in `block` unless it is half precision), targets [N, 1] with 0 for ignored ones, ignored [N, 1]."""
    logits = torch.mm(hidden, head.T, out=block[: hidden.shape[0]]).to(compute_dtype(hidden))
    if bias is not None:
        logits += bias
    ignored = (targets == ignore_index).unsqueeze(1)
    places = targets.unsqueeze(1).masked_fill(ignored, 0)
    highest = logits.amax(1, keepdim=True)
    below = highest - logits.gather(1, places)
    # In place, as each step of its own would be as large as the logits.
    weights = logits.sub_(highest).exp_()
    total = weights.sum(1, keepdim=True)
    losses = (total.log() + below).masked_fill_(ignored, 0)
    return losses.squeeze(1), weights.div_(total), places, ignored


def _loss_and_gradients(
    gradient: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    ignore_index: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss, and the gradients of hidden, weight and bias; a gradient of None is 1 for every token."""
    dtype = compute_dtype(hidden)
    total = hidden.new_zeros((), dtype=torch.float64)
    head = weight.to(hidden.dtype)
    d_hidden = hidden.new_empty(hidden.shape)
    d_weight = weight.new_zeros(weight.shape, dtype=dtype)
    d_bias = weight.new_zeros(0 if bias is None else bias.shape, dtype=dtype)
    block = _block(hidden, weight)
    minus_one = hidden.new_full((), -1, dtype=dtype)
    for rows in _row_blocks(hidden, weight):
        losses, d_logits, places, ignored = _losses(block, hidden[rows], head, targets[rows], bias, ignore_index)
        total += losses.sum(dtype=torch.float64)
        d_logits.scatter_add_(1, places, minus_one.expand(places.shape)).masked_fill_(ignored, 0)
        if gradient is not None:
            d_logits *= gradient[rows].unsqueeze(1)
        if bias is not None:
            d_bias += d_logits.sum(0)
        d_logits = d_logits.to(hidden.dtype)
        torch.mm(d_logits, head, out=d_hidden[rows])
        if hidden.dtype == dtype:
            d_weight.addmm_(d_logits.T, hidden[rows])
        else:
            d_weight += d_logits.T @ hidden[rows]
    d_bias = hidden.new_empty(0) if bias is None else d_bias.to(bias.dtype)
    return total.to(dtype), d_hidden, d_weight.to(weight.dtype), d_bias
