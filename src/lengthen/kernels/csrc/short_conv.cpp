// The short causal convolution per channel, with its window, resets and padding.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct ShortConv {
    int64_t batch, positions, channels, taps;
    int threads;
    bool silu;
    View x, weight, bias, window, reset, y, dy, dfinal_window, dx;
    const void* lengths;  // int64 [B]
    float *final_window, *dweight, *dbias, *dwindow;
};

#define LENGTHEN_KERNEL "short_conv_kernel.hpp"
#include "each_instruction_set.hpp"

namespace {

ShortConv inputs(const Array& x, const Array& weight, const OptionalArray& bias, const Array& window,
                 const OptionalArray& reset, const OptionalArray& lengths, bool silu, int threads) {
    ShortConv p{};
    p.batch = size_of(x, "x", 3, 0), p.positions = size_of(x, "x", 3, 1), p.channels = size_of(x, "x", 3, 2);
    p.taps = size_of(weight, "weight", 2, 1);
    require(p.batch >= 1 && p.positions >= 1 && p.channels >= 1 && p.taps >= 1, "x or weight is empty");
    require(p.taps <= 255, "weight has more than 255 taps");
    p.silu = silu, p.threads = threads;
    p.x = view(x, "x", {p.batch, p.positions, p.channels});
    p.weight = view(weight, "weight", {p.channels, p.taps}), p.bias = view(bias, "bias", {p.channels});
    p.window = view(window, "window", {p.batch, p.channels, p.taps - 1});
    p.reset = flags(reset, "reset", {p.batch, p.positions});
    if (lengths) {
        require(lengths->dtype() == nanobind::dtype<int64_t>(), "lengths is not int64");
        require(lengths->ndim() == 1 && int64_t(lengths->shape(0)) == p.batch &&
                    (lengths->stride(0) == 1 || p.batch == 1),
                "lengths has not one contiguous number for each row");
        p.lengths = lengths->data();
    }
    return p;
}

void forward(const Array& x, const Array& weight, const OptionalArray& bias, const Array& window,
             const OptionalArray& reset, const OptionalArray& lengths, bool silu, const Array& y,
             const Array& final_window, int threads) {
    ShortConv p = inputs(x, weight, bias, window, reset, lengths, silu, threads);
    p.y = output(y, "output", {p.batch, p.positions, p.channels});
    p.final_window = dense(final_window, "final_window", {p.batch, p.channels, p.taps - 1});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(short_conv_forward(p));
}

void backward(const Array& dy, const Array& dfinal_window, const Array& x, const Array& weight,
              const OptionalArray& bias, const Array& window, const OptionalArray& reset,
              const OptionalArray& lengths, bool silu, const Array& dx, const Array& dweight, const Array& dbias,
              const Array& dwindow, int threads) {
    ShortConv p = inputs(x, weight, bias, window, reset, lengths, silu, threads);
    p.dy = view(dy, "gradient of the output", {p.batch, p.positions, p.channels});
    p.dfinal_window = view(dfinal_window, "gradient of the final window", {p.batch, p.channels, p.taps - 1}, false);
    p.dx = output(dx, "gradient of x", {p.batch, p.positions, p.channels});
    p.dweight = dense(dweight, "gradient of weight", {p.batch, p.channels, p.taps});
    p.dbias = dense(dbias, "gradient of bias", {p.batch, p.channels});
    p.dwindow = dense(dwindow, "gradient of window", {p.batch, p.channels, p.taps - 1});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(short_conv_backward(p));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("short_conv_forward", &forward, arg("x"), arg("weight"), arg("bias").none(), arg("window"),
          arg("reset").none(), arg("lengths").none(), arg("silu"), arg("output"), arg("final_window"), arg("threads"));
    m.def("short_conv_backward", &backward, arg("doutput"), arg("dfinal_window"), arg("x"), arg("weight"),
          arg("bias").none(), arg("window"), arg("reset").none(), arg("lengths").none(), arg("silu"), arg("dx"),
          arg("dweight"), arg("dbias"), arg("dwindow"), arg("threads"));
}
