// The elementwise linear scan h = exp(g) h + gain x: one pass over time, backward from state checkpoints.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct LinearScan {
    int64_t batch, positions, channels, chunk, chunks;
    int threads;
    View log_decay, x, gain, initial, y, dy, dfinal, dlog_decay, dx, dgain;
    float *final_state, *checkpoints, *dinitial;
};

#define LENGTHEN_KERNEL "linear_scan_kernel.hpp"
#include "each_instruction_set.hpp"

namespace {

LinearScan inputs(const Array& log_decay, const Array& x, const OptionalArray& gain, int64_t chunk, int threads) {
    LinearScan s{};
    s.batch = size_of(x, "x", 3, 0), s.positions = size_of(x, "x", 3, 1), s.channels = size_of(x, "x", 3, 2);
    s.threads = threads;
    require(threads >= 1, "threads is below 1");
    require(chunk >= 1, "chunk is below 1");
    s.chunk = chunk, s.chunks = (s.positions + chunk - 1) / chunk;
    require(s.batch >= 1 && s.positions >= 1 && s.channels >= 1, "x is empty");
    const Shape sequence = {s.batch, s.positions, s.channels};
    s.log_decay = view(log_decay, "log_decay", sequence), s.x = view(x, "x", sequence);
    s.gain = view(gain, "input_gain", sequence);
    return s;
}

void forward(const Array& log_decay, const Array& x, const OptionalArray& gain, const OptionalArray& initial_state,
             const Array& y, const Array& final_state, const OptionalArray& checkpoints, int64_t chunk, int threads) {
    LinearScan s = inputs(log_decay, x, gain, chunk, threads);
    s.initial = view(initial_state, "initial_state", {s.batch, s.channels}, false);
    s.y = output(y, "output", {s.batch, s.positions, s.channels});
    s.final_state = dense(final_state, "final_state", {s.batch, s.channels});
    if (checkpoints) s.checkpoints = dense(*checkpoints, "checkpoints", {s.batch, s.chunks, s.channels});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(linear_scan_forward(s));
}

void backward(const Array& dy, const Array& dfinal, const Array& checkpoints, const Array& log_decay, const Array& x,
              const OptionalArray& gain, const Array& dlog_decay, const Array& dx, const OptionalArray& dgain,
              const Array& dinitial, int64_t chunk, int threads) {
    LinearScan s = inputs(log_decay, x, gain, chunk, threads);
    const Shape sequence = {s.batch, s.positions, s.channels};
    s.dy = view(dy, "gradient of the output", sequence);
    s.dfinal = view(dfinal, "gradient of the final state", {s.batch, s.channels}, false);
    s.checkpoints = dense(checkpoints, "checkpoints", {s.batch, s.chunks, s.channels});
    s.dlog_decay = output(dlog_decay, "gradient of log_decay", sequence);
    s.dx = output(dx, "gradient of x", sequence);
    s.dgain = output(dgain, "gradient of input_gain", sequence);
    require(bool(s.gain) == bool(s.dgain), "input_gain comes without its gradient, or the other way round");
    s.dinitial = dense(dinitial, "gradient of initial_state", {s.batch, s.channels});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(linear_scan_backward(s));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("linear_scan_forward", &forward, arg("log_decay"), arg("x"), arg("input_gain").none(),
          arg("initial_state").none(), arg("output"), arg("final_state"), arg("checkpoints").none(), arg("chunk"),
          arg("threads"));
    m.def("linear_scan_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("checkpoints"),
          arg("log_decay"), arg("x"), arg("input_gain").none(), arg("dlog_decay"), arg("dx"),
          arg("dinput_gain").none(), arg("dinitial_state"), arg("chunk"), arg("threads"));
}
