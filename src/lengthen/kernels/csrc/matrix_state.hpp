// What the kernels with a matrix state [key][value] of every head share. Included once for each instruction set,
// inside its namespace: hence no include guard.

namespace matrix_state {

constexpr int columns = W == 16 ? 4 : 2;  // vectors of values that pass a position together

// Positions t0 to t0 + n of one head; `ahead` says how many positions on the next chunk to be read lies.
INLINE void load_tile(float* out, const View& v, int64_t b, int64_t t0, int n, int64_t h, int size, int padded,
                      int64_t ahead) {
    load_rows(out, v, v.at(b, t0, h), v.strides[1], v.strides[3], n, size, padded, ahead * v.strides[1]);
}

// Calls body with the number of vectors as a constant, over all values.
template <class Body>
INLINE void over_values(int values, const Body& body) {
    int v0 = 0;
    for (; v0 + columns * W <= values; v0 += columns * W) body(std::integral_constant<int, columns>(), v0);
    for (; v0 < values; v0 += W) body(std::integral_constant<int, 1>(), v0);
}

// Calls body(b, first head, heads) for every task: one row's heads side by side, as many as the threads leave.
template <class Inputs, class Body>
INLINE void over_heads(const Inputs& s, const Body& body) {
    const int64_t share = (s.batch * s.heads + s.threads - 1) / s.threads;
    const int64_t group = std::min(s.heads, share), groups = (s.heads + group - 1) / group;
    parallel_for(s.batch * groups, s.threads, [&](int64_t task) {
        const int64_t first = task % groups * group;
        body(task / groups, first, std::min(group, s.heads - first));
    });
}

// A head's state between its tensor and a tile [key, padded][value, padded]; zeros where there is no tensor.
template <class Tiles>
INLINE void load_state(float* out, const View& view, int64_t b, int64_t h, const Tiles& x) {
    std::memset(out, 0, sizeof(float) * size_t(x.keys) * x.values);
    if (!view) return;
    for (int k = 0; k < x.K; ++k)
        load_row(out + int64_t(k) * x.values, view.at(b, h, k), view.element, view.strides[3], x.V, x.values);
}
template <class Tiles>
INLINE void store_state(float* out, const float* state, const Tiles& x) {
    for (int k = 0; k < x.K; ++k)
        std::memcpy(out + int64_t(k) * x.V, state + int64_t(k) * x.values, sizeof(float) * size_t(x.V));
}

}  // namespace matrix_state
