"""How an operator of a recurrence is tied to the operator that has its gradients."""

from torch import Tensor
from torch.library import CustomOpDef

from lengthen.kernels.recurrence import empty_gradients


def tie_chunked(forward: CustomOpDef, backward: CustomOpDef) -> None:
    """For operators that keep the states before each chunk.

    forward(*inputs, initial_state, compute, save) -> (output, final state, checkpoints);
    backward(output's gradient, final state's, checkpoints, *inputs) -> [each input's gradient, the initial state's].
    """

    def save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, initial_state, _, _ = inputs
        ctx.has_initial_state = initial_state is not None
        ctx.save_for_backward(*tensors, output[2])

    def differentiate(ctx, output_gradient, final_state_gradient, _):  # type: ignore[no-untyped-def]
        *inputs, checkpoints = ctx.saved_tensors
        *gradients, dinitial = backward(output_gradient, final_state_gradient, checkpoints, *inputs)
        return (
            *(None if tensor is None else gradient for tensor, gradient in zip(inputs, gradients)),
            dinitial if ctx.has_initial_state else None,
            None,
            None,
        )

    forward.register_autograd(differentiate, setup_context=save)

    @backward.register_fake
    def _(output_gradient, final_state_gradient, checkpoints, *inputs):  # type: ignore[no-untyped-def]
        return [*empty_gradients(*inputs), final_state_gradient.new_empty(final_state_gradient.shape)]


def tie_segmented(forward: CustomOpDef, backward: CustomOpDef) -> None:
    """For operators that keep the states between segments, and whose backward is told whether the initial state wants one.

    forward(*inputs, initial_state) -> (output, final state, boundary states);
    backward(output's gradient, final state's, *inputs, initial_state, boundary states, initial_state_wanted) -> a
    gradient of each input and of the initial state, empty where none is wanted.
    """

    def save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs, output[2])

    def differentiate(ctx, output_gradient, final_state_gradient, _):  # type: ignore[no-untyped-def]
        *inputs, boundary_states = ctx.saved_tensors
        needed = ctx.needs_input_grad
        gradients = backward(output_gradient, final_state_gradient, *inputs, boundary_states, needed[-1])
        return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, needed))

    forward.register_autograd(differentiate, setup_context=save)

    @backward.register_fake
    def _(output_gradient, final_state_gradient, *inputs_states_wanted):  # type: ignore[no-untyped-def]
        *inputs, initial_state, _, wanted = inputs_states_wanted

        def like(tensor: Tensor | None) -> Tensor:
            return output_gradient.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

        return tuple(map(like, (*inputs, initial_state if wanted else None)))
