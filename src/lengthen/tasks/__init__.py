"""Long-context tasks: prompts of exact lengths, named scorings, evaluation and samples to train on."""

from lengthen.tasks.catalogue import TASKS, Task, task_named
from lengthen.tasks.codec import Codec
from lengthen.tasks.evaluating import evaluate
from lengthen.tasks.prompts import Prompt
from lengthen.tasks.samples import training_samples, unfit

__all__ = ["TASKS", "Codec", "Prompt", "Task", "evaluate", "task_named", "training_samples", "unfit"]
