"""What becomes of a sum: bias, ReLU and cap; the same for all kernels of the layers."""

from typing import Any

from spdnn.engines.cuda.kernels.gpu import float32, inlined


@inlined
def activation(total: Any, bias: Any, tests_nonzero: Any, least: Any, cap: Any) -> Any:
    """The activation of an output.

    Parameters
    ----------
    total : float32
        The sum of weights times inputs.
    bias : float32
    tests_nonzero : bool
        Whether the bias is added only where the sum is not zero.
    least : float32
        Smallest activation: 0 for ReLU, else minus infinity.
    cap : float32
        Largest activation.

    Returns
    -------
    float32
        NaN where the sum is not finite. NaN then goes through all layers, and is found after the
        last one (`make_look`).
    """
    value = total
    if value != float32(0) or not tests_nonzero:
        value += bias
    return min(max(value, least), cap) + value * float32(0)
