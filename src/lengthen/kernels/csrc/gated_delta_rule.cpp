// The gated delta rule with one decay per head: chunks of matrix products and triangular solves inside the cache.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct GatedDeltaRule {
    int64_t batch, positions, heads, key_dim, value_dim;
    int64_t segment, segments;  // positions of a segment; boundaries between segments
    int threads;
    View query, key, value, log_decay, beta, gain, initial, output, doutput, dfinal;
    View dquery, dkey, dvalue, dlog_decay, dbeta, dgain;
    float *final_state, *boundaries, *dinitial;
};

#define LENGTHEN_KERNEL "gated_delta_rule_both_kernels.hpp"
#include "each_instruction_set.hpp"

namespace {

GatedDeltaRule inputs(const Array& query, const Array& key, const Array& value, const OptionalArray& log_decay,
                      const Array& beta, const OptionalArray& gain, const OptionalArray& initial_state,
                      int64_t segment, int threads) {
    GatedDeltaRule p{};
    p.batch = size_of(value, "value", 4, 0), p.positions = size_of(value, "value", 4, 1);
    p.heads = size_of(value, "value", 4, 2), p.value_dim = size_of(value, "value", 4, 3);
    p.key_dim = size_of(query, "query", 4, 3);
    require(p.batch >= 1 && p.positions >= 1 && p.heads >= 1 && p.value_dim >= 1 && p.key_dim >= 1,
            "an array is empty");
    require(segment >= 64 && segment % 64 == 0, "segment is not a multiple of 64");
    p.segment = segment, p.segments = (p.positions - 1) / segment, p.threads = threads;
    const Shape keys = {p.batch, p.positions, p.heads, p.key_dim}, column = {p.batch, p.positions, p.heads};
    p.query = view(query, "query", keys), p.key = view(key, "key", keys);
    p.value = view(value, "value", {p.batch, p.positions, p.heads, p.value_dim});
    p.log_decay = view(log_decay, "log_decay", column), p.beta = view(beta, "beta", column);
    p.gain = view(gain, "input_gain", column);
    p.initial = view(initial_state, "initial_state", {p.batch, p.heads, p.key_dim, p.value_dim});
    return p;
}

void forward(const Array& query, const Array& key, const Array& value, const OptionalArray& log_decay,
             const Array& beta, const OptionalArray& gain, const OptionalArray& initial_state, const Array& y,
             const Array& final_state, const Array& boundaries, int64_t segment, int threads) {
    GatedDeltaRule p = inputs(query, key, value, log_decay, beta, gain, initial_state, segment, threads);
    p.output = output(y, "output", {p.batch, p.positions, p.heads, p.value_dim});
    p.final_state = dense(final_state, "final_state", {p.batch, p.heads, p.key_dim, p.value_dim});
    p.boundaries = dense(boundaries, "boundary_states", {p.batch, p.segments * p.heads, p.key_dim, p.value_dim});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(gated_delta_rule_forward(p));
}

void backward(const Array& doutput, const Array& dfinal, const Array& query, const Array& key, const Array& value,
              const OptionalArray& log_decay, const Array& beta, const OptionalArray& gain,
              const OptionalArray& initial_state, const Array& boundaries, const Array& dquery, const Array& dkey,
              const Array& dvalue, const OptionalArray& dlog_decay, const Array& dbeta, const OptionalArray& dgain,
              const OptionalArray& dinitial, int64_t segment, int threads) {
    GatedDeltaRule p = inputs(query, key, value, log_decay, beta, gain, initial_state, segment, threads);
    const Shape keys = {p.batch, p.positions, p.heads, p.key_dim}, column = {p.batch, p.positions, p.heads};
    const Shape values = {p.batch, p.positions, p.heads, p.value_dim};
    const Shape state = {p.batch, p.heads, p.key_dim, p.value_dim};
    p.doutput = view(doutput, "gradient of the output", values);
    p.dfinal = view(dfinal, "gradient of the final state", state);
    p.boundaries = dense(boundaries, "boundary_states", {p.batch, p.segments * p.heads, p.key_dim, p.value_dim});
    p.dquery = output(dquery, "gradient of query", keys), p.dkey = output(dkey, "gradient of key", keys);
    p.dvalue = output(dvalue, "gradient of value", values);
    p.dlog_decay = output(dlog_decay, "gradient of log_decay", column);
    p.dbeta = output(dbeta, "gradient of beta", column), p.dgain = output(dgain, "gradient of input_gain", column);
    require(bool(log_decay) == bool(dlog_decay) && bool(gain) == bool(dgain) && (initial_state || !dinitial),
            "a gradient is missing for an input that is there, or the other way round");
    if (dinitial) p.dinitial = dense(*dinitial, "gradient of initial_state", state);
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(gated_delta_rule_backward(p));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("gated_delta_rule_forward", &forward, arg("query"), arg("key"), arg("value"), arg("log_decay").none(),
          arg("beta"), arg("input_gain").none(), arg("initial_state").none(), arg("output"), arg("final_state"),
          arg("boundary_states"), arg("segment"), arg("threads"));
    m.def("gated_delta_rule_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("query"), arg("key"),
          arg("value"), arg("log_decay").none(), arg("beta"), arg("input_gain").none(), arg("initial_state").none(),
          arg("boundary_states"), arg("dquery"), arg("dkey"), arg("dvalue"), arg("dlog_decay").none(), arg("dbeta"),
          arg("dinput_gain").none(), arg("dinitial_state").none(), arg("segment"), arg("threads"));
}
