"""One setting under two names, and configurations that transformers refuses."""

from pathlib import Path

import pytest
from transformers import Mamba2Config, MambaConfig

from lengthen.errors import InputError
from lengthen.models.settings import OPTIONAL_PARTS, Field, library_config, refuse_optional_parts

WHERE = Path("somewhere")


def test_a_pair_is_a_tuple_however_it_was_stored():
    field = Field("dt_limit", "time_step_limit", (0.0, 1.0))
    for stored in ([0.1, 0.2], (0.1, 0.2)):
        assert field.of(Mamba2Config(hidden_size=16, head_dim=8, num_heads=4, time_step_limit=stored)) == (0.1, 0.2)
    assert Field("d_model", "hidden_size", 1).of(MambaConfig(hidden_size=24)) == 24


def test_mamba_2_s_heads_follow_from_its_other_sizes():
    sizes = {"hidden_size": 24, "expand": 2, "head_dim": 8, "num_heads": 99}
    assert library_config(Mamba2Config, sizes, WHERE).num_heads == 6
    assert library_config(MambaConfig, {"hidden_size": 24}, WHERE).hidden_size == 24


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 24, "expand": 2, "head_dim": 7},  # 6 heads of 7 are not 48
        {"hidden_size": "wide", "expand": 2, "head_dim": 8},
        {"hidden_size": 24, "expand": 2},
        {"hidden_size": 24, "expand": 2, "head_dim": 0},
    ],
)
def test_sizes_that_make_no_model_are_refused_in_one_sentence(values):
    with pytest.raises(
        InputError, match=r"^somewhere/config\.json does not describe a mamba2 model \(.*\)\.$"
    ) as caught:
        library_config(Mamba2Config, values, WHERE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", OPTIONAL_PARTS)
def test_a_part_that_transformers_lacks_is_refused_only_where_it_is_used(name):
    refuse_optional_parts({}, WHERE)
    refuse_optional_parts({name: OPTIONAL_PARTS[name]}, WHERE)
    with pytest.raises(
        InputError, match=rf"^somewhere has {name} {not OPTIONAL_PARTS[name]}, which transformers' Mamba2"
    ):
        refuse_optional_parts({name: not OPTIONAL_PARTS[name]}, WHERE)
