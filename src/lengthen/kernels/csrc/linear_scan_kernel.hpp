// The elementwise linear scan for one instruction set: included once for each, inside its namespace.
// Dims: B batch, T positions, D channels. One task is one row of the batch and one group of channels; lanes are
// channels.

namespace linear_scan_detail {

struct Tiles {
    int width;  // channels of the group, rounded up to whole vectors
    float *coefficient, *x, *gain, *h, *dh;
};

INLINE void load_tile(float* out, const View& v, int64_t b, int64_t t0, int n, int64_t d0, int columns, int width) {
    for (int t = 0; t < n; ++t)
        load_row(out + int64_t(t) * width, v.at(b, t0 + t, d0), v.element, v.strides[2], columns, width);
}

// Asks for what the next chunk will read while this one is computed, a little at each step.
INLINE void foresee(const View& v, int64_t b, int64_t t, int64_t channel) { __builtin_prefetch(v.at(b, t, channel)); }

// Reads a chunk and runs it from `state`, which it leaves alone: h holds the states after each position.
INLINE void run_chunk(const LinearScan& s, const Tiles& q, const float* state, int64_t b, int64_t t0, int n,
                      int64_t d0, int columns, int64_t ahead) {
    load_tile(q.coefficient, s.log_decay, b, t0, n, d0, columns, q.width);
    load_tile(q.x, s.x, b, t0, n, d0, columns, q.width);
    if (s.gain) load_tile(q.gain, s.gain, b, t0, n, d0, columns, q.width);
    for (int t = 0; t < n; ++t) {
        const float* before = t > 0 ? q.h + int64_t(t - 1) * q.width : state;
        for (int i = 0; i < q.width; i += W) {
            const int64_t at = int64_t(t) * q.width + i;
            foresee(s.log_decay, b, t0 + t + ahead, d0 + i);
            foresee(s.x, b, t0 + t + ahead, d0 + i);
            if (s.gain) foresee(s.gain, b, t0 + t + ahead, d0 + i);
            const vf c = decay_coefficient(load(q.coefficient + at));
            vf write = load(q.x + at);
            if (s.gain) write = write * load(q.gain + at);
            store(q.coefficient + at, c);
            store(q.h + at, advanced(c, load(before + i), write));
        }
    }
}

INLINE Tiles tiles_for(const LinearScan& s, Scratch& scratch, int width) {
    Tiles q{};
    q.width = width;
    for (float** p : {&q.coefficient, &q.x, &q.gain, &q.h, &q.dh}) *p = scratch.take(s.chunk * width);
    return q;
}

// Calls body(b, first channel, channels, channels rounded up) for every task.
template <class Body>
INLINE void over_channels(const LinearScan& s, const Body& body) {
    // Long runs of memory, as wide as leaves every thread a task; a multiple of what a cache line holds.
    const int64_t share = (s.batch * s.channels + s.threads - 1) / s.threads;
    const int64_t group = std::clamp<int64_t>((share + 15) / 16 * 16, 256, 1024);
    const int64_t groups = (s.channels + group - 1) / group;
    parallel_for(s.batch * groups, s.threads, [&](int64_t task) {
        const int64_t d0 = task % groups * group;
        const int columns = int(std::min<int64_t>(group, s.channels - d0));
        body(task / groups, d0, columns, (columns + W - 1) / W * W);
    });
}

}  // namespace linear_scan_detail

static void linear_scan_forward(const LinearScan& s) {
    using namespace linear_scan_detail;
    over_channels(s, [&](int64_t b, int64_t d0, int columns, int width) {
        Scratch& scratch = Scratch::of_this_thread();
        const Tiles q = tiles_for(s, scratch, width);
        float* state = scratch.take(width);
        std::memset(state, 0, sizeof(float) * size_t(width));
        if (s.initial) load_row(state, s.initial.at(b, d0), s.initial.element, s.initial.strides[1], columns, width);
        for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
            const int64_t t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            if (s.checkpoints)
                std::memcpy(s.checkpoints + (b * s.chunks + chunk) * s.channels + d0, state,
                            sizeof(float) * size_t(columns));
            run_chunk(s, q, state, b, t0, n, d0, columns, s.chunk);
            std::memcpy(state, q.h + int64_t(n - 1) * width, sizeof(float) * size_t(width));
            for (int t = 0; t < n; ++t)
                store_row(s.y.at(b, t0 + t, d0), q.h + int64_t(t) * width, s.y.element, 1, columns, s.y.past_caches);
        }
        std::memcpy(s.final_state + b * s.channels + d0, state, sizeof(float) * size_t(columns));
    });
}

static void linear_scan_backward(const LinearScan& s) {
    using namespace linear_scan_detail;
    over_channels(s, [&](int64_t b, int64_t d0, int columns, int width) {
        Scratch& scratch = Scratch::of_this_thread();
        const Tiles q = tiles_for(s, scratch, width);
        float *state = scratch.take(width), *dh = scratch.take(width), *c = scratch.take(width);
        std::memset(state, 0, sizeof(float) * size_t(width));
        load_row(dh, s.dfinal.at(b, d0), s.dfinal.element, s.dfinal.strides[1], columns, width);
        // dh is the gradient of the state after a position, c the decay that led away from it.
        for (int i = 0; i < width; i += W) store(c + i, fill(-0.0f));
        for (int64_t chunk = s.chunks - 1; chunk >= 0; --chunk) {
            const int64_t t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            std::memcpy(state, s.checkpoints + (b * s.chunks + chunk) * s.channels + d0,
                        sizeof(float) * size_t(columns));
            run_chunk(s, q, state, b, t0, n, d0, columns, -s.chunk);
            load_tile(q.dh, s.dy, b, t0, n, d0, columns, width);
            for (int t = n - 1; t >= 0; --t) {
                const float* before = t > 0 ? q.h + int64_t(t - 1) * width : state;
                for (int i = 0; i < width; i += W) {
                    const int64_t at = int64_t(t) * width + i;
                    foresee(s.dy, b, t0 + t - s.chunk, d0 + i);
                    const vf here = advanced(load(c + i), load(dh + i), load(q.dh + at));
                    const vf decay = load(q.coefficient + at);
                    store(dh + i, here);
                    store(c + i, decay);
                    store(q.coefficient + at, here * decayed(decay, load(before + i)));
                    if (s.gain) {
                        const vf gain = load(q.gain + at);
                        store(q.gain + at, here * load(q.x + at));
                        store(q.x + at, here * gain);
                    } else {
                        store(q.x + at, here);
                    }
                }
                const int64_t row = int64_t(t) * width;
                store_row(s.dlog_decay.at(b, t0 + t, d0), q.coefficient + row, s.dlog_decay.element, 1, columns, s.dlog_decay.past_caches);
                store_row(s.dx.at(b, t0 + t, d0), q.x + row, s.dx.element, 1, columns, s.dx.past_caches);
                if (s.gain) store_row(s.dgain.at(b, t0 + t, d0), q.gain + row, s.dgain.element, 1, columns, s.dgain.past_caches);
            }
        }
        for (int i = 0; i < width; i += W) store(dh + i, decayed(load(c + i), load(dh + i)));
        std::memcpy(s.dinitial + b * s.channels + d0, dh, sizeof(float) * size_t(columns));
    });
}
