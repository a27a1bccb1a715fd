"""An alias of `briee.training.tensorboard`."""

from briee.training.tensorboard import TensorBoard

__all__ = ["TensorBoard"]
