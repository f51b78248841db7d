"""One of two processes: trains a tiny model in every way asked for, and tells losses, weights' files, state dtypes.

python -m tests.training.matrix_worker FOLDER; FOLDER/cases.json names the cases, FOLDER/CASE is a case's run folder.
"""

import json
import shutil
import sys
from pathlib import Path

import torch

from lengthen import post_train
from lengthen.interventions import intervention_named
from lengthen.training.processes import process_share
from tests.training.matrix_cases import corpus, model

folder = Path(sys.argv[1])
rank, _ = process_share()
for name, case in json.loads((folder / "cases.json").read_text()).items():
    intervention = intervention_named(case.pop("intervention"))
    if "checkpoint" in case:
        source = folder / case.pop("checkpoint")
        if rank == 0:
            shutil.copytree(source, folder / name / source.name)
        torch.distributed.barrier()
    dtypes, observe = set(), intervention.observe

    def watching(rows, final_state, observe=observe, dtypes=dtypes):
        dtypes |= {str(t.dtype) for named in final_state.tensors.values() for t in named.values()}
        observe(rows, final_state)

    intervention.observe = watching
    watch = corpus() if case.pop("watched", False) else None
    record = post_train(model(), corpus(), intervention=intervention, out=folder / name, watch=watch, **case)
    if rank == 0:
        found = {"losses": record.losses, "dtypes": sorted(dtypes)}
        (folder / f"{name}.json").write_text(json.dumps(found))
