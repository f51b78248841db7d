// RWKV-7's recurrence, fused: diagonal plus rank one, one pass over time, backward from state checkpoints.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct Rwkv7 {
    int64_t batch, positions, heads, K, V, chunk, chunks;
    int threads;
    View receptance, log_decay, key, value, a, b, gain, initial, y, dy, dfinal;
    View dreceptance, dlog_decay, dkey, dvalue, da, db, dgain;
    float *final_state, *checkpoints, *dinitial;
};

#define LENGTHEN_KERNEL "rwkv7_kernel.hpp"
#include "each_instruction_set.hpp"

namespace {

Rwkv7 inputs(const Array& receptance, const Array& log_decay, const Array& key, const Array& value, const Array& a,
             const Array& b, const OptionalArray& gain, int64_t chunk, int threads) {
    Rwkv7 s{};
    s.batch = size_of(key, "key", 4, 0), s.positions = size_of(key, "key", 4, 1);
    s.heads = size_of(key, "key", 4, 2), s.K = size_of(key, "key", 4, 3);
    s.V = size_of(value, "value", 4, 3);
    require(threads >= 1, "threads is below 1");
    s.threads = threads;
    require(chunk >= 1, "chunk is below 1");
    s.chunk = chunk, s.chunks = (s.positions + chunk - 1) / chunk;
    require(s.batch >= 1 && s.positions >= 1 && s.heads >= 1 && s.K >= 1 && s.V >= 1, "key or value is empty");
    const Shape keys = {s.batch, s.positions, s.heads, s.K};
    s.receptance = view(receptance, "receptance", keys), s.log_decay = view(log_decay, "log_decay", keys);
    s.key = view(key, "key", keys), s.a = view(a, "a", keys), s.b = view(b, "b", keys);
    s.value = view(value, "value", {s.batch, s.positions, s.heads, s.V});
    s.gain = view(gain, "input_gain", {s.batch, s.positions, s.heads});
    return s;
}

void forward(const Array& receptance, const Array& log_decay, const Array& key, const Array& value, const Array& a,
             const Array& b, const OptionalArray& gain, const OptionalArray& initial_state, const Array& y,
             const Array& final_state, const OptionalArray& checkpoints, int64_t chunk, int threads) {
    Rwkv7 s = inputs(receptance, log_decay, key, value, a, b, gain, chunk, threads);
    s.initial = view(initial_state, "initial_state", {s.batch, s.heads, s.K, s.V}, false);
    s.y = output(y, "output", {s.batch, s.positions, s.heads, s.V});
    s.final_state = dense(final_state, "final_state", {s.batch, s.heads, s.K, s.V});
    if (checkpoints) s.checkpoints = dense(*checkpoints, "checkpoints", {s.batch, s.chunks, s.heads * s.K, s.V});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(rwkv7_forward(s));
}

void backward(const Array& dy, const Array& dfinal, const Array& checkpoints, const Array& receptance,
              const Array& log_decay, const Array& key, const Array& value, const Array& a, const Array& b,
              const OptionalArray& gain, const Array& dreceptance, const Array& dlog_decay, const Array& dkey,
              const Array& dvalue, const Array& da, const Array& db, const OptionalArray& dgain,
              const Array& dinitial, int64_t chunk, int threads) {
    Rwkv7 s = inputs(receptance, log_decay, key, value, a, b, gain, chunk, threads);
    const Shape keys = {s.batch, s.positions, s.heads, s.K}, values = {s.batch, s.positions, s.heads, s.V};
    const Shape state = {s.batch, s.heads, s.K, s.V};
    s.dy = view(dy, "gradient of the output", values);
    s.dfinal = view(dfinal, "gradient of the final state", state, false);
    s.checkpoints = dense(checkpoints, "checkpoints", {s.batch, s.chunks, s.heads * s.K, s.V});
    s.dreceptance = output(dreceptance, "gradient of receptance", keys);
    s.dlog_decay = output(dlog_decay, "gradient of log_decay", keys);
    s.dkey = output(dkey, "gradient of key", keys), s.dvalue = output(dvalue, "gradient of value", values);
    s.da = output(da, "gradient of a", keys), s.db = output(db, "gradient of b", keys);
    s.dgain = output(dgain, "gradient of input_gain", {s.batch, s.positions, s.heads});
    require(bool(s.gain) == bool(s.dgain), "input_gain comes without its gradient, or the other way round");
    s.dinitial = dense(dinitial, "gradient of initial_state", state);
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(rwkv7_backward(s));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("rwkv7_forward", &forward, arg("receptance"), arg("log_decay"), arg("key"), arg("value"), arg("a"),
          arg("b"), arg("input_gain").none(), arg("initial_state").none(), arg("output"), arg("final_state"),
          arg("checkpoints").none(), arg("chunk"), arg("threads"));
    m.def("rwkv7_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("checkpoints"), arg("receptance"),
          arg("log_decay"), arg("key"), arg("value"), arg("a"), arg("b"), arg("input_gain").none(),
          arg("dreceptance"), arg("dlog_decay"), arg("dkey"), arg("dvalue"), arg("da"), arg("db"),
          arg("dinput_gain").none(), arg("dinitial_state"), arg("chunk"), arg("threads"));
}
