// The gradients of the gated delta rule for one instruction set; dims and tiles as in gated_delta_rule_kernel.hpp.
// Segments are taken from the last to the first: the states before the chunks are recomputed from the segment's
// first, then the chunks pass backwards with the gradient of the state.

namespace gated_delta_rule_detail {

struct Gradients {
    float *dy, *dread, *dupdate, *dpredicted, *dpredicted_in;  // [position][value_width]
    float *dreads, *doverlaps, *cross;                         // [row][column]
    float *dquery, *dkey;                                      // [position][key_width]
    float *state_transposed, *update_transposed;
    float *read_sums, *left_sums;
};

INLINE Gradients make_gradients(const Chunk& c, Scratch& scratch) {
    Gradients g{};
    for (float** tile : {&g.dy, &g.dread, &g.dupdate, &g.dpredicted, &g.dpredicted_in})
        *tile = scratch.take(chunk * c.value_width);
    for (float** tile : {&g.dreads, &g.doverlaps, &g.cross}) *tile = scratch.take(chunk * chunk);
    for (float** tile : {&g.dquery, &g.dkey}) *tile = scratch.take(chunk * c.key_width);
    g.state_transposed = scratch.take(c.key_width * c.value_width);
    g.update_transposed = scratch.take(c.value_width * chunk);
    g.read_sums = scratch.take(chunk * W), g.left_sums = scratch.take(chunk * W);
    return g;
}

// The gradient of every update, then of every prediction: the transposed triangular system, from the last row up.
INLINE void solve_gradients(const GatedDeltaRule& p, const Chunk& c, Gradients& g, int64_t n, const float* dstate) {
    const int64_t width = c.value_width, rows = padded_rows(n);
    for (int64_t row = rows - tile_rows; row >= 0; row -= tile_rows)
        for_tiles(
            tile_rows, [&](int64_t) { return width; },
            [&](auto& tile, int64_t, int64_t column) {
                constexpr int vectors = sizeof(tile.at[0]) / sizeof(vf);
                const int64_t next = row + tile_rows;
                tile.add_product(c.key + row * c.key_width, c.key_width, 1, dstate + column, width, p.key_dim);
                tile.scale_rows(c.decays.decay_out + row);
                tile.add_product(c.reads + row * chunk + row, 1, chunk, g.dy + row * width + column, width,
                                 rows - row);
                tile.add_product(c.overlaps + next * chunk + row, 1, chunk, g.dpredicted + next * width + column,
                                 width, rows - next);
                for (int r = tile_rows; r-- > 0;) {
                    const vf beta = fill(-c.beta[row + r]), in = fill(c.decays.decay_in[row + r]);
                    for (int v = 0; v < vectors; ++v) {
                        const int64_t at = (row + r) * width + column + v * W;
                        vf dupdate = tile.at[r][v];
                        for (int t = r + 1; t < tile_rows; ++t)
                            dupdate = fma(fill(c.overlaps[(row + t) * chunk + row + r]), tile.at[t][v], dupdate);
                        store(g.dupdate + at, dupdate);
                        tile.at[r][v] = beta * dupdate;
                        store(g.dpredicted + at, tile.at[r][v]);
                        store(g.dpredicted_in + at, in * tile.at[r][v]);
                    }
                }
            });
}

// target (+)= left right^T for a transposed right, and sums of its products with `with` for each position.
template <bool Add>
INLINE void key_gradient(float* target, const float* left, const float* transposed, const float* with, float* sums,
                         const Chunk& c, int64_t n, int64_t value_dim) {
    const int64_t keys = c.key_width, width = c.value_width;
    for_tiles(
        padded_rows(n), [&](int64_t) { return keys; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(left + row * width, width, 1, transposed + column, keys, value_dim);
            for_vectors(tile, [&](int r, int v) {
                const int64_t at = (row + r) * keys + column + v * W;
                float* sum = sums + (row + r) * W;
                store(sum, fma(tile.at[r][v], load(with + at), load(sum)));
                store(target + at, Add ? load(target + at) + tile.at[r][v] : tile.at[r][v]);
            });
        });
}

// The gradients of the pairs' products, and through them of queries and keys.
INLINE void pair_gradients(const GatedDeltaRule& p, const Chunk& c, Gradients& g, int64_t n) {
    const int64_t keys = c.key_width, width = c.value_width, rows = padded_rows(n);
    transpose(g.update_transposed, chunk, c.update, width, rows, width);
    const auto below = [](int64_t row) { return padded_to(row + tile_rows, W); };
    for_tiles(rows, below, [&](auto& tile, int64_t row, int64_t column) {
        tile.add_product(g.dy + row * width, width, 1, g.update_transposed + column, chunk, p.value_dim);
        for_vectors(tile, [&](int r, int v) {
            const int64_t at = (row + r) * chunk + column + v * W;
            store(g.cross + at, tile.at[r][v] * load(c.reads + at));
            store(g.dreads + at, tile.at[r][v] * load(c.decays.pair_decay + at));
        });
    });
    for_tiles(rows, below, [&](auto& tile, int64_t row, int64_t column) {
        tile.add_product(g.dpredicted + row * width, width, 1, g.update_transposed + column, chunk, p.value_dim);
        for_vectors(tile, [&](int r, int v) {
            const int64_t at = (row + r) * chunk + column + v * W;
            store(g.cross + at, fma(tile.at[r][v], load(c.overlaps + at), load(g.cross + at)));
            store(g.doverlaps + at, tile.at[r][v] * load(c.decays.pair_decay + at));
        });
    });
    for (int64_t t = 0; t < rows; ++t) g.doverlaps[t * chunk + t] = 0.0f;
    for_tiles(
        rows, [&](int64_t) { return keys; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(g.dreads + row * chunk, chunk, 1, c.key + column, keys, row + tile_rows);
            for_vectors(tile, [&](int r, int v) {
                float* target = g.dquery + (row + r) * keys + column + v * W;
                store(target, load(target) + tile.at[r][v]);
            });
        });
    for_tiles(
        rows, [&](int64_t) { return keys; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(g.doverlaps + row * chunk, chunk, 1, c.key + column, keys, row + tile_rows);
            tile.add_product(g.dreads + row * chunk + row, 1, chunk, c.query + row * keys + column, keys, rows - row);
            tile.add_product(g.doverlaps + row * chunk + row, 1, chunk, c.key + row * keys + column, keys, rows - row);
            for_vectors(tile, [&](int r, int v) {
                float* target = g.dkey + (row + r) * keys + column + v * W;
                store(target, load(target) + tile.at[r][v]);
            });
        });
}

INLINE void write_gradients(const GatedDeltaRule& p, const Chunk& c, const Gradients& g, int64_t b, int64_t t0,
                            int64_t n, int64_t h) {
    const int64_t width = c.value_width;
    for (int64_t t = 0; t < n; ++t) {
        vf beta_sum = vf{}, gain_sum = vf{};
        const vf scale = fill(c.beta[t] * c.gain[t]);
        for (int64_t i = t * width; i < (t + 1) * width; i += W) {
            const vf dupdate = load(g.dupdate + i);
            beta_sum = fma(dupdate, load(c.rest + i), beta_sum);
            gain_sum = fma(dupdate, load(c.value + i), gain_sum);
            store(c.result + i, scale * dupdate);
        }
        store_number(p.dbeta, b, t0 + t, h, sum(beta_sum));
        if (p.gain) store_number(p.dgain, b, t0 + t, h, c.beta[t] * sum(gain_sum));
        store_row(p.dvalue.at(b, t0 + t, h), c.result + t * width, p.dvalue.element, 1, int(p.value_dim));
        store_row(p.dquery.at(b, t0 + t, h), g.dquery + t * c.key_width, p.dquery.element, 1, int(p.key_dim));
        store_row(p.dkey.at(b, t0 + t, h), g.dkey + t * c.key_width, p.dkey.element, 1, int(p.key_dim));
    }
}

// Takes dstate from after a solved chunk to before it, and writes the chunk's gradients.
INLINE void chunk_backward(const GatedDeltaRule& p, const Chunk& c, Gradients& g, const float* state, float* dstate,
                           int64_t b, int64_t t0, int64_t n, int64_t h) {
    const int64_t width = c.value_width, keys = c.key_width;
    load_rows(g.dy, p.doutput, b, t0, n, h, p.value_dim, width);
    scale_rows(g.dread, g.dy, c.decays.decay_in, chunk, width);
    solve_gradients(p, c, g, n, dstate);
    for (int64_t i = 0; i < chunk * W; i += W) store(g.read_sums + i, vf{}), store(g.left_sums + i, vf{});
    transpose(g.state_transposed, keys, state, width, keys, width);
    key_gradient<false>(g.dquery, g.dread, g.state_transposed, c.query, g.read_sums, c, n, p.value_dim);
    key_gradient<false>(g.dkey, g.dpredicted_in, g.state_transposed, c.key, g.read_sums, c, n, p.value_dim);
    transpose(g.state_transposed, keys, dstate, width, keys, width);
    key_gradient<true>(g.dkey, c.update_out, g.state_transposed, c.key, g.left_sums, c, n, p.value_dim);
    pair_gradients(p, c, g, n);
    if (p.log_decay) {
        vf carried = vf{};
        for (int64_t i = 0; i < p.key_dim * width; i += W) carried = fma(load(state + i), load(dstate + i), carried);
        const float decay = sum(decayed(c.decays.decay, fill(1.0f))) / W;
        write_decay_gradient(p.dlog_decay, g.cross, g.read_sums, g.left_sums, decay * sum(carried), b, t0, n, h);
    }
    write_gradients(p, c, g, b, t0, n, h);
    for_tiles(
        keys, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(c.query + row, 1, keys, g.dread + column, width, n);
            tile.add_product(c.key + row, 1, keys, g.dpredicted_in + column, width, n);
            for_vectors(tile, [&](int r, int v) {
                const int64_t at = (row + r) * width + column + v * W;
                store(dstate + at, decayed(c.decays.decay, load(dstate + at)) + tile.at[r][v]);
            });
        });
}

}  // namespace gated_delta_rule_detail

inline void gated_delta_rule_backward(const GatedDeltaRule& p) {
    using namespace gated_delta_rule_detail;
    parallel_for(p.batch * p.heads, p.threads, [&](int64_t task) {
        const int64_t b = task / p.heads, h = task % p.heads, state_size = p.key_dim * p.value_dim;
        Scratch& scratch = Scratch::of_this_thread();
        const int64_t longest = p.positions < p.segment ? p.positions : p.segment;
        const int64_t most = (longest + chunk - 1) / chunk;
        Chunk* solved = reinterpret_cast<Chunk*>(scratch.take(most * int64_t(sizeof(Chunk)) / 4));
        for (int64_t index = 0; index < most; ++index) solved[index] = make_chunk(p, scratch);
        const Chunk& c = solved[0];
        Gradients g = make_gradients(c, scratch);
        const int64_t size = c.key_width * c.value_width;
        float* states = scratch.take(most * size);
        float* dstate = scratch.take(size);
        load_state(dstate, p.dfinal, b, h, p.key_dim, p.value_dim, c.key_width, c.value_width);
        for (int64_t segment = (p.positions - 1) / p.segment; segment >= 0; --segment) {
            const int64_t t0 = segment * p.segment;
            const int64_t end = t0 + p.segment < p.positions ? t0 + p.segment : p.positions;
            const int64_t chunks = (end - t0 + chunk - 1) / chunk;
            if (segment) {
                View before{};
                before.data = p.boundaries + ((b * p.segments + segment - 1) * p.heads + h) * state_size;
                before.strides[2] = p.value_dim, before.strides[3] = 1;
                load_state(states, before, 0, 0, p.key_dim, p.value_dim, c.key_width, c.value_width);
            } else {
                load_state(states, p.initial, b, h, p.key_dim, p.value_dim, c.key_width, c.value_width);
            }
            for (int64_t index = 0; index < chunks; ++index) {
                const int64_t first = t0 + index * chunk, n = rows_of_chunk(first, end);
                read_chunk(p, solved[index], b, first, n, h);
                solve_updates(p, solved[index], n, states + index * size);
                if (index + 1 < chunks) advance(solved[index], n, states + index * size, states + (index + 1) * size);
            }
            for (int64_t index = chunks; index-- > 0;) {
                const int64_t first = t0 + index * chunk, n = rows_of_chunk(first, end);
                chunk_backward(p, solved[index], g, states + index * size, dstate, b, first, n, h);
            }
        }
        if (p.dinitial)
            store_state(p.dinitial + task * state_size, dstate, p.key_dim, p.value_dim, c.value_width);
    });
}
