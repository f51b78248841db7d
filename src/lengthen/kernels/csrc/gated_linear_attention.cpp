// Gated linear attention, fused: the state in registers, one pass over time, backward from state checkpoints.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct GatedLinearAttention {
    int64_t batch, positions, heads, K, V, chunk, chunks;
    int threads;
    View query, key, value, log_decay, gain, bonus, initial, y, dy, dfinal;
    View dquery, dkey, dvalue, dlog_decay, dgain;
    float *final_state, *checkpoints, *dbonus, *dinitial;
};

#define LENGTHEN_KERNEL "gated_linear_attention_kernel.hpp"
#include "each_instruction_set.hpp"

namespace {

GatedLinearAttention inputs(const Array& query, const Array& key, const Array& value, const Array& log_decay,
                            const OptionalArray& gain, const OptionalArray& bonus, int64_t chunk, int threads) {
    GatedLinearAttention s{};
    s.batch = size_of(query, "query", 4, 0), s.positions = size_of(query, "query", 4, 1);
    s.heads = size_of(query, "query", 4, 2), s.K = size_of(query, "query", 4, 3);
    s.V = size_of(value, "value", 4, 3);
    s.threads = threads;
    require(threads >= 1, "threads is below 1");
    require(chunk >= 1, "chunk is below 1");
    s.chunk = chunk, s.chunks = (s.positions + chunk - 1) / chunk;
    require(s.batch >= 1 && s.positions >= 1 && s.heads >= 1 && s.K >= 1 && s.V >= 1, "query or value is empty");
    const Shape keys = {s.batch, s.positions, s.heads, s.K};
    s.query = view(query, "query", keys), s.key = view(key, "key", keys);
    s.value = view(value, "value", {s.batch, s.positions, s.heads, s.V});
    s.log_decay = view(log_decay, "log_decay", keys);
    s.gain = view(gain, "input_gain", {s.batch, s.positions, s.heads});
    s.bonus = view(bonus, "bonus", {s.heads, s.K}, false);
    return s;
}

void forward(const Array& query, const Array& key, const Array& value, const Array& log_decay,
             const OptionalArray& gain, const OptionalArray& bonus, const OptionalArray& initial_state,
             const Array& y, const Array& final_state, const OptionalArray& checkpoints, int64_t chunk, int threads) {
    GatedLinearAttention s = inputs(query, key, value, log_decay, gain, bonus, chunk, threads);
    s.initial = view(initial_state, "initial_state", {s.batch, s.heads, s.K, s.V}, false);
    s.y = output(y, "output", {s.batch, s.positions, s.heads, s.V});
    s.final_state = dense(final_state, "final_state", {s.batch, s.heads, s.K, s.V});
    if (checkpoints) s.checkpoints = dense(*checkpoints, "checkpoints", {s.batch, s.chunks, s.heads * s.K, s.V});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(gated_linear_attention_forward(s));
}

void backward(const Array& dy, const Array& dfinal, const Array& checkpoints, const Array& query, const Array& key,
              const Array& value, const Array& log_decay, const OptionalArray& gain, const OptionalArray& bonus,
              const Array& dquery, const Array& dkey, const Array& dvalue, const Array& dlog_decay,
              const OptionalArray& dgain, const Array& dbonus, const Array& dinitial, int64_t chunk, int threads) {
    GatedLinearAttention s = inputs(query, key, value, log_decay, gain, bonus, chunk, threads);
    const Shape keys = {s.batch, s.positions, s.heads, s.K}, values = {s.batch, s.positions, s.heads, s.V};
    const Shape state = {s.batch, s.heads, s.K, s.V};
    s.dy = view(dy, "gradient of the output", values);
    s.dfinal = view(dfinal, "gradient of the final state", state, false);
    s.checkpoints = dense(checkpoints, "checkpoints", {s.batch, s.chunks, s.heads * s.K, s.V});
    s.dquery = output(dquery, "gradient of query", keys), s.dkey = output(dkey, "gradient of key", keys);
    s.dvalue = output(dvalue, "gradient of value", values);
    s.dlog_decay = output(dlog_decay, "gradient of log_decay", keys);
    s.dgain = output(dgain, "gradient of input_gain", {s.batch, s.positions, s.heads});
    require(bool(s.gain) == bool(s.dgain), "input_gain comes without its gradient, or the other way round");
    s.dbonus = dense(dbonus, "gradient of bonus", {s.batch, s.heads, s.K});
    s.dinitial = dense(dinitial, "gradient of initial_state", state);
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(gated_linear_attention_backward(s));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("gated_linear_attention_forward", &forward, arg("query"), arg("key"), arg("value"), arg("log_decay"),
          arg("input_gain").none(), arg("bonus").none(), arg("initial_state").none(), arg("output"),
          arg("final_state"), arg("checkpoints").none(), arg("chunk"), arg("threads"));
    m.def("gated_linear_attention_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("checkpoints"),
          arg("query"), arg("key"), arg("value"), arg("log_decay"), arg("input_gain").none(), arg("bonus").none(),
          arg("dquery"), arg("dkey"), arg("dvalue"), arg("dlog_decay"), arg("dinput_gain").none(), arg("dbonus"),
          arg("dinitial_state"), arg("chunk"), arg("threads"));
}
