// What the recurrences in chunks share: the decays of a chunk, and rows of tensors as padded tiles.
// Included once for each instruction set, inside its namespace: hence no include guard.

#include "products.hpp"

constexpr int chunk = 64;

// The decays of one head's chunk.
struct Decays {
    float *log_decay;               // [chunk]
    float *decay_in, *decay_out;    // exp of the sums up to a position, and after it
    float *pair_decay;              // L: [row][column], exp of the sum after the column's position up to the row's
    vf decay;                       // coefficient of the whole chunk, see decay_coefficient()
};

INLINE int64_t rows_of_chunk(int64_t first, int64_t end) { return end - first < chunk ? end - first : chunk; }

INLINE void load_rows(float* tile, const View& v, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t columns,
                      int64_t width) {
    for (int64_t t = 0; t < n; ++t)
        load_row(tile + t * width, v.at(b, t0 + t, h), v.element, v.strides[3], int(columns), int(width));
    for (int64_t i = n * width; i < chunk * width; i += W) store(tile + i, vf{});
}

INLINE void load_column(float* out, const View& v, int64_t b, int64_t t0, int64_t n, int64_t h, float rest) {
    for (int64_t t = 0; t < n; ++t) {
        const char* p = v.at(b, t0 + t, h);
        out[t] = v.element == Element::float32 ? *reinterpret_cast<const float*>(p)
                                               : widen(*reinterpret_cast<const uint16_t*>(p));
    }
    for (int64_t t = n; t < chunk; ++t) out[t] = rest;
}

INLINE void store_number(const View& v, int64_t b, int64_t t, int64_t h, float x) {
    char* p = v.at(b, t, h);
    if (v.element == Element::float32)
        *reinterpret_cast<float*>(p) = x;
    else
        *reinterpret_cast<uint16_t*>(p) = narrow(x);
}

INLINE Decays make_decays(Scratch& scratch) {
    Decays d{};
    d.log_decay = scratch.take(chunk), d.decay_in = scratch.take(chunk), d.decay_out = scratch.take(chunk);
    d.pair_decay = scratch.take(chunk * chunk);
    return d;
}

// Every decay of a chunk from its log-decays. A pair's decay is a running product, begun anew from the exponential
// of its exact sum every 16 rows: nothing is a difference of sums, so that -inf and tiny decays need no care.
INLINE void read_decays(Decays& d, int64_t n) {
    double sum = 0;
    for (int t = 0; t < chunk; ++t) d.decay_in[t] = float(sum += d.log_decay[t]);
    const vf whole = fill(float(sum));
    sum = 0;
    for (int t = chunk; t-- > 0;) {
        d.decay_out[t] = float(sum);
        sum += d.log_decay[t];
    }
    float decays[chunk], sums[chunk];
    for (int t = 0; t < chunk; t += W) {
        store(d.decay_in + t, exp(load(d.decay_in + t)));
        store(d.decay_out + t, exp(load(d.decay_out + t)));
        store(decays + t, exp(load(d.log_decay + t)));
        store(sums + t, vf{});
    }
    d.decay = decay_coefficient(whole);
    const int64_t rows = padded_rows(n);
    for (int64_t t = 0; t < rows; ++t) {
        float* row = d.pair_decay + t * chunk;
        const vf log = fill(d.log_decay[t]), decay = fill(decays[t]);
        const bool anew = t % 16 == 0;
        for (int s = 0; s < chunk; s += W) {
            if (s > t) {
                store(row + s, vf{});
                continue;
            }
            const vf total = load(sums + s) + log;
            store(sums + s, total);
            if (anew)
                store(row + s, s < t ? exp(total) : vf{});
            else
                store(row + s, load(row + s - chunk) * decay);
        }
        row[t] = 1.0f;
        sums[t] = 0.0f;
    }
}

INLINE void load_state(float* state, const View& v, int64_t b, int64_t h, int64_t K, int64_t V, int64_t rows,
                       int64_t width) {
    for (int64_t k = 0; k < K && v; ++k)
        load_row(state + k * width, v.at(b, h, k), v.element, v.strides[3], int(V), int(width));
    for (int64_t i = v ? K * width : 0; i < rows * width; i += W) store(state + i, vf{});
}

INLINE void store_state(float* target, const float* state, int64_t K, int64_t V, int64_t width) {
    for (int64_t k = 0; k < K; ++k)
        store_row(reinterpret_cast<char*>(target + k * V), state + k * width, Element::float32, 1, int(V));
}

// The gradient of each log-decay is the sum of what flows across its position: `cross` of the pairs (t, s) with s
// before it and t not, what t reads from the state before the chunk, what s leaves in the state after it, and the
// carried state. Reads and leavings are [position][W] partial sums.
INLINE void write_decay_gradient(const View& gradient, const float* cross, const float* read_sums,
                                 const float* left_sums, float carried, int64_t b, int64_t t0, int64_t n, int64_t h) {
    float across[chunk], columns[chunk];
    double after = 0;
    vi lanes;
    for (int i = 0; i < W; ++i) lanes[i] = i;
    for (int s = 0; s < chunk; s += W) store(columns + s, vf{});
    for (int64_t u = n; u-- > 0;) {
        vf total = vf{};
        for (int s = 0; s <= u; s += W) {
            const vf column = load(columns + s) + load(cross + u * chunk + s);
            store(columns + s, column);
            total += lanes < int32_t(u - s) ? column : vf{};
        }
        after += sum(load(read_sums + u * W));
        across[u] = float(double(sum(total)) + after);
    }
    double before = 0;
    for (int64_t u = 0; u < n; ++u) {
        store_number(gradient, b, t0 + u, h, float(double(across[u]) + before + double(carried)));
        before += sum(load(left_sums + u * W));
    }
}
