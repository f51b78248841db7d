"""The recurrences: for each its definition, a portable form, and compiled kernels where they exist."""

from lengthen.kernels.cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from lengthen.kernels.gated_delta_rule import gated_delta_rule, gated_delta_rule_reference
from lengthen.kernels.gated_linear_attention import gated_linear_attention, gated_linear_attention_reference
from lengthen.kernels.linear_scan import linear_scan, linear_scan_reference
from lengthen.kernels.mlstm import MlstmState, mlstm, mlstm_reference
from lengthen.kernels.rwkv7 import rwkv7, rwkv7_reference
from lengthen.kernels.selective_scan import selective_scan, selective_scan_reference
from lengthen.kernels.short_conv import short_conv, short_conv_reference
from lengthen.kernels.ssd import ssd, ssd_reference
from lengthen.kernels.token_shift import token_shift
from lengthen.kernels.wkv4 import Wkv4State, wkv4, wkv4_reference

__all__ = [
    "MlstmState",
    "Wkv4State",
    "gated_delta_rule",
    "gated_delta_rule_reference",
    "gated_linear_attention",
    "gated_linear_attention_reference",
    "linear_cross_entropy",
    "linear_cross_entropy_reference",
    "linear_scan",
    "linear_scan_reference",
    "mlstm",
    "mlstm_reference",
    "rwkv7",
    "rwkv7_reference",
    "selective_scan",
    "selective_scan_reference",
    "short_conv",
    "short_conv_reference",
    "ssd",
    "ssd_reference",
    "token_shift",
    "wkv4",
    "wkv4_reference",
]
