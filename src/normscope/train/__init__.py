"""Training: a small loop that reports events, detects divergence, and can resume after a kill."""

from normscope.measure.divergence import Divergence
from normscope.train.checkpoint import Checkpoint
from normscope.train.curve import TrainingCurve
from normscope.train.diverging import DivergingUpdate, diverging_update
from normscope.train.evaluate import Evaluation, evaluate
from normscope.train.gamma_decay import (
    AdaptiveGammaDecay,
    GammaDecay,
    adaptive_gamma_decay,
    gamma_decay,
    scales,
)
from normscope.train.loop import fit
from normscope.train.lr_range import lr_range_test
from normscope.train.moments import SecondMoments
from normscope.train.monitor import Monitor, MonitorProbe, SharpnessProbe, Update
from normscope.train.optim import optimizers
from normscope.train.options import TrainingOptions
from normscope.train.plan import Refresher, Stateful
from normscope.train.run import Event, StopTraining, TrainingRun, Validation
from normscope.train.schedules import (
    Constant,
    EpochDecay,
    Exponential,
    InverseTime,
    Schedule,
    StepDecay,
    WarmStart,
    When,
    schedules,
)
from normscope.train.stability import max_stable_lr
from normscope.train.stability_map import stability_map
from normscope.train.trial import TRAINING, TrialRun, training_trial

__all__ = [
    "TRAINING",
    "AdaptiveGammaDecay",
    "Checkpoint",
    "Constant",
    "Divergence",
    "DivergingUpdate",
    "EpochDecay",
    "Evaluation",
    "Event",
    "Exponential",
    "GammaDecay",
    "InverseTime",
    "Monitor",
    "MonitorProbe",
    "Refresher",
    "Schedule",
    "SecondMoments",
    "SharpnessProbe",
    "Stateful",
    "StepDecay",
    "StopTraining",
    "TrainingCurve",
    "TrainingOptions",
    "TrainingRun",
    "TrialRun",
    "Update",
    "Validation",
    "WarmStart",
    "When",
    "adaptive_gamma_decay",
    "diverging_update",
    "evaluate",
    "fit",
    "gamma_decay",
    "lr_range_test",
    "max_stable_lr",
    "optimizers",
    "scales",
    "schedules",
    "stability_map",
    "training_trial",
]
