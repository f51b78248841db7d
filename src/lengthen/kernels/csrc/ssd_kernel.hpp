// The scalar-decay recurrence for one instruction set: chunks of matrix products that stay in the cache.
// Dims: B batch, T positions, H heads, G groups, K key dim, V value dim; n positions of a chunk.
// One task is one row of the batch and some heads of one group. It goes through segments of chunks; in a segment the
// products of query and key are formed once for all its heads, then each head passes the chunks with its state.

namespace ssd_detail {

// A segment's inputs that its heads share.
struct Shared {
    int64_t key_width, value_width;
    float *query, *key;      // [positions of the segment, padded][key_width]
    float *scores;           // [chunk][row][column <= row]
    float *dquery, *dkey, *dscores;
};

// One head's chunk.
struct Head {
    Decays decays;
    float* gain;                              // [chunk]
    float* pairs;                             // scores * L: [row][column]
    float *value, *written, *written_out;     // [position][value_width]
    float *result;                            // [position][value_width]
};

INLINE void read_head(const Ssd& p, const Shared& shared, Head& head, int64_t b, int64_t t0, int64_t n, int64_t h) {
    load_column(head.decays.log_decay, p.log_decay, b, t0, n, h, 0.0f);
    read_decays(head.decays, n);
    load_rows(head.value, p.value, b, t0, n, h, p.value_dim, shared.value_width);
    const int64_t rows = padded_rows(n);
    if (p.gain) {
        load_column(head.gain, p.gain, b, t0, n, h, 0.0f);
        scale_rows(head.written, head.value, head.gain, chunk, shared.value_width);
    } else {
        head.written = head.value;
    }
    scale_rows(head.written_out, head.written, head.decays.decay_out, rows, shared.value_width);
}

INLINE void read_pairs(const Shared& shared, Head& head, int64_t index, int64_t n) {
    const float* scores = shared.scores + index * chunk * chunk;
    const int64_t rows = padded_rows(n);
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t s = 0; s < chunk; s += W)
            store(head.pairs + t * chunk + s,
                  s <= t ? load(head.decays.pair_decay + t * chunk + s) * load(scores + t * chunk + s) : vf{});
}

INLINE void read_shared(const Ssd& p, Shared& shared, int64_t b, int64_t t0, int64_t end, int64_t g,
                        float* transposed) {
    const int64_t width = shared.key_width;
    for (int64_t first = t0, index = 0; first < end; first += chunk, ++index) {
        const int64_t n = rows_of_chunk(first, end);
        float* query = shared.query + index * chunk * width;
        float* key = shared.key + index * chunk * width;
        float* scores = shared.scores + index * chunk * chunk;
        load_rows(query, p.query, b, first, n, g, p.key_dim, width);
        load_rows(key, p.key, b, first, n, g, p.key_dim, width);
        transpose(transposed, chunk, key, width, n, p.key_dim);
        for_tiles(
            padded_rows(n), [](int64_t row) { return padded_to(row + tile_rows, W); },
            [&](auto& tile, int64_t row, int64_t column) {
                tile.add_product(query + row * width, width, 1, transposed + column, chunk, p.key_dim);
                for_vectors(tile, [&](int r, int c) {
                    store(scores + (row + r) * chunk + column + c * W, tile.at[r][c]);
                });
            });
    }
}

// The state after a chunk from the one before it; both [key_width][value_width].
INLINE void advance(const Shared& shared, const Head& head, int64_t index, int64_t n, const float* before,
                    float* after) {
    const int64_t width = shared.value_width;
    const float* key = shared.key + index * chunk * shared.key_width;
    for_tiles(
        shared.key_width, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(key + row, 1, shared.key_width, head.written_out + column, width, n);
            for_vectors(tile, [&](int r, int c) {
                const int64_t at = (row + r) * width + column + c * W;
                store(after + at, decayed(head.decays.decay, load(before + at)) + tile.at[r][c]);
            });
        });
}

INLINE Shared make_shared(const Ssd& p, Scratch& scratch) {
    Shared shared{};
    shared.key_width = padded_columns(p.key_dim);
    shared.value_width = padded_columns(p.value_dim);
    const int64_t chunks = (padded_to(p.positions < p.segment ? p.positions : p.segment, chunk)) / chunk;
    shared.query = scratch.take(chunks * chunk * shared.key_width);
    shared.key = scratch.take(chunks * chunk * shared.key_width);
    shared.scores = scratch.take(chunks * chunk * chunk);
    return shared;
}

INLINE Head make_head(const Ssd& p, const Shared& shared, Scratch& scratch) {
    Head head{};
    head.decays = make_decays(scratch);
    head.gain = scratch.take(chunk), head.pairs = scratch.take(chunk * chunk);
    head.value = scratch.take(chunk * shared.value_width);
    head.written = p.gain ? scratch.take(chunk * shared.value_width) : head.value;
    head.written_out = scratch.take(chunk * shared.value_width);
    head.result = scratch.take(chunk * shared.value_width);
    return head;
}

INLINE void write_output(const Ssd& p, const Shared& shared, const Head& head, int64_t index, int64_t n,
                         const float* state, int64_t b, int64_t t0, int64_t h) {
    const int64_t width = shared.value_width;
    const float* query = shared.query + index * chunk * shared.key_width;
    const vf skip = fill(p.skip ? *reinterpret_cast<const float*>(p.skip.at(h)) : 0.0f);
    const int64_t rows = padded_rows(n);
    for_tiles(
        rows, [&](int64_t) { return width; },
        [&](auto& tile, int64_t row, int64_t column) {
            tile.add_product(query + row * shared.key_width, shared.key_width, 1, state + column, width, p.key_dim);
            tile.scale_rows(head.decays.decay_in + row);
            tile.add_product(head.pairs + row * chunk, chunk, 1, head.written + column, width, row + tile_rows);
            for_vectors(tile, [&](int r, int c) {
                const int64_t at = (row + r) * width + column + c * W;
                store(head.result + at, fma(skip, load(head.value + at), tile.at[r][c]));
            });
        });
    for (int64_t t = 0; t < n; ++t)
        store_row(p.output.at(b, t0 + t, h), head.result + t * width, p.output.element, 1, int(p.value_dim));
}

struct Task {
    int64_t b, g, first_head, end_head, block;
};

INLINE Task task_of(const Ssd& p, int64_t index) {
    const int64_t heads = p.heads / p.groups;
    Task task;
    task.block = index % p.blocks;
    task.g = index / p.blocks % p.groups;
    task.b = index / p.blocks / p.groups;
    task.first_head = task.g * heads + task.block * heads / p.blocks;
    task.end_head = task.g * heads + (task.block + 1) * heads / p.blocks;
    return task;
}

}  // namespace ssd_detail

inline void ssd_forward(const Ssd& p) {
    using namespace ssd_detail;
    parallel_for(p.batch * p.groups * p.blocks, p.threads, [&](int64_t index) {
        const Task task = task_of(p, index);
        Scratch& scratch = Scratch::of_this_thread();
        Shared shared = make_shared(p, scratch);
        Head head = make_head(p, shared, scratch);
        const int64_t size = shared.key_width * shared.value_width, state_size = p.key_dim * p.value_dim;
        float* states = scratch.take((task.end_head - task.first_head) * size);
        float* transposed = scratch.take(shared.key_width * chunk);
        for (int64_t h = task.first_head; h < task.end_head; ++h)
            load_state(states + (h - task.first_head) * size, p.initial, task.b, h, p.key_dim, p.value_dim,
                       shared.key_width, shared.value_width);
        for (int64_t t0 = 0; t0 < p.positions; t0 += p.segment) {
            const int64_t end = t0 + p.segment < p.positions ? t0 + p.segment : p.positions;
            read_shared(p, shared, task.b, t0, end, task.g, transposed);
            for (int64_t h = task.first_head; h < task.end_head; ++h) {
                float* state = states + (h - task.first_head) * size;
                if (t0)
                    store_state(p.boundaries + ((task.b * p.segments + t0 / p.segment - 1) * p.heads + h) * state_size,
                                state, p.key_dim, p.value_dim, shared.value_width);
                for (int64_t first = t0, at = 0; first < end; first += chunk, ++at) {
                    const int64_t n = rows_of_chunk(first, end);
                    read_head(p, shared, head, task.b, first, n, h);
                    read_pairs(shared, head, at, n);
                    write_output(p, shared, head, at, n, state, task.b, first, h);
                    advance(shared, head, at, n, state, state);
                }
            }
        }
        for (int64_t h = task.first_head; h < task.end_head; ++h)
            store_state(p.final_state + (task.b * p.heads + h) * state_size, states + (h - task.first_head) * size,
                        p.key_dim, p.value_dim, shared.value_width);
    });
}
