// The gated delta rule with one decay per head for one instruction set: chunks of matrix products and triangular
// solves that stay in the cache. Dims: B batch, T positions, H heads, K key dim, V value dim; n positions of a chunk.
// With L the decays of pairs, S = q k^T and R = k k^T of a chunk, h the state before it, a_t its decay up to t:
//     predicted_t = a_t h^T k_t + sum_{s<t} L[t,s] R[t,s] u_s        u_t = beta_t (gain_t v_t - predicted_t)
//     y_t = a_t h^T q_t + sum_{s<=t} L[t,s] S[t,s] u_s               state: k_t u_t^T is written at t
// One task is one head of one row of the batch.

#include "chunks.hpp"

namespace gated_delta_rule_detail {

struct Chunk {
    Decays decays;
    float *beta, *gain;                   // [chunk]
    float *query, *key;                   // [position][key_width]
    float *value;                         // [position][value_width]
    float *reads, *overlaps;              // L S with the diagonal, L R below it; [row][column]
    float *transposed;                    // [key_width][chunk]
    float *rest, *update, *update_out;    // gain v - predicted, u, u decayed to the chunk's end; [position][value_width]
    float *result;                        // [position][value_width]
    int64_t key_width, value_width;
};

INLINE Chunk make_chunk(const GatedDeltaRule& p, Scratch& scratch) {
    Chunk c{};
    c.key_width = padded_columns(p.key_dim), c.value_width = padded_columns(p.value_dim);
    c.decays = make_decays(scratch);
    c.beta = scratch.take(chunk), c.gain = scratch.take(chunk);
    c.query = scratch.take(chunk * c.key_width), c.key = scratch.take(chunk * c.key_width);
    c.transposed = scratch.take(chunk * c.key_width);
    c.value = scratch.take(chunk * c.value_width);
    c.reads = scratch.take(chunk * chunk), c.overlaps = scratch.take(chunk * chunk);
    c.rest = scratch.take(chunk * c.value_width), c.update = scratch.take(chunk * c.value_width);
    c.update_out = scratch.take(chunk * c.value_width), c.result = scratch.take(chunk * c.value_width);
    return c;
}

// Reads a chunk's inputs and forms the products of its queries and keys.
INLINE void read_chunk(const GatedDeltaRule& p, Chunk& c, int64_t b, int64_t t0, int64_t n, int64_t h) {
    if (p.log_decay)
        load_column(c.decays.log_decay, p.log_decay, b, t0, n, h, 0.0f);
    else
        for (int t = 0; t < chunk; t += W) store(c.decays.log_decay + t, vf{});
    read_decays(c.decays, n);
    load_column(c.beta, p.beta, b, t0, n, h, 0.0f);
    if (p.gain)
        load_column(c.gain, p.gain, b, t0, n, h, 0.0f);
    else
        for (int t = 0; t < chunk; t += W) store(c.gain + t, fill(1.0f));
    load_rows(c.query, p.query, b, t0, n, h, p.key_dim, c.key_width);
    load_rows(c.key, p.key, b, t0, n, h, p.key_dim, c.key_width);
    load_rows(c.value, p.value, b, t0, n, h, p.value_dim, c.value_width);
    transpose(c.transposed, chunk, c.key, c.key_width, n, p.key_dim);
    const auto below = [](int64_t row) { return padded_to(row + tile_rows, W); };
    const auto pairs = [&](const float* left, float* products) {
        for_tiles(padded_rows(n), below, [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(left + row * c.key_width, c.key_width, 1, c.transposed + column, chunk, p.key_dim);
            for_vectors(tile, [&](int r, int v) {
                const int64_t at = (row + r) * chunk + column + v * W;
                store(products + at, tile.at[r][v] * load(c.decays.pair_decay + at));
            });
        });
    };
    pairs(c.query, c.reads);
    pairs(c.key, c.overlaps);
    for (int64_t t = 0; t < padded_rows(n); ++t) c.overlaps[t * chunk + t] = 0.0f;
}

// Solves for what is written at each position, from the state before the chunk.
INLINE void solve_updates(const GatedDeltaRule& p, Chunk& c, int64_t n, const float* state) {
    const int64_t width = c.value_width;
    for_tiles(
        padded_rows(n), [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            constexpr int vectors = sizeof(tile.at[0]) / sizeof(vf);
            tile.add_product(c.key + row * c.key_width, c.key_width, 1, state + column, width, p.key_dim);
            tile.scale_rows(c.decays.decay_in + row);
            tile.add_product(c.overlaps + row * chunk, chunk, 1, c.update + column, width, row);
            for (int r = 0; r < tile_rows; ++r) {
                const float* overlaps = c.overlaps + (row + r) * chunk + row;
                const vf gain = fill(c.gain[row + r]), beta = fill(c.beta[row + r]);
                const vf out = fill(c.decays.decay_out[row + r]);
                for (int v = 0; v < vectors; ++v) {
                    const int64_t at = (row + r) * width + column + v * W;
                    vf predicted = tile.at[r][v];
                    for (int s = 0; s < r; ++s) predicted = fma(fill(overlaps[s]), tile.at[s][v], predicted);
                    const vf rest = fma(gain, load(c.value + at), -predicted);
                    tile.at[r][v] = beta * rest;
                    store(c.rest + at, rest);
                    store(c.update + at, tile.at[r][v]);
                    store(c.update_out + at, out * tile.at[r][v]);
                }
            }
        });
}

INLINE void advance(const Chunk& c, int64_t n, const float* before, float* after) {
    const int64_t width = c.value_width;
    for_tiles(
        c.key_width, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(c.key + row, 1, c.key_width, c.update_out + column, width, n);
            for_vectors(tile, [&](int r, int v) {
                const int64_t at = (row + r) * width + column + v * W;
                store(after + at, decayed(c.decays.decay, load(before + at)) + tile.at[r][v]);
            });
        });
}

INLINE void write_output(const GatedDeltaRule& p, const Chunk& c, int64_t n, const float* state, int64_t b, int64_t t0,
                         int64_t h) {
    const int64_t width = c.value_width;
    for_tiles(
        padded_rows(n), [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(c.query + row * c.key_width, c.key_width, 1, state + column, width, p.key_dim);
            tile.scale_rows(c.decays.decay_in + row);
            tile.add_product(c.reads + row * chunk, chunk, 1, c.update + column, width, row + tile_rows);
            for_vectors(tile, [&](int r, int v) {
                store(c.result + (row + r) * width + column + v * W, tile.at[r][v]);
            });
        });
    for (int64_t t = 0; t < n; ++t)
        store_row(p.output.at(b, t0 + t, h), c.result + t * width, p.output.element, 1, int(p.value_dim));
}

}  // namespace gated_delta_rule_detail

inline void gated_delta_rule_forward(const GatedDeltaRule& p) {
    using namespace gated_delta_rule_detail;
    parallel_for(p.batch * p.heads, p.threads, [&](int64_t task) {
        const int64_t b = task / p.heads, h = task % p.heads, state_size = p.key_dim * p.value_dim;
        Scratch& scratch = Scratch::of_this_thread();
        Chunk c = make_chunk(p, scratch);
        float* state = scratch.take(c.key_width * c.value_width);
        load_state(state, p.initial, b, h, p.key_dim, p.value_dim, c.key_width, c.value_width);
        for (int64_t t0 = 0; t0 < p.positions; t0 += chunk) {
            if (t0 && t0 % p.segment == 0)
                store_state(p.boundaries + ((b * p.segments + t0 / p.segment - 1) * p.heads + h) * state_size, state,
                            p.key_dim, p.value_dim, c.value_width);
            const int64_t n = rows_of_chunk(t0, p.positions);
            read_chunk(p, c, b, t0, n, h);
            solve_updates(p, c, n, state);
            write_output(p, c, n, state, b, t0, h);
            advance(c, n, state, state);
        }
        store_state(p.final_state + task * state_size, state, p.key_dim, p.value_dim, c.value_width);
    });
}
