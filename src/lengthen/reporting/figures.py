"""Every figure the results have data for: one definition each, for the page and for PNG and SVG."""

from __future__ import annotations

from lengthen.reporting.charts import Figure
from lengthen.reporting.length_figures import certificate_figure, loss_by_position_figure, remembrance_figure
from lengthen.reporting.rival_figures import rivals_figure
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.state_figures import drift_figure, forgetting_figure, patching_figure, statistics_figure
from lengthen.reporting.study_figures import study_figures
from lengthen.reporting.task_figures import depths_figure, tasks_figure
from lengthen.reporting.training_figures import training_loss_figure

MAKERS = (
    certificate_figure,
    loss_by_position_figure,
    remembrance_figure,
    drift_figure,
    statistics_figure,
    forgetting_figure,
    patching_figure,
    tasks_figure,
    depths_figure,
    training_loss_figure,
    rivals_figure,
)


def figures(findings: Findings) -> list[Figure]:
    """The figures, in the order of the page."""
    made = [maker(findings) for maker in MAKERS]
    return [figure for figure in made if figure is not None] + study_figures(findings)
