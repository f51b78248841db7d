// RWKV-7 for one instruction set: included once for each, inside its namespace.
// Dims: B batch, T positions, H heads, K key dim, V value dim. One task is some heads of one row, which take turns
// at every chunk, since their inputs lie side by side. Lanes are values, which never meet; `columns` vectors of them
// pass a position together. The state lies in the innermost cache: each position reads and writes it once, and the
// same pass forms what the next position needs of it.

#include "matrix_state.hpp"

namespace rwkv7_detail {

using namespace matrix_state;

constexpr int stretch = 16;  // positions whose states are kept at once on the way back

// One task's share of a chunk as float tiles: [position][key, padded] and [position][value, padded].
struct Tiles {
    int K, V, keys, values;  // the dims, and rounded up to whole vectors
    float *r, *coefficient, *kept, *k, *key, *a, *b, *v, *y, *gain, *zero;
    float *dy, *dr, *ddecay, *dk, *da, *db, *dv;
    float *removed;  // a^T h before each position of a stretch
};

INLINE void read_chunk(const Rwkv7& s, Tiles& x, int64_t b, int64_t h, int64_t t0, int n, int64_t ahead) {
    load_tile(x.r, s.receptance, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.coefficient, s.log_decay, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.key, s.key, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.a, s.a, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.b, s.b, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.v, s.value, b, t0, n, h, x.V, x.values, ahead);
    for (int t = 0; t < n; ++t) {
        x.gain[t] = 1.0f;
        if (s.gain) load_row(x.gain + t, s.gain.at(b, t0 + t, h), s.gain.element, 1, 1, 1);
        for (int i = 0; i < x.keys; i += W) {
            const int64_t at = int64_t(t) * x.keys + i;
            const vf c = decay_coefficient(load(x.coefficient + at));
            store(x.coefficient + at, c);
            // A row's decay is coefficient + kept, see decay_coefficient.
            store(x.kept + at, where_signed(c, fill(1.0f)));
            store(x.k + at, load(x.key + at) * x.gain[t]);
        }
    }
}

// Advances N vectors of values from position t0 to t1 of the chunk. Keep holds the states after each position in
// `states` and a^T h in x.removed; otherwise y is written.
template <int N, bool Keep>
INLINE void advance(const Tiles& x, int t0, int t1, int v0, float* state, float* states) {
    vf removed[N];
    for (int j = 0; j < N; ++j) removed[j] = vf{};
    for (int i = 0; i < x.keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j)
            removed[j] = fma(fill(x.a[int64_t(t0) * x.keys + i]), load(state + int64_t(i) * x.values + v0 + j * W),
                             removed[j]);
    for (int t = t0; t < t1; ++t) {
        const int64_t key = int64_t(t) * x.keys, value = int64_t(t) * x.values + v0;
        const float* a_next = t + 1 < t1 ? x.a + key + x.keys : x.zero;
        const float* from = Keep && t > t0 ? states + int64_t(t - t0 - 1) * x.keys * N * W : state + v0;
        float* to = Keep ? states + int64_t(t - t0) * x.keys * N * W : state + v0;
        const int64_t from_stride = Keep && t > t0 ? N * W : x.values, to_stride = Keep ? N * W : x.values;
        vf v[N], y[N], next[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            v[j] = load(x.v + value + j * W);
            y[j] = next[j] = vf{};
            if (Keep) store(x.removed + int64_t(t - t0) * x.values + v0 + j * W, removed[j]);
        }
        for (int i = 0; i < x.keys; ++i) {
            const vf c = fill(x.coefficient[key + i]), kept = fill(x.kept[key + i]), k = fill(x.k[key + i]),
                     b = fill(x.b[key + i]), r = fill(x.r[key + i]), a = fill(a_next[i]);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) {
                vf h = load(from + i * from_stride + j * W);
                h = fma(kept, h, fma(c, h, fma(b, removed[j], k * v[j])));
                store(to + i * to_stride + j * W, h);
                if (!Keep) y[j] = fma(r, h, y[j]);
                next[j] = fma(a, h, next[j]);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            removed[j] = next[j];
            if (!Keep) store(x.y + value + j * W, y[j]);
        }
    }
}

// The way back of N vectors of values from position t1 to t0 of the chunk; `start` is the state before t0.
template <int N>
INLINE void retreat(const Tiles& x, int t0, int t1, int v0, const float* start, const float* states, float* dstate) {
    // dstate becomes the gradient of the state after a position, all paths included, and dremoved that of a^T h.
    vf dremoved[N];
    for (int j = 0; j < N; ++j) dremoved[j] = vf{};
    const int64_t last = int64_t(t1 - 1);
    for (int i = 0; i < x.keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            float* place = dstate + int64_t(i) * x.values + v0 + j * W;
            const vf dh = fma(fill(x.r[last * x.keys + i]), load(x.dy + last * x.values + v0 + j * W), load(place));
            store(place, dh);
            dremoved[j] = fma(fill(x.b[last * x.keys + i]), dh, dremoved[j]);
        }
    for (int t = t1 - 1; t >= t0; --t) {
        const int64_t key = int64_t(t) * x.keys, value = int64_t(t) * x.values + v0;
        const float* here = states + int64_t(t - t0) * x.keys * N * W;
        const float* before = t > t0 ? here - int64_t(x.keys) * N * W : start + v0;
        const int64_t before_stride = t > t0 ? N * W : x.values;
        // The read of the position before joins where the decay is applied.
        const bool more = t > t0;
        const float* r_before = more ? x.r + key - x.keys : x.zero;
        const float* b_before = more ? x.b + key - x.keys : x.zero;
        vf v[N], dy[N], dy_before[N], removed[N], dv[N], next[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            v[j] = load(x.v + value + j * W);
            dy[j] = load(x.dy + value + j * W);
            dy_before[j] = more ? load(x.dy + value - x.values + j * W) : vf{};
            removed[j] = load(x.removed + int64_t(t - t0) * x.values + v0 + j * W);
            dv[j] = next[j] = vf{};
        }
        for (int i0 = 0; i0 < x.keys; i0 += 4) {
            vf dr[4], dk[4], da[4], db[4], ddecay[4];
            for (int u = 0; u < 4; ++u) {
                const int i = i0 + u;
                const vf c = fill(x.coefficient[key + i]), kept = fill(x.kept[key + i]), k = fill(x.k[key + i]),
                         a = fill(x.a[key + i]), r = fill(r_before[i]), b = fill(b_before[i]);
                dr[u] = dk[u] = da[u] = db[u] = ddecay[u] = vf{};
#pragma GCC unroll 4
                for (int j = 0; j < N; ++j) {
                    float* place = dstate + int64_t(i) * x.values + v0 + j * W;
                    const vf old = load(before + i * before_stride + j * W);
                    vf dh = load(place);
                    dr[u] = fma(load(here + int64_t(i) * N * W + j * W), dy[j], dr[u]);
                    dk[u] = fma(dh, v[j], dk[u]);
                    db[u] = fma(dh, removed[j], db[u]);
                    da[u] = fma(old, dremoved[j], da[u]);
                    ddecay[u] = fma(dh, old, ddecay[u]);
                    dv[j] = fma(k, dh, dv[j]);
                    dh = fma(kept, dh, fma(c, dh, fma(a, dremoved[j], r * dy_before[j])));
                    store(place, dh);
                    next[j] = fma(b, dh, next[j]);
                }
            }
            add_sums(x.dr + key + i0, dr);
            add_sums(x.dk + key + i0, dk);
            add_sums(x.da + key + i0, da);
            add_sums(x.db + key + i0, db);
            add_sums(x.ddecay + key + i0, ddecay);
        }
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            dremoved[j] = next[j];
            store(x.dv + value + j * W, dv[j]);
        }
    }
}

// The way back over a chunk of n positions: states between stretches first, then each stretch's states.
template <int N>
INLINE void backward_block(const Tiles& x, int n, int v0, float* state, float* dstate, float* starts, float* states) {
    const int64_t size = int64_t(x.keys) * x.values;
    const int stretches = (n + stretch - 1) / stretch;
    for (int i = 0; i < stretches; ++i) {
        std::memcpy(starts + i * size, state, sizeof(float) * size_t(size));
        if (i + 1 < stretches) advance<N, false>(x, i * stretch, (i + 1) * stretch, v0, state, nullptr);
    }
    for (int i = stretches - 1; i >= 0; --i) {
        const int t0 = i * stretch, t1 = std::min(n, t0 + stretch);
        advance<N, true>(x, t0, t1, v0, starts + i * size, states);
        retreat<N>(x, t0, t1, v0, starts + i * size, states, dstate);
    }
}

INLINE Tiles tiles_for(const Rwkv7& s, Scratch& scratch) {
    Tiles x{};
    x.K = int(s.K), x.V = int(s.V);
    x.keys = (x.K + W - 1) / W * W, x.values = (x.V + W - 1) / W * W;
    for (float** p : {&x.r, &x.coefficient, &x.kept, &x.k, &x.key, &x.a, &x.b}) *p = scratch.take(s.chunk * x.keys);
    for (float** p : {&x.v, &x.y}) *p = scratch.take(s.chunk * x.values);
    x.gain = scratch.take(s.chunk);
    x.zero = scratch.take(x.keys);
    std::memset(x.zero, 0, sizeof(float) * size_t(x.keys));
    return x;
}

}  // namespace rwkv7_detail

static void rwkv7_forward(const Rwkv7& s) {
    using namespace rwkv7_detail;
    over_heads(s, [&](int64_t b, int64_t first, int64_t heads) {
        Scratch& scratch = Scratch::of_this_thread();
        Tiles x = tiles_for(s, scratch);
        const int64_t size = int64_t(x.keys) * x.values;
        float* states = scratch.take(heads * size);
        for (int64_t i = 0; i < heads; ++i) load_state(states + i * size, s.initial, b, first + i, x);
        for (int64_t step = 0; step < s.chunks * heads; ++step) {
            const int64_t chunk = step / heads, h = first + step % heads, t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            float* state = states + step % heads * size;
            if (s.checkpoints)
                store_state(s.checkpoints + ((b * s.chunks + chunk) * s.heads + h) * s.K * s.V, state, x);
            read_chunk(s, x, b, h, t0, n, s.chunk);
            over_values(x.values, [&](auto width, int v0) {
                advance<decltype(width)::value, false>(x, 0, n, v0, state, nullptr);
            });
            for (int t = 0; t < n; ++t)
                store_row(s.y.at(b, t0 + t, h), x.y + int64_t(t) * x.values, s.y.element, 1, x.V, s.y.past_caches);
        }
        for (int64_t i = 0; i < heads; ++i)
            store_state(s.final_state + (b * s.heads + first + i) * s.K * s.V, states + i * size, x);
    });
}

static void rwkv7_backward(const Rwkv7& s) {
    using namespace rwkv7_detail;
    over_heads(s, [&](int64_t b, int64_t first, int64_t heads) {
        Scratch& scratch = Scratch::of_this_thread();
        Tiles x = tiles_for(s, scratch);
        for (float** p : {&x.dr, &x.ddecay, &x.dk, &x.da, &x.db}) *p = scratch.take(s.chunk * x.keys);
        for (float** p : {&x.dy, &x.dv}) *p = scratch.take(s.chunk * x.values);
        x.removed = scratch.take(stretch * x.values);
        const int64_t size = int64_t(x.keys) * x.values, stretches = (s.chunk + stretch - 1) / stretch;
        float *state = scratch.take(size), *dstates = scratch.take(heads * size);
        float *starts = scratch.take(stretches * size), *states = scratch.take(stretch * x.keys * columns * W);
        for (int64_t i = 0; i < heads; ++i) load_state(dstates + i * size, s.dfinal, b, first + i, x);
        View kept_states;
        kept_states.strides[2] = s.V, kept_states.strides[3] = 1;
        for (int64_t step = s.chunks * heads - 1; step >= 0; --step) {
            const int64_t chunk = step / heads, h = first + step % heads, t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            float* dstate = dstates + step % heads * size;
            kept_states.data = s.checkpoints + ((b * s.chunks + chunk) * s.heads + h) * s.K * s.V;
            load_state(state, kept_states, 0, 0, x);
            read_chunk(s, x, b, h, t0, n, -s.chunk);
            load_tile(x.dy, s.dy, b, t0, n, h, x.V, x.values, -s.chunk);
            for (float* p : {x.dr, x.ddecay, x.dk, x.da, x.db})
                std::memset(p, 0, sizeof(float) * size_t(n) * x.keys);
            over_values(x.values, [&](auto width, int v0) {
                backward_block<decltype(width)::value>(x, n, v0, state, dstate, starts, states);
            });
            for (int t = 0; t < n; ++t) {
                const int64_t key = int64_t(t) * x.keys;
                vf gain{};
                for (int i = 0; i < x.keys; i += W) {
                    const vf dk = load(x.dk + key + i);
                    const vf decay = load(x.coefficient + key + i) + load(x.kept + key + i);
                    store(x.ddecay + key + i, load(x.ddecay + key + i) * decay);
                    gain = fma(dk, load(x.key + key + i), gain);
                    store(x.dk + key + i, dk * x.gain[t]);
                }
                const auto put = [&](const View& out, const float* row, int size) {
                    store_row(out.at(b, t0 + t, h), row, out.element, 1, size, out.past_caches);
                };
                put(s.dreceptance, x.dr + key, x.K);
                put(s.dlog_decay, x.ddecay + key, x.K);
                put(s.dkey, x.dk + key, x.K);
                put(s.dvalue, x.dv + int64_t(t) * x.values, x.V);
                put(s.da, x.da + key, x.K);
                put(s.db, x.db + key, x.K);
                if (s.gain) {
                    const float dgain = sum(gain);
                    store_row(s.dgain.at(b, t0 + t, h), &dgain, s.dgain.element, 1, 1);
                }
            }
        }
        for (int64_t i = 0; i < heads; ++i)
            store_state(s.dinitial + (b * s.heads + first + i) * s.K * s.V, dstates + i * size, x);
    });
}
