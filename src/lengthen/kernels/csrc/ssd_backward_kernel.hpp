// The gradients of the scalar-decay recurrence for one instruction set; dims and tiles as in ssd_kernel.hpp.
// Segments are taken from the last to the first: a head recomputes the states before its chunks from the segment's
// first, then goes back through the chunks with the gradient of its state.

namespace ssd_detail {

// What a head needs besides Head on the way back.
struct Way {
    float *dy, *dread, *value_transposed, *state_transposed;
    float *cross, *dwritten, *read_sums, *left_sums;
    double dskip;
};

INLINE void write_value_gradient(const Ssd& p, const Shared& shared, const Head& head, Way& way, int64_t b, int64_t t0,
                                 int64_t n, int64_t h) {
    const int64_t width = shared.value_width;
    const vf skip = fill(p.skip ? *reinterpret_cast<const float*>(p.skip.at(h)) : 0.0f);
    for (int64_t t = 0; t < n; ++t) {
        vf gain_sum = vf{}, skip_sum = vf{};
        const vf gain = fill(p.gain ? head.gain[t] : 1.0f);
        for (int64_t i = t * width; i < (t + 1) * width; i += W) {
            const vf dwritten = load(way.dwritten + i), value = load(head.value + i), dy = load(way.dy + i);
            gain_sum = fma(dwritten, value, gain_sum);
            skip_sum = fma(dy, value, skip_sum);
            store(way.dwritten + i, fma(skip, dy, dwritten * gain));
        }
        if (p.gain) store_number(p.dgain, b, t0 + t, h, sum(gain_sum));
        if (p.skip) way.dskip += sum(skip_sum);
        store_row(p.dvalue.at(b, t0 + t, h), way.dwritten + t * width, p.dvalue.element, 1, int(p.value_dim));
    }
}

// One head's chunk: adds to the shared gradients, writes the head's own, and takes dstate from after the chunk to
// before it.
INLINE void chunk_backward(const Ssd& p, const Shared& shared, Head& head, Way& way, int64_t index, const float* state,
                           float* dstate, int64_t b, int64_t t0, int64_t n, int64_t h) {
    const int64_t width = shared.value_width, keys = shared.key_width, rows = padded_rows(n), at = index * chunk;
    const float *query = shared.query + at * keys, *key = shared.key + at * keys;
    float *dquery = shared.dquery + at * keys, *dkey = shared.dkey + at * keys, *dscores = shared.dscores + at * chunk;
    read_head(p, shared, head, b, t0, n, h);
    read_pairs(shared, head, index, n);
    load_rows(way.dy, p.doutput, b, t0, n, h, p.value_dim, width);
    scale_rows(way.dread, way.dy, head.decays.decay_in, chunk, width);
    for (int64_t i = 0; i < chunk * W; i += W) store(way.read_sums + i, vf{}), store(way.left_sums + i, vf{});

    // Reads of the state before: dquery += dread state^T.
    transpose(way.state_transposed, keys, state, width, keys, width);
    for_tiles(
        rows, [&](int64_t) { return keys; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(way.dread + row * width, width, 1, way.state_transposed + column, keys, p.value_dim);
            for_vectors(tile, [&](int r, int c) {
                const int64_t i = (row + r) * keys + column + c * W;
                float* sums = way.read_sums + (row + r) * W;
                store(sums, fma(tile.at[r][c], load(query + i), load(sums)));
                store(dquery + i, load(dquery + i) + tile.at[r][c]);
            });
        });
    // What is left in the state after: dkey += written_out dstate^T.
    transpose(way.state_transposed, keys, dstate, width, keys, width);
    for_tiles(
        rows, [&](int64_t) { return keys; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(head.written_out + row * width, width, 1, way.state_transposed + column, keys,
                             p.value_dim);
            for_vectors(tile, [&](int r, int c) {
                const int64_t i = (row + r) * keys + column + c * W;
                float* sums = way.left_sums + (row + r) * W;
                store(sums, fma(tile.at[r][c], load(key + i), load(sums)));
                store(dkey + i, load(dkey + i) + tile.at[r][c]);
            });
        });
    // Pairs inside the chunk.
    transpose(way.value_transposed, chunk, head.written, width, rows, width);
    for_tiles(
        rows, [](int64_t row) { return padded_to(row + tile_rows, W); },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(way.dy + row * width, width, 1, way.value_transposed + column, chunk, p.value_dim);
            for_vectors(tile, [&](int r, int c) {
                const int64_t i = (row + r) * chunk + column + c * W;
                store(way.cross + i, tile.at[r][c] * load(head.pairs + i));
                store(dscores + i, fma(tile.at[r][c], load(head.decays.pair_decay + i), load(dscores + i)));
            });
        });
    for_tiles(
        rows, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(key + row * keys, keys, 1, dstate + column, width, p.key_dim);
            tile.scale_rows(head.decays.decay_out + row);
            tile.add_product(head.pairs + row * chunk + row, 1, chunk, way.dy + row * width + column, width,
                             rows - row);
            for_vectors(tile, [&](int r, int c) {
                store(way.dwritten + (row + r) * width + column + c * W, tile.at[r][c]);
            });
        });
    vf carried = vf{};
    for (int64_t i = 0; i < p.key_dim * width; i += W) carried = fma(load(state + i), load(dstate + i), carried);
    const float decay = sum(decayed(head.decays.decay, fill(1.0f))) / W;
    write_decay_gradient(p.dlog_decay, way.cross, way.read_sums, way.left_sums, decay * sum(carried), b, t0, n, h);
    write_value_gradient(p, shared, head, way, b, t0, n, h);
    // The state's gradient before the chunk: decay dstate + query^T dread.
    for_tiles(
        keys, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(query + row, 1, keys, way.dread + column, width, n);
            for_vectors(tile, [&](int r, int c) {
                const int64_t i = (row + r) * width + column + c * W;
                store(dstate + i, decayed(head.decays.decay, load(dstate + i)) + tile.at[r][c]);
            });
        });
}

// The products of query and key, for all heads at once; then the segment's gradients go out.
INLINE void write_shared_gradients(const Ssd& p, const Shared& shared, int64_t b, int64_t t0, int64_t end,
                                   const Task& task) {
    const int64_t keys = shared.key_width;
    for (int64_t first = t0, index = 0; first < end; first += chunk, ++index) {
        const int64_t n = rows_of_chunk(first, end), rows = padded_rows(n), at = index * chunk;
        const float *query = shared.query + at * keys, *key = shared.key + at * keys;
        float *dquery = shared.dquery + at * keys, *dkey = shared.dkey + at * keys;
        const float* dscores = shared.dscores + at * chunk;
        for_tiles(
            rows, [&](int64_t) { return keys; },
            [&](auto& tile, int64_t row, int64_t column) {
                tile.add_product(dscores + row * chunk, chunk, 1, key + column, keys, row + tile_rows);
                for_vectors(tile, [&](int r, int c) {
                    const int64_t i = (row + r) * keys + column + c * W;
                    store(dquery + i, load(dquery + i) + tile.at[r][c]);
                });
            });
        for_tiles(
            rows, [&](int64_t) { return keys; },
            [&](auto& tile, int64_t row, int64_t column) {
                tile.add_product(dscores + row * chunk + row, 1, chunk, query + row * keys + column, keys, rows - row);
                for_vectors(tile, [&](int r, int c) {
                    const int64_t i = (row + r) * keys + column + c * W;
                    store(dkey + i, load(dkey + i) + tile.at[r][c]);
                });
            });
        for (int64_t t = 0; t < n; ++t) {
            const int64_t row = task.block * p.batch + b;
            store_row(p.dquery.at(row, first + t, task.g), dquery + t * keys, p.dquery.element, 1, int(p.key_dim));
            store_row(p.dkey.at(row, first + t, task.g), dkey + t * keys, p.dkey.element, 1, int(p.key_dim));
        }
    }
}

}  // namespace ssd_detail

inline void ssd_backward(const Ssd& p) {
    using namespace ssd_detail;
    parallel_for(p.batch * p.groups * p.blocks, p.threads, [&](int64_t task_index) {
        const Task task = task_of(p, task_index);
        Scratch& scratch = Scratch::of_this_thread();
        Shared shared = make_shared(p, scratch);
        Head head = make_head(p, shared, scratch);
        const int64_t keys = shared.key_width, width = shared.value_width, size = keys * width;
        const int64_t state_size = p.key_dim * p.value_dim, heads = task.end_head - task.first_head;
        const int64_t length = padded_to(p.positions < p.segment ? p.positions : p.segment, chunk);
        shared.dquery = scratch.take(length * keys), shared.dkey = scratch.take(length * keys);
        shared.dscores = scratch.take(length * chunk);
        float* dstates = scratch.take(heads * size);
        float* states = scratch.take(length / chunk * size);
        float* transposed = scratch.take(keys * chunk);
        Way way{};
        way.dy = scratch.take(chunk * width), way.dread = scratch.take(chunk * width);
        way.value_transposed = scratch.take(width * chunk), way.state_transposed = scratch.take(size);
        way.cross = scratch.take(chunk * chunk), way.dwritten = scratch.take(chunk * width);
        way.read_sums = scratch.take(chunk * W), way.left_sums = scratch.take(chunk * W);
        double* dskips = reinterpret_cast<double*>(scratch.take(2 * heads));
        for (int64_t i = 0; i < heads; ++i) {
            dskips[i] = 0;
            load_state(dstates + i * size, p.dfinal, task.b, task.first_head + i, p.key_dim, p.value_dim, keys, width);
        }
        for (int64_t segment = (p.positions - 1) / p.segment; segment >= 0; --segment) {
            const int64_t t0 = segment * p.segment;
            const int64_t end = t0 + p.segment < p.positions ? t0 + p.segment : p.positions;
            const int64_t chunks = (end - t0 + chunk - 1) / chunk;
            read_shared(p, shared, task.b, t0, end, task.g, transposed);
            for (int64_t i = 0; i < chunks * chunk * keys; i += W)
                store(shared.dquery + i, vf{}), store(shared.dkey + i, vf{});
            for (int64_t i = 0; i < chunks * chunk * chunk; i += W) store(shared.dscores + i, vf{});
            for (int64_t i = 0; i < heads; ++i) {
                const int64_t h = task.first_head + i;
                View before = p.initial;
                if (segment) {
                    before = View{};
                    before.data = p.boundaries + ((task.b * p.segments + segment - 1) * p.heads + h) * state_size;
                    before.strides[2] = p.value_dim, before.strides[3] = 1;
                    load_state(states, before, 0, 0, p.key_dim, p.value_dim, keys, width);
                } else {
                    load_state(states, before, task.b, h, p.key_dim, p.value_dim, keys, width);
                }
                for (int64_t index = 0; index + 1 < chunks; ++index) {
                    read_head(p, shared, head, task.b, t0 + index * chunk, chunk, h);
                    advance(shared, head, index, chunk, states + index * size, states + (index + 1) * size);
                }
                way.dskip = 0;
                for (int64_t index = chunks; index-- > 0;) {
                    const int64_t first = t0 + index * chunk;
                    chunk_backward(p, shared, head, way, index, states + index * size, dstates + i * size, task.b,
                                   first, rows_of_chunk(first, end), h);
                }
                dskips[i] += way.dskip;
            }
            write_shared_gradients(p, shared, task.b, t0, end, task);
        }
        for (int64_t i = 0; i < heads; ++i) {
            const int64_t h = task.first_head + i;
            if (p.skip) p.dskip[task.b * p.heads + h] = float(dskips[i]);
            if (p.dinitial)
                store_state(p.dinitial + (task.b * p.heads + h) * state_size, dstates + i * size, p.key_dim,
                            p.value_dim, width);
        }
    });
}
