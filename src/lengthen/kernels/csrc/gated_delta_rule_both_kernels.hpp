#include "gated_delta_rule_kernel.hpp"
#include "gated_delta_rule_backward_kernel.hpp"
