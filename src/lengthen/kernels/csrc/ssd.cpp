// State space duality, the recurrence with one decay per head: chunks of matrix products inside the cache.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {

struct Ssd {
    int64_t batch, positions, heads, groups, key_dim, value_dim;
    int64_t segment, segments;  // positions of a segment; boundaries between segments
    int64_t blocks;             // tasks that share out the heads of a group
    int threads;
    View query, key, value, log_decay, gain, skip, initial, output, doutput, dfinal;
    View dquery, dkey, dvalue, dlog_decay, dgain;
    float *final_state, *boundaries, *dskip, *dinitial;
};

#define LENGTHEN_KERNEL "ssd_both_kernels.hpp"
#include "each_instruction_set.hpp"

namespace {

Ssd inputs(const Array& query, const Array& key, const Array& value, const Array& log_decay,
           const OptionalArray& gain, const OptionalArray& skip, const OptionalArray& initial_state, int64_t segment,
           int64_t blocks, int threads) {
    Ssd p{};
    p.batch = size_of(value, "value", 4, 0), p.positions = size_of(value, "value", 4, 1);
    p.heads = size_of(value, "value", 4, 2), p.value_dim = size_of(value, "value", 4, 3);
    p.groups = size_of(query, "query", 4, 2), p.key_dim = size_of(query, "query", 4, 3);
    require(p.batch >= 1 && p.positions >= 1 && p.heads >= 1 && p.value_dim >= 1 && p.groups >= 1 && p.key_dim >= 1,
            "an array is empty");
    require(p.heads % p.groups == 0, "the groups do not divide the heads");
    require(segment >= 64 && segment % 64 == 0, "segment is not a multiple of 64");
    require(blocks >= 1 && blocks <= p.heads / p.groups, "blocks is not between 1 and the heads of a group");
    p.segment = segment, p.segments = (p.positions - 1) / segment, p.blocks = blocks, p.threads = threads;
    const Shape keys = {p.batch, p.positions, p.groups, p.key_dim}, column = {p.batch, p.positions, p.heads};
    p.query = view(query, "query", keys), p.key = view(key, "key", keys);
    p.value = view(value, "value", {p.batch, p.positions, p.heads, p.value_dim});
    p.log_decay = view(log_decay, "log_decay", column), p.gain = view(gain, "input_gain", column);
    p.skip = view(skip, "skip", {p.heads}, false);
    p.initial = view(initial_state, "initial_state", {p.batch, p.heads, p.key_dim, p.value_dim});
    return p;
}

void forward(const Array& query, const Array& key, const Array& value, const Array& log_decay,
             const OptionalArray& gain, const OptionalArray& skip, const OptionalArray& initial_state,
             const Array& y, const Array& final_state, const Array& boundaries, int64_t segment, int64_t blocks,
             int threads) {
    Ssd p = inputs(query, key, value, log_decay, gain, skip, initial_state, segment, blocks, threads);
    p.output = lengthen::output(y, "output", {p.batch, p.positions, p.heads, p.value_dim});
    p.final_state = dense(final_state, "final_state", {p.batch, p.heads, p.key_dim, p.value_dim});
    p.boundaries = dense(boundaries, "boundary_states", {p.batch, p.segments * p.heads, p.key_dim, p.value_dim});
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(ssd_forward(p));
}

void backward(const Array& doutput, const Array& dfinal, const Array& query, const Array& key, const Array& value,
              const Array& log_decay, const OptionalArray& gain, const OptionalArray& skip,
              const OptionalArray& initial_state, const Array& boundaries, const Array& dquery, const Array& dkey,
              const Array& dvalue, const Array& dlog_decay, const OptionalArray& dgain, const OptionalArray& dskip,
              const OptionalArray& dinitial, int64_t segment, int64_t blocks, int threads) {
    Ssd p = inputs(query, key, value, log_decay, gain, skip, initial_state, segment, blocks, threads);
    const Shape values = {p.batch, p.positions, p.heads, p.value_dim}, column = {p.batch, p.positions, p.heads};
    const Shape state = {p.batch, p.heads, p.key_dim, p.value_dim};
    const Shape keys = {p.blocks * p.batch, p.positions, p.groups, p.key_dim};
    p.doutput = view(doutput, "gradient of the output", values);
    p.dfinal = view(dfinal, "gradient of the final state", state);
    p.boundaries = dense(boundaries, "boundary_states", {p.batch, p.segments * p.heads, p.key_dim, p.value_dim});
    p.dquery = output(dquery, "gradient of query", keys), p.dkey = output(dkey, "gradient of key", keys);
    p.dvalue = output(dvalue, "gradient of value", values);
    p.dlog_decay = view(dlog_decay, "gradient of log_decay", column);
    p.dgain = view(dgain, "gradient of input_gain", column);
    require(bool(gain) == bool(dgain) && bool(skip) == bool(dskip) && (initial_state || !dinitial),
            "a gradient is missing for an input that is there, or the other way round");
    if (dskip) p.dskip = dense(*dskip, "gradient of skip", {p.batch, p.heads});
    if (dinitial) p.dinitial = dense(*dinitial, "gradient of initial_state", state);
    nanobind::gil_scoped_release release;
    LENGTHEN_DISPATCH(ssd_backward(p));
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    using namespace lengthen;
    using nanobind::arg;
    m.def("ssd_forward", &forward, arg("query"), arg("key"), arg("value"), arg("log_decay"), arg("input_gain").none(),
          arg("skip").none(), arg("initial_state").none(), arg("output"), arg("final_state"), arg("boundary_states"),
          arg("segment"), arg("blocks"), arg("threads"));
    m.def("ssd_backward", &backward, arg("doutput"), arg("dfinal_state"), arg("query"), arg("key"), arg("value"),
          arg("log_decay"), arg("input_gain").none(), arg("skip").none(), arg("initial_state").none(),
          arg("boundary_states"), arg("dquery"), arg("dkey"), arg("dvalue"), arg("dlog_decay"),
          arg("dinput_gain").none(), arg("dskip").none(), arg("dinitial_state").none(), arg("segment"),
          arg("blocks"), arg("threads"));
}
