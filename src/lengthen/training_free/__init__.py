"""Methods that change how a trained model runs, and not what it was trained to: the rivals of post-training.

method = method_of("constant-delta:ratio=0.5")
fitted = method.fit(model, Calibration(train_context=512, length=8192))
with fitted.apply(model):
    result = diagnose(model, ...)
"""

from lengthen.training_free.fitting import Calibration, FittedMethod, HookMethod, Method, load_fitted
from lengthen.training_free.names import METHODS, method_of

__all__ = ["METHODS", "Calibration", "FittedMethod", "HookMethod", "Method", "load_fitted", "method_of"]
