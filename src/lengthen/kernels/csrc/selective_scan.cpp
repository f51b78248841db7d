// Mamba-1's selective scan, fused: one pass over time, backward from state checkpoints.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct SelectiveScan {
    int64_t batch, positions, channels, chunk, chunks, group;
    int states, threads;
    bool softplus;
    View x, step, A, B, C, skip, gate, bias, gain, decay_step, reset, initial, y, dy, dfinal;
    View dx, dstep, dgate, dgain, ddecay_step;
    float *final_state, *checkpoints, *dA, *dB, *dC, *dskip, *dbias, *dinitial;
};

#define LENGTHEN_KERNEL "selective_scan_kernel.hpp"
#include "each_instruction_set.hpp"

namespace {

// Inputs common to both directions.
SelectiveScan inputs(const Array& x, const Array& step, const Array& A, const Array& B, const Array& C,
                     const OptionalArray& skip, const OptionalArray& gate, const OptionalArray& bias,
                     const OptionalArray& gain, const OptionalArray& decay_step, const OptionalArray& reset,
                     bool softplus, int64_t chunk, int threads) {
    SelectiveScan s{};
    s.batch = size_of(x, "x", 3, 0), s.positions = size_of(x, "x", 3, 1), s.channels = size_of(x, "x", 3, 2);
    s.states = int(size_of(A, "A", 2, 1));
    s.softplus = softplus, s.threads = threads, s.group = 128;
    require(threads >= 1, "threads is below 1");
    require(chunk >= 1, "chunk is below 1");
    s.chunk = chunk, s.chunks = (s.positions + chunk - 1) / chunk;
    require(s.batch >= 1 && s.positions >= 1 && s.channels >= 1 && s.states >= 1, "x or A is empty");
    const Shape sequence = {s.batch, s.positions, s.channels}, state = {s.batch, s.positions, s.states};
    s.x = view(x, "x", sequence), s.step = view(step, "dt", sequence);
    s.A = view(A, "A", {s.channels, s.states}, false);
    s.B = view(B, "B", state), s.C = view(C, "C", state);
    s.skip = view(skip, "skip", {s.channels}, false), s.bias = view(bias, "dt_bias", {s.channels}, false);
    s.gate = view(gate, "gate", sequence), s.gain = view(gain, "input_gain", sequence);
    s.decay_step = view(decay_step, "decay_dt", sequence);
    s.reset = flags(reset, "reset", {s.batch, s.positions});
    return s;
}

void forward(const Array& x, const Array& step, const Array& A, const Array& B, const Array& C,
             const OptionalArray& skip, const OptionalArray& gate, const OptionalArray& bias,
             const OptionalArray& gain, const OptionalArray& decay_step, const OptionalArray& reset, bool softplus,
             const OptionalArray& initial_state, const Array& y, const Array& final_state,
             const OptionalArray& checkpoints, int64_t chunk, int threads) {
    SelectiveScan s =
        inputs(x, step, A, B, C, skip, gate, bias, gain, decay_step, reset, softplus, chunk, threads);
    s.initial = view(initial_state, "initial_state", {s.batch, s.channels, s.states}, false);
    s.y = output(y, "output", {s.batch, s.positions, s.channels});
    s.final_state = dense(final_state, "final_state", {s.batch, s.channels, s.states});
    if (checkpoints) s.checkpoints = dense(*checkpoints, "checkpoints", {s.batch, s.chunks, s.states, s.channels});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(selective_scan_forward(s));
}

void backward(const Array& dy, const Array& dfinal, const Array& checkpoints, const Array& x, const Array& step,
              const Array& A, const Array& B, const Array& C, const OptionalArray& skip, const OptionalArray& gate,
              const OptionalArray& bias, const OptionalArray& gain, const OptionalArray& decay_step,
              const OptionalArray& reset, bool softplus, const Array& dx, const Array& dstep, const Array& dA,
              const Array& dB, const Array& dC, const Array& dskip, const OptionalArray& dgate, const Array& dbias,
              const OptionalArray& dgain, const OptionalArray& ddecay_step, const Array& dinitial, int64_t chunk,
              int threads) {
    SelectiveScan s =
        inputs(x, step, A, B, C, skip, gate, bias, gain, decay_step, reset, softplus, chunk, threads);
    const Shape sequence = {s.batch, s.positions, s.channels}, state = {s.batch, s.channels, s.states};
    const int64_t groups = (s.channels + s.group - 1) / s.group;
    s.dy = view(dy, "gradient of the output", sequence);
    s.dfinal = view(dfinal, "gradient of the final state", state, false);
    s.checkpoints = dense(checkpoints, "checkpoints", {s.batch, s.chunks, s.states, s.channels});
    s.dx = output(dx, "gradient of x", sequence), s.dstep = output(dstep, "gradient of dt", sequence);
    s.dgate = output(dgate, "gradient of gate", sequence);
    s.dgain = output(dgain, "gradient of input_gain", sequence);
    s.ddecay_step = output(ddecay_step, "gradient of decay_dt", sequence);
    require(bool(s.gate) == bool(s.dgate) && bool(s.gain) == bool(s.dgain) &&
                bool(s.decay_step) == bool(s.ddecay_step),
            "a gradient is missing for an input that is there, or the other way round");
    s.dA = dense(dA, "gradient of A", state);
    s.dB = dense(dB, "gradient of B", {groups, s.batch, s.positions, s.states});
    s.dC = dense(dC, "gradient of C", {groups, s.batch, s.positions, s.states});
    s.dskip = dense(dskip, "gradient of skip", {s.batch, s.channels});
    s.dbias = dense(dbias, "gradient of dt_bias", {s.batch, s.channels});
    s.dinitial = dense(dinitial, "gradient of initial_state", state);
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(selective_scan_backward(s));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("selective_scan_forward", &forward, arg("x"), arg("dt"), arg("A"), arg("B"), arg("C"),
          arg("skip").none(), arg("gate").none(), arg("dt_bias").none(), arg("input_gain").none(),
          arg("decay_dt").none(), arg("reset").none(), arg("dt_softplus"), arg("initial_state").none(),
          arg("output"), arg("final_state"), arg("checkpoints").none(), arg("chunk"), arg("threads"));
    m.def("selective_scan_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("checkpoints"), arg("x"),
          arg("dt"), arg("A"), arg("B"), arg("C"), arg("skip").none(), arg("gate").none(), arg("dt_bias").none(),
          arg("input_gain").none(), arg("decay_dt").none(), arg("reset").none(), arg("dt_softplus"), arg("dx"),
          arg("ddt"), arg("dA"), arg("dB"), arg("dC"), arg("dskip"), arg("dgate").none(), arg("ddt_bias"),
          arg("dinput_gain").none(), arg("ddecay_dt").none(), arg("dinitial_state"), arg("chunk"), arg("threads"));
}
