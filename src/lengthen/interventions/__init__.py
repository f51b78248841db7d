"""Where a training window's initial state comes from (Buitrago Ruiz and Gu, arXiv 2507.02782, section 4).

Every intervention has three verbs: give the initial state for these rows, observe their final state, save and restore
itself. No gradient flows through an initial state.

    intervention = StatePassing()
    for step, batch in enumerate(windows):
        rows = Rows.of(batch, step, shuffled=True)
        output = model(batch["input_ids"], shift_labels=batch["labels"],
                       initial_state=intervention.initial_state(rows, zero_state(model, len(rows))))
        output.loss.backward(); optimizer.step(); optimizer.zero_grad()
        intervention.observe(rows, output.final_state)
"""

from lengthen.interventions.base import Intervention, Rows, Zero
from lengthen.interventions.mixture import Mixture
from lengthen.interventions.names import INTERVENTIONS, intervention_named
from lengthen.interventions.noise import FittedNoise, RandomNoise
from lengthen.interventions.passing import TBPTT, StatePassing
from lengthen.interventions.state_bank import Provenance, StateBank

__all__ = [
    "INTERVENTIONS",
    "TBPTT",
    "FittedNoise",
    "Intervention",
    "Mixture",
    "Provenance",
    "RandomNoise",
    "Rows",
    "StateBank",
    "StatePassing",
    "Zero",
    "intervention_named",
]
