"""Progress of several stages told as one: it never falls back, and ends where all is done."""

import pytest

from lengthen.diagnosis.stages import Stages


def test_stages_follow_one_another_each_in_units_of_its_own():
    told = []
    stages = Stages(lambda done, todo: told.append((done, todo)), {"read": 10, "judge": 30})
    read, judge = stages.of("read"), stages.of("judge")
    for done in (1, 2):
        read(done, 2)
    for done in (1, 2, 3):
        judge(done, 3)
    stages.finish()
    assert told == [(5, 40), (10, 40), (20, 40), (30, 40), (40, 40), (40, 40)]


def test_a_stage_left_out_is_told_as_done_at_the_end():
    told = []
    stages = Stages(lambda *now: told.append(now), {"read": 1, "judge": 9})
    stages.of("read")(1, 1)
    stages.finish()
    assert told == [(1, 10), (10, 10)]


def test_nobody_is_told_where_nobody_asked():
    stages = Stages(None, {"read": 10})
    assert stages.of("read") is None
    stages.finish()
    with pytest.raises(KeyError):
        Stages(None, {"read": 10}).of("unknown")
