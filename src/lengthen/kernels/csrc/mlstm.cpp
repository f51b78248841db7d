// The mLSTM's gates: its running maximum, position by position, and what it makes of decay and write.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {
namespace {

// B batch, T positions, H heads; all float32.
struct Gates {
    int64_t batch, positions, heads;
    View input, forget, initial;
};

float at(const View& v, int64_t i, int64_t j, int64_t k = 0) { return *reinterpret_cast<const float*>(v.at(i, j, k)); }

Gates gates(const Array& input, const Array& forget, const Array& initial) {
    Gates g{};
    g.batch = size_of(input, "input_gate", 3, 0), g.positions = size_of(input, "input_gate", 3, 1);
    g.heads = size_of(input, "input_gate", 3, 2);
    require(g.batch >= 1 && g.positions >= 1 && g.heads >= 1, "input_gate is empty");
    g.input = view(input, "input_gate", {g.batch, g.positions, g.heads}, false);
    g.forget = view(forget, "log_forget", {g.batch, g.positions, g.heads}, false);
    g.initial = view(initial, "initial maximum", {g.batch, g.heads}, false);
    return g;
}

void forward(const Array& input, const Array& forget, const Array& initial, const Array& maximum,
             const Array& log_decay, const Array& log_gain) {
    const Gates g = gates(input, forget, initial);
    const Shape sequence = {g.batch, g.positions, g.heads};
    float* const m = dense(maximum, "maximum", sequence);
    float* const decay = dense(log_decay, "log_decay", sequence);
    float* const gain = dense(log_gain, "log_gain", sequence);
    nanobind::gil_scoped_release release;
    for (int64_t b = 0; b < g.batch; ++b)
        for (int64_t h = 0; h < g.heads; ++h) {
            double before = at(g.initial, b, h);
            for (int64_t t = 0; t < g.positions; ++t) {
                const double i = at(g.input, b, t, h), kept = at(g.forget, b, t, h) + before;
                // Only the last maximum is handed on, so only there does the state follow its rounding.
                const double exact = std::max(kept, i);
                const float rounded = static_cast<float>(exact);
                const double here = t + 1 < g.positions ? exact : rounded;
                const int64_t place = (b * g.positions + t) * g.heads + h;
                m[place] = rounded;
                decay[place] = static_cast<float>(kept - here);
                gain[place] = static_cast<float>(i - here);
                before = here;
            }
        }
}

void backward(const Array& dmaximum, const Array& dlog_decay, const Array& dlog_gain, const Array& input,
              const Array& forget, const Array& initial, const Array& maximum, const Array& dinput,
              const Array& dforget, const Array& dinitial) {
    const Gates g = gates(input, forget, initial);
    const Shape sequence = {g.batch, g.positions, g.heads};
    const View dm = view(dmaximum, "gradient of maximum", sequence, false),
               ddecay = view(dlog_decay, "gradient of log_decay", sequence, false),
               dgain = view(dlog_gain, "gradient of log_gain", sequence, false),
               m = view(maximum, "maximum", sequence, false);
    float* const di = dense(dinput, "gradient of input_gate", sequence);
    float* const df = dense(dforget, "gradient of log_forget", sequence);
    float* const dfirst = dense(dinitial, "gradient of the initial maximum", {g.batch, g.heads});
    nanobind::gil_scoped_release release;
    for (int64_t b = 0; b < g.batch; ++b)
        for (int64_t h = 0; h < g.heads; ++h) {
            double carried = 0.0;
            for (int64_t t = g.positions - 1; t >= 0; --t) {
                const double before = t > 0 ? at(m, b, t - 1, h) : at(g.initial, b, h);
                const double i = at(g.input, b, t, h), kept = at(g.forget, b, t, h) + before;
                const double share = kept > i ? 1.0 : kept < i ? 0.0 : 0.5;
                const double total = double(at(dm, b, t, h)) - at(ddecay, b, t, h) - at(dgain, b, t, h) + carried;
                const int64_t place = (b * g.positions + t) * g.heads + h;
                carried = at(ddecay, b, t, h) + share * total;
                df[place] = static_cast<float>(carried);
                di[place] = static_cast<float>(at(dgain, b, t, h) + (1.0 - share) * total);
            }
            dfirst[b * g.heads + h] = static_cast<float>(carried);
        }
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("mlstm_gates_forward", &forward, arg("input_gate"), arg("log_forget"), arg("initial"), arg("maximum"),
          arg("log_decay"), arg("log_gain"));
    m.def("mlstm_gates_backward", &backward, arg("dmaximum"), arg("dlog_decay"), arg("dlog_gain"),
          arg("input_gate"), arg("log_forget"), arg("initial"), arg("maximum"), arg("dinput_gate"),
          arg("dlog_forget"), arg("dinitial"));
}
