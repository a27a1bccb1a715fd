"""An alias of `briee.training.tracking`."""

from briee.training.tracking import TensorBoard

__all__ = ["TensorBoard"]
