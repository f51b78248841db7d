// Gated linear attention for one instruction set: included once for each, inside its namespace.
// Dims: B batch, T positions, H heads, K key dim, V value dim. One task is some heads of one row, which take turns
// at every chunk, since their inputs lie side by side. Lanes are values; a block of `rows` keys times `columns`
// vectors of values stays in registers while a chunk of positions passes.

#include "matrix_state.hpp"

namespace gated_linear_attention_detail {

using namespace matrix_state;

constexpr int rows = 4;

// One task's share of a chunk as float tiles: [position][key, padded] and [position][value, padded].
struct Tiles {
    int K, V, keys, values;  // the dims, and rounded up to whole rows and vectors
    float *q, *k, *key, *coefficient, *kept, *v, *y, *gain;
    float *dy, *dq, *dk, *ddecay, *dv;
    float *bonus, *dbonus;
};

INLINE void read_chunk(const GatedLinearAttention& s, Tiles& x, int64_t b, int64_t h, int64_t t0, int n,
                       int64_t ahead) {
    load_tile(x.q, s.query, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.key, s.key, b, t0, n, h, x.K, x.keys, ahead);
    load_tile(x.coefficient, s.log_decay, b, t0, n, h, x.K, x.keys, ahead);
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

// y += bonus-weighted q.k times v: the current position's own share.
INLINE float bonus_weight(const Tiles& x, int t) {
    vf total{};
    for (int i = 0; i < x.keys; i += W) {
        const int64_t at = int64_t(t) * x.keys + i;
        total = fma(load(x.q + at) * load(x.bonus + i), load(x.key + at), total);
    }
    return sum(total);
}

// Advances a block of the state over the chunk; adds to y, or keeps the state after each position for the way back.
template <int N, bool Bonus, bool Keep>
INLINE void advance(const Tiles& x, int n, int k0, int v0, float* state, float* states) {
    vf h[rows][N];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) h[r][j] = load(state + int64_t(k0 + r) * x.values + v0 + j * W);
    for (int t = 0; t < n; ++t) {
        const int64_t key = int64_t(t) * x.keys + k0, value = int64_t(t) * x.values + v0;
        vf v[N], y[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) v[j] = load(x.v + value + j * W);
        if (!Keep)
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) y[j] = load(x.y + value + j * W);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vf c = fill(x.coefficient[key + r]), kept = fill(x.kept[key + r]), k = fill(x.k[key + r]),
                     q = fill(x.q[key + r]);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) {
                if (!Keep && Bonus) y[j] = fma(q, h[r][j], y[j]);
                h[r][j] = fma(kept, h[r][j], fma(c, h[r][j], k * v[j]));
                if (!Keep && !Bonus) y[j] = fma(q, h[r][j], y[j]);
                if (Keep) store(states + ((int64_t(t) * rows + r) * N + j) * W, h[r][j]);
            }
        }
        if (!Keep)
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) store(x.y + value + j * W, y[j]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) store(state + int64_t(k0 + r) * x.values + v0 + j * W, h[r][j]);
}

// The way back of a block over a chunk. `start` is the block's state before the chunk, in the layout of `states`.
template <int N, bool Bonus>
INLINE void retreat(const Tiles& x, int n, int k0, int v0, const float* start, const float* states, float* dstate) {
    // Between two positions dh is the gradient of the state that passes, all paths included. The first position's
    // read (with a bonus, of the state before it) joins on the way in, each other's where the decay is applied.
    vf dh[rows][N];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        const vf q = fill(Bonus ? 0.0f : x.q[int64_t(n - 1) * x.keys + k0 + r]);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j)
            dh[r][j] = fma(q, load(x.dy + int64_t(n - 1) * x.values + v0 + j * W),
                           load(dstate + int64_t(k0 + r) * x.values + v0 + j * W));
    }
    for (int t = n - 1; t >= 0; --t) {
        const int64_t key = int64_t(t) * x.keys + k0, value = int64_t(t) * x.values + v0;
        const float* here = states + int64_t(t) * rows * N * W;
        const float* before = t > 0 ? here - rows * N * W : start;
        vf v[N], dy[N], dv[N], dq[rows], dk[rows], ddecay[rows];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            v[j] = load(x.v + value + j * W);
            dy[j] = load(x.dy + value + j * W);
            dv[j] = load(x.dv + value + j * W);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vf k = fill(x.k[key + r]);
            dq[r] = dk[r] = ddecay[r] = vf{};
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) {
                const vf old = load(before + (r * N + j) * W);
                dq[r] = fma(dy[j], Bonus ? old : load(here + (r * N + j) * W), dq[r]);
                dk[r] = fma(dh[r][j], v[j], dk[r]);
                ddecay[r] = fma(dh[r][j], old, ddecay[r]);
                dv[j] = fma(k, dh[r][j], dv[j]);
            }
        }
        add_sums(x.dq + key, dq);
        add_sums(x.dk + key, dk);
        add_sums(x.ddecay + key, ddecay);
        const int read = Bonus ? t : std::max(t - 1, 0);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            store(x.dv + value + j * W, dv[j]);
            dy[j] = load(x.dy + int64_t(read) * x.values + v0 + j * W);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vf c = fill(x.coefficient[key + r]), kept = fill(x.kept[key + r]);
            const vf q = fill(Bonus || t > 0 ? x.q[int64_t(read) * x.keys + k0 + r] : 0.0f);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) dh[r][j] = fma(kept, dh[r][j], fma(c, dh[r][j], q * dy[j]));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) store(dstate + int64_t(k0 + r) * x.values + v0 + j * W, dh[r][j]);
}

template <int N, bool Bonus>
INLINE void forward_block(const Tiles& x, int n, int v0, float* state) {
    for (int k0 = 0; k0 < x.keys; k0 += rows) advance<N, Bonus, false>(x, n, k0, v0, state, nullptr);
}

template <int N, bool Bonus>
INLINE void backward_block(const Tiles& x, int n, int v0, float* state, float* dstate, float* start, float* states) {
    for (int k0 = 0; k0 < x.keys; k0 += rows) {
        for (int r = 0; r < rows; ++r)
            std::memcpy(start + r * N * W, state + int64_t(k0 + r) * x.values + v0, sizeof(float) * N * W);
        advance<N, Bonus, true>(x, n, k0, v0, state, states);
        retreat<N, Bonus>(x, n, k0, v0, start, states, dstate);
    }
}

INLINE void load_bonus(const GatedLinearAttention& s, const Tiles& x, int64_t h) {
    if (s.bonus) load_row(x.bonus, s.bonus.at(h), s.bonus.element, s.bonus.strides[1], x.K, x.keys);
}

INLINE Tiles tiles_for(const GatedLinearAttention& s, Scratch& scratch) {
    Tiles x{};
    x.K = int(s.K), x.V = int(s.V);
    x.keys = (x.K + W - 1) / W * W, x.values = (x.V + W - 1) / W * W;
    for (float** p : {&x.q, &x.k, &x.key, &x.coefficient, &x.kept}) *p = scratch.take(s.chunk * x.keys);
    for (float** p : {&x.v, &x.y}) *p = scratch.take(s.chunk * x.values);
    x.gain = scratch.take(s.chunk);
    x.bonus = scratch.take(x.keys);
    return x;
}

}  // namespace gated_linear_attention_detail

static void gated_linear_attention_forward(const GatedLinearAttention& s) {
    using namespace gated_linear_attention_detail;
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
            load_bonus(s, x, h);
            if (s.checkpoints)
                store_state(s.checkpoints + ((b * s.chunks + chunk) * s.heads + h) * s.K * s.V, state, x);
            read_chunk(s, x, b, h, t0, n, s.chunk);
            for (int t = 0; t < n; ++t) {
                const vf weight = fill(s.bonus ? bonus_weight(x, t) : 0.0f);
                for (int i = 0; i < x.values; i += W)
                    store(x.y + int64_t(t) * x.values + i, weight * load(x.v + int64_t(t) * x.values + i));
            }
            over_values(x.values, [&](auto width, int v0) {
                if (s.bonus)
                    forward_block<decltype(width)::value, true>(x, n, v0, state);
                else
                    forward_block<decltype(width)::value, false>(x, n, v0, state);
            });
            for (int t = 0; t < n; ++t)
                store_row(s.y.at(b, t0 + t, h), x.y + int64_t(t) * x.values, s.y.element, 1, x.V, s.y.past_caches);
        }
        for (int64_t i = 0; i < heads; ++i)
            store_state(s.final_state + (b * s.heads + first + i) * s.K * s.V, states + i * size, x);
    });
}

static void gated_linear_attention_backward(const GatedLinearAttention& s) {
    using namespace gated_linear_attention_detail;
    over_heads(s, [&](int64_t b, int64_t first, int64_t heads) {
        Scratch& scratch = Scratch::of_this_thread();
        Tiles x = tiles_for(s, scratch);
        for (float** p : {&x.dq, &x.dk, &x.ddecay}) *p = scratch.take(s.chunk * x.keys);
        for (float** p : {&x.dy, &x.dv}) *p = scratch.take(s.chunk * x.values);
        const int64_t size = int64_t(x.keys) * x.values;
        float *state = scratch.take(size), *dstates = scratch.take(heads * size);
        float* dbonuses = scratch.take(heads * x.keys);
        float *start = scratch.take(rows * columns * W), *states = scratch.take(s.chunk * rows * columns * W);
        std::memset(dbonuses, 0, sizeof(float) * size_t(heads) * x.keys);
        for (int64_t i = 0; i < heads; ++i) load_state(dstates + i * size, s.dfinal, b, first + i, x);
        View kept_states;
        kept_states.strides[2] = s.V, kept_states.strides[3] = 1;
        for (int64_t step = s.chunks * heads - 1; step >= 0; --step) {
            const int64_t chunk = step / heads, h = first + step % heads, t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            float* dstate = dstates + step % heads * size;
            x.dbonus = dbonuses + step % heads * x.keys;
            load_bonus(s, x, h);
            kept_states.data = s.checkpoints + ((b * s.chunks + chunk) * s.heads + h) * s.K * s.V;
            load_state(state, kept_states, 0, 0, x);
            read_chunk(s, x, b, h, t0, n, -s.chunk);
            load_tile(x.dy, s.dy, b, t0, n, h, x.V, x.values, -s.chunk);
            for (float* p : {x.dq, x.dk, x.ddecay}) std::memset(p, 0, sizeof(float) * size_t(n) * x.keys);
            std::memset(x.dv, 0, sizeof(float) * size_t(n) * x.values);
            over_values(x.values, [&](auto width, int v0) {
                if (s.bonus)
                    backward_block<decltype(width)::value, true>(x, n, v0, state, dstate, start, states);
                else
                    backward_block<decltype(width)::value, false>(x, n, v0, state, dstate, start, states);
            });
            for (int t = 0; t < n; ++t) {
                const int64_t value = int64_t(t) * x.values, key = int64_t(t) * x.keys;
                vf own{}, gain{};
                float weight = 0.0f;
                if (s.bonus) {
                    weight = bonus_weight(x, t);
                    for (int i = 0; i < x.values; i += W) {
                        own = fma(load(x.v + value + i), load(x.dy + value + i), own);
                        store(x.dv + value + i, fma(fill(weight), load(x.dy + value + i), load(x.dv + value + i)));
                    }
                }
                const vf dweight = fill(s.bonus ? sum(own) : 0.0f);
                for (int i = 0; i < x.keys; i += W) {
                    const int64_t at = key + i;
                    const vf q = load(x.q + at), k = load(x.key + at), dk = load(x.dk + at);
                    const vf decay = load(x.coefficient + at) + load(x.kept + at);
                    store(x.ddecay + at, load(x.ddecay + at) * decay);
                    gain = fma(dk, k, gain);
                    vf dkey = dk * x.gain[t];
                    if (s.bonus) {
                        const vf bonus = load(x.bonus + i);
                        store(x.dbonus + i, fma(q * k, dweight, load(x.dbonus + i)));
                        store(x.dq + at, fma(bonus * k, dweight, load(x.dq + at)));
                        dkey = fma(bonus * q, dweight, dkey);
                    }
                    store(x.dk + at, dkey);
                }
                store_row(s.dquery.at(b, t0 + t, h), x.dq + key, s.dquery.element, 1, x.K, s.dquery.past_caches);
                store_row(s.dkey.at(b, t0 + t, h), x.dk + key, s.dkey.element, 1, x.K, s.dkey.past_caches);
                store_row(s.dlog_decay.at(b, t0 + t, h), x.ddecay + key, s.dlog_decay.element, 1, x.K, s.dlog_decay.past_caches);
                store_row(s.dvalue.at(b, t0 + t, h), x.dv + value, s.dvalue.element, 1, x.V, s.dvalue.past_caches);
                if (s.gain) {
                    const float dgain = sum(gain);
                    store_row(s.dgain.at(b, t0 + t, h), &dgain, s.dgain.element, 1, 1);
                }
            }
        }
        for (int64_t i = 0; i < heads; ++i) {
            store_state(s.dinitial + (b * s.heads + first + i) * s.K * s.V, dstates + i * size, x);
            std::memcpy(s.dbonus + (b * s.heads + first + i) * s.K, dbonuses + i * x.keys,
                        sizeof(float) * size_t(x.K));
        }
    });
}
