// The selective scan for one instruction set: included once for each, inside its namespace.
// Dims: B batch, T positions, D channels, N state per channel. One task is one row of the batch and one group of
// channels; lanes are channels, so that nothing is summed across lanes in the inner loops. For `block` states of
// W channels at a time, state and A stay in registers while a chunk of positions passes.

constexpr int block = W == 16 ? 8 : 4;

namespace selective_scan_detail {

// One task's share of the inputs as float tiles, [position of the chunk][channel of the group].
struct Tiles {
    int width;               // channels of the group, rounded up to whole vectors
    float *x, *step, *decay_step, *write, *gain, *gate, *y, *dy, *dwrite, *ddecay;
    float *Bs, *Cs;          // [position][state, rounded up to whole blocks]
};

// Positions t0 to t0 + n; `ahead` says how many positions on the next chunk to be read lies.
INLINE void load_tile(float* out, const View& v, int64_t b, int64_t t0, int n, int64_t d0, int columns, int width,
                      int64_t ahead) {
    load_rows(out, v, v.at(b, t0, d0), v.strides[1], v.strides[2], n, columns, width, ahead * v.strides[1]);
}

// Reads a chunk and forms the step after bias and softplus, the step of the decay, and what is written per unit
// of B: step * x * gain.
INLINE void read_chunk(const SelectiveScan& s, Tiles& q, const float* bias, int64_t b, int64_t t0, int n,
                       int64_t d0, int columns, int padded, int64_t ahead) {
    const int64_t size = int64_t(n) * q.width;
    load_tile(q.x, s.x, b, t0, n, d0, columns, q.width, ahead);
    load_tile(q.step, s.step, b, t0, n, d0, columns, q.width, ahead);
    load_tile(q.Bs, s.B, b, t0, n, 0, s.states, padded, ahead);
    load_tile(q.Cs, s.C, b, t0, n, 0, s.states, padded, ahead);
    for (int t = 0; t < n; ++t)
        for (int i = 0; i < q.width; i += W) {
            float* p = q.step + int64_t(t) * q.width + i;
            vf v = load(p) + load(bias + i);
            if (s.softplus) v = softplus(v);
            store(p, v);
        }
    if (s.decay_step) load_tile(q.decay_step, s.decay_step, b, t0, n, d0, columns, q.width, ahead);
    const float* decay_source = s.decay_step ? q.decay_step : q.step;
    if (s.gain) load_tile(q.gain, s.gain, b, t0, n, d0, columns, q.width, ahead);
    if (s.gate) load_tile(q.gate, s.gate, b, t0, n, d0, columns, q.width, ahead);
    for (int64_t i = 0; i < size; i += W) {
        vf write = load(q.step + i) * load(q.x + i);
        if (s.gain) write = write * load(q.gain + i);
        store(q.write + i, write);
        // An infinite step means decay 0; finite, it cannot turn a zero gradient into NaN.
        store(q.decay_step + i, min(fill(1e30f), load(decay_source + i)));
    }
}

// Advances `block` states of W channels over the chunk and adds their share to y; Keep stores the state after
// each position and the decays for the way back.
template <bool Keep>
INLINE void advance(const Tiles& q, const uint8_t* reset, int64_t reset_stride, int n, int column, int first_state,
                    int padded, const float* A, float* state, float* states, float* decays) {
    vf h[block], a[block];
#pragma GCC unroll 8
    for (int j = 0; j < block; ++j) h[j] = load(state + j * W), a[j] = load(A + j * W);
    for (int t = 0; t < n; ++t) {
        const int64_t at = int64_t(t) * q.width + column;
        const vf step = load(q.decay_step + at), write = load(q.write + at);
        const float* Bt = q.Bs + int64_t(t) * padded + first_state;
        const float* Ct = q.Cs + int64_t(t) * padded + first_state;
        vf y = load(q.y + at);
        if (reset && reset[t * reset_stride])
#pragma GCC unroll 8
            for (int j = 0; j < block; ++j) h[j] = vf{};
#pragma GCC unroll 8
        for (int j = 0; j < block; ++j) {
            const vf c = decay_coefficient(a[j] * step);
            h[j] = advanced(c, h[j], write * fill(Bt[j]));
            y = fma(h[j], fill(Ct[j]), y);
            if (Keep) {
                store(states + (int64_t(t) * block + j) * W, h[j]);
                store(decays + (int64_t(t) * block + j) * W, c);
            }
        }
        store(q.y + at, y);
    }
#pragma GCC unroll 8
    for (int j = 0; j < block; ++j) store(state + j * W, h[j]);
}

// The way back over a chunk: from the gradient of the state after it to that of the state before it.
INLINE void retreat(const Tiles& q, const uint8_t* reset, int64_t reset_stride, int n, int column, int first_state,
                    int padded, const float* A, const float* start, const float* states, const float* decays,
                    float* dstate, float* dA, float* dB, float* dC) {
    // dh is the gradient of the state after a position, all paths included; c the decay that led away from it.
    vf dh[block], a[block], da[block], c[block];
#pragma GCC unroll 8
    for (int j = 0; j < block; ++j) {
        dh[j] = load(dstate + j * W);
        a[j] = load(A + j * W);
        da[j] = load(dA + j * W);
        c[j] = fill(-0.0f);
    }
    for (int t = n - 1; t >= 0; --t) {
        const int64_t at = int64_t(t) * q.width + column;
        const vf step = load(q.decay_step + at), write = load(q.write + at), dy = load(q.dy + at);
        const float* Bt = q.Bs + int64_t(t) * padded + first_state;
        const float* Ct = q.Cs + int64_t(t) * padded + first_state;
        const float* here = states + int64_t(t) * block * W;
        const float* before = t > 0 ? here - block * W : start;
        const float* decay = decays + int64_t(t) * block * W;
        float* dBt = dB + int64_t(t) * block * W;
        float* dCt = dC + int64_t(t) * block * W;
        const bool fresh = reset && reset[t * reset_stride];
        vf dwrite = load(q.dwrite + at), ddecay = load(q.ddecay + at);
#pragma GCC unroll 8
        for (int j = 0; j < block; ++j) {
            dh[j] = advanced(c[j], dh[j], dy * fill(Ct[j]));
            store(dCt + j * W, fma(dy, load(here + j * W), load(dCt + j * W)));
            store(dBt + j * W, fma(write, dh[j], load(dBt + j * W)));
            dwrite = fma(dh[j], fill(Bt[j]), dwrite);
            c[j] = load(decay + j * W);
            if (!fresh) {
                const vf dlog = dh[j] * decayed(c[j], load(before + j * W));
                ddecay = fma(dlog, a[j], ddecay);
                da[j] = fma(dlog, step, da[j]);
            }
        }
        if (fresh)
#pragma GCC unroll 8
            for (int j = 0; j < block; ++j) c[j] = vf{};
        store(q.dwrite + at, dwrite);
        store(q.ddecay + at, ddecay);
    }
#pragma GCC unroll 8
    for (int j = 0; j < block; ++j) {
        store(dstate + j * W, decayed(c[j], dh[j]));
        store(dA + j * W, da[j]);
    }
}

// [state][channel of the group] from a tensor [D, N] at the group's first channel, padded with zeros, and back.
INLINE void load_transposed(float* out, const char* source, Element element, int64_t channel_stride,
                            int64_t state_stride, int columns, int N, int width, int padded) {
    std::memset(out, 0, sizeof(float) * size_t(width) * padded);
    for (int i = 0; i < columns; ++i)
        for (int k = 0; k < N; ++k) {
            const char* p = source + (i * channel_stride + k * state_stride) * (element == Element::bfloat16 ? 2 : 4);
            load_row(out + int64_t(k) * width + i, p, element, 1, 1, 1);
        }
}
INLINE void store_transposed(float* target, const float* tile, int columns, int N, int width) {
    for (int i = 0; i < columns; ++i)
        for (int k = 0; k < N; ++k) target[int64_t(i) * N + k] = tile[int64_t(k) * width + i];
}

}  // namespace selective_scan_detail

static void selective_scan_forward(const SelectiveScan& s) {
    using namespace selective_scan_detail;
    const int padded = (s.states + block - 1) / block * block;
    const int64_t groups = (s.channels + s.group - 1) / s.group;
    parallel_for(s.batch * groups, s.threads, [&](int64_t task) {
        const int64_t b = task / groups, d0 = task % groups * s.group;
        const int columns = int(std::min<int64_t>(s.group, s.channels - d0));
        const int width = (columns + W - 1) / W * W;
        Scratch& scratch = Scratch::of_this_thread();
        const int64_t tile = int64_t(s.chunk) * width, matrix = int64_t(padded) * width;
        Tiles q{};
        q.width = width;
        for (float** p : {&q.x, &q.step, &q.decay_step, &q.write, &q.y}) *p = scratch.take(tile);
        if (s.gain) q.gain = scratch.take(tile);
        if (s.gate) q.gate = scratch.take(tile);
        q.Bs = scratch.take(int64_t(s.chunk) * padded);
        q.Cs = scratch.take(int64_t(s.chunk) * padded);
        float *A = scratch.take(matrix), *h = scratch.take(matrix), *bias = scratch.take(width),
              *skip = scratch.take(width);
        load_transposed(A, s.A.at(d0), s.A.element, s.A.strides[0], s.A.strides[1], columns, s.states, width, padded);
        if (s.initial)
            load_transposed(h, s.initial.at(b, d0), s.initial.element, s.initial.strides[1], s.initial.strides[2],
                            columns, s.states, width, padded);
        else
            std::memset(h, 0, sizeof(float) * size_t(matrix));
        std::memset(bias, 0, sizeof(float) * size_t(width));
        std::memset(skip, 0, sizeof(float) * size_t(width));
        if (s.bias) load_row(bias, s.bias.at(d0), s.bias.element, s.bias.strides[0], columns, width);
        if (s.skip) load_row(skip, s.skip.at(d0), s.skip.element, s.skip.strides[0], columns, width);
        // A block's state in `advance` is one row of W lanes a state: gather it from [state][channel].
        alignas(64) float state[block * W], a[block * W];
        const auto gather = [&](float* out, const float* from, int k0, int column) {
            for (int j = 0; j < block; ++j) store(out + j * W, load(from + int64_t(k0 + j) * width + column));
        };
        for (int64_t t0 = 0, chunk = 0; t0 < s.positions; t0 += s.chunk, ++chunk) {
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            if (s.checkpoints)
                for (int k = 0; k < s.states; ++k)
                    std::memcpy(s.checkpoints + ((b * s.chunks + chunk) * s.states + k) * s.channels + d0,
                                h + int64_t(k) * width, sizeof(float) * size_t(columns));
            read_chunk(s, q, bias, b, t0, n, d0, columns, padded, s.chunk);
            for (int t = 0; t < n; ++t)
                for (int i = 0; i < width; i += W)
                    store(q.y + int64_t(t) * width + i, load(skip + i) * load(q.x + int64_t(t) * width + i));
            const uint8_t* reset = s.reset ? reinterpret_cast<const uint8_t*>(s.reset.data) +
                                                 b * s.reset.strides[0] + t0 * s.reset.strides[1]
                                           : nullptr;
            for (int k0 = 0; k0 < padded; k0 += block)
                for (int i = 0; i < width; i += W) {
                    gather(state, h, k0, i);
                    gather(a, A, k0, i);
                    advance<false>(q, reset, s.reset.strides[1], n, i, k0, padded, a, state, nullptr, nullptr);
                    for (int j = 0; j < block; ++j)
                        store(h + int64_t(k0 + j) * width + i, load(state + j * W));
                }
            if (s.gate)
                for (int64_t i = 0; i < int64_t(n) * width; i += W) {
                    const vf z = load(q.gate + i);
                    store(q.y + i, load(q.y + i) * z * sigmoid(z));
                }
            for (int t = 0; t < n; ++t)
                store_row(s.y.at(b, t0 + t, d0), q.y + int64_t(t) * width, s.y.element, 1, columns, s.y.past_caches);
        }
        store_transposed(s.final_state + (b * s.channels + d0) * s.states, h, columns, s.states, width);
    });
}

static void selective_scan_backward(const SelectiveScan& s) {
    using namespace selective_scan_detail;
    const int padded = (s.states + block - 1) / block * block;
    const int64_t groups = (s.channels + s.group - 1) / s.group;
    parallel_for(s.batch * groups, s.threads, [&](int64_t task) {
        const int64_t b = task / groups, group = task % groups, d0 = group * s.group;
        const int columns = int(std::min<int64_t>(s.group, s.channels - d0));
        const int width = (columns + W - 1) / W * W;
        Scratch& scratch = Scratch::of_this_thread();
        const int64_t tile = int64_t(s.chunk) * width, matrix = int64_t(padded) * width;
        const int64_t history = int64_t(s.chunk) * block * W;
        Tiles q{};
        q.width = width;
        for (float** p : {&q.x, &q.step, &q.decay_step, &q.write, &q.y, &q.dy, &q.dwrite, &q.ddecay})
            *p = scratch.take(tile);
        if (s.gain) q.gain = scratch.take(tile);
        if (s.gate) q.gate = scratch.take(tile);
        q.Bs = scratch.take(int64_t(s.chunk) * padded);
        q.Cs = scratch.take(int64_t(s.chunk) * padded);
        float *A = scratch.take(matrix), *h = scratch.take(matrix), *dh = scratch.take(matrix),
              *dA = scratch.take(matrix), *bias = scratch.take(width), *skip = scratch.take(width),
              *dbias = scratch.take(width), *dskip = scratch.take(width);
        float *states = scratch.take(history), *decays = scratch.take(history), *dB = scratch.take(history),
              *dC = scratch.take(history);
        load_transposed(A, s.A.at(d0), s.A.element, s.A.strides[0], s.A.strides[1], columns, s.states, width, padded);
        load_transposed(dh, s.dfinal.at(b, d0), s.dfinal.element, s.dfinal.strides[1], s.dfinal.strides[2], columns,
                        s.states, width, padded);
        std::memset(dA, 0, sizeof(float) * size_t(matrix));
        std::memset(h, 0, sizeof(float) * size_t(matrix));
        for (float* p : {bias, skip, dbias, dskip}) std::memset(p, 0, sizeof(float) * size_t(width));
        if (s.bias) load_row(bias, s.bias.at(d0), s.bias.element, s.bias.strides[0], columns, width);
        if (s.skip) load_row(skip, s.skip.at(d0), s.skip.element, s.skip.strides[0], columns, width);
        alignas(64) float state[block * W], start[block * W], a[block * W], da[block * W], dstate[block * W];
        const auto gather = [&](float* out, const float* from, int k0, int column) {
            for (int j = 0; j < block; ++j) store(out + j * W, load(from + int64_t(k0 + j) * width + column));
        };
        const auto scatter = [&](float* to, const float* from, int k0, int column) {
            for (int j = 0; j < block; ++j) store(to + int64_t(k0 + j) * width + column, load(from + j * W));
        };
        for (int64_t chunk = s.chunks - 1; chunk >= 0; --chunk) {
            const int64_t t0 = chunk * s.chunk;
            const int n = int(std::min<int64_t>(s.chunk, s.positions - t0));
            for (int k = 0; k < s.states; ++k)
                std::memcpy(h + int64_t(k) * width,
                            s.checkpoints + ((b * s.chunks + chunk) * s.states + k) * s.channels + d0,
                            sizeof(float) * size_t(columns));
            read_chunk(s, q, bias, b, t0, n, d0, columns, padded, -s.chunk);
            load_tile(q.dy, s.dy, b, t0, n, d0, columns, width, -s.chunk);
            for (int t = 0; t < n; ++t)
                for (int i = 0; i < width; i += W) {
                    const int64_t at = int64_t(t) * width + i;
                    store(q.y + at, load(skip + i) * load(q.x + at));
                    store(q.dwrite + at, vf{});
                    store(q.ddecay + at, vf{});
                    if (s.gate) {
                        // The tile of dy becomes the gradient before the gate; `gate` what multiplies y in the
                        // gate's own gradient.
                        const vf z = load(q.gate + at), g = sigmoid(z), dout = load(q.dy + at);
                        store(q.dy + at, dout * z * g);
                        store(q.gate + at, dout * g * fma(z, 1.0f - g, fill(1.0f)));
                    }
                }
            const uint8_t* reset = s.reset ? reinterpret_cast<const uint8_t*>(s.reset.data) +
                                                 b * s.reset.strides[0] + t0 * s.reset.strides[1]
                                           : nullptr;
            for (int k0 = 0; k0 < padded; k0 += block) {
                std::memset(dB, 0, sizeof(float) * size_t(n) * block * W);
                std::memset(dC, 0, sizeof(float) * size_t(n) * block * W);
                for (int i = 0; i < width; i += W) {
                    gather(start, h, k0, i);
                    gather(a, A, k0, i);
                    gather(da, dA, k0, i);
                    gather(dstate, dh, k0, i);
                    std::memcpy(state, start, sizeof state);
                    advance<true>(q, reset, s.reset.strides[1], n, i, k0, padded, a, state, states, decays);
                    retreat(q, reset, s.reset.strides[1], n, i, k0, padded, a, start, states, decays, dstate, da, dB,
                            dC);
                    scatter(dA, da, k0, i);
                    scatter(dh, dstate, k0, i);
                }
                for (int t = 0; t < n; ++t)
                    for (int j = 0; j < block && k0 + j < s.states; ++j) {
                        const int64_t at = ((group * s.batch + b) * s.positions + t0 + t) * s.states + k0 + j;
                        s.dB[at] = sum(load(dB + (int64_t(t) * block + j) * W));
                        s.dC[at] = sum(load(dC + (int64_t(t) * block + j) * W));
                    }
            }
            for (int t = 0; t < n; ++t)
                for (int i = 0; i < width; i += W) {
                    const int64_t at = int64_t(t) * width + i;
                    const vf x = load(q.x + at), step = load(q.step + at), dy = load(q.dy + at);
                    const vf gain = s.gain ? load(q.gain + at) : fill(1.0f);
                    const vf dwrite = load(q.dwrite + at), ddecay = load(q.ddecay + at);
                    store(q.x + at, fma(dwrite * gain, step, dy * load(skip + i)));
                    if (s.gain) store(q.gain + at, dwrite * step * x);
                    vf dstep = dwrite * x * gain;
                    if (!s.decay_step) dstep = dstep + ddecay;
                    if (s.softplus) dstep = dstep * -expm1(-step);  // sigmoid(v) = 1 - exp(-softplus(v))
                    store(q.step + at, dstep);
                    store(dbias + i, load(dbias + i) + dstep);
                    store(dskip + i, fma(dy, x, load(dskip + i)));
                    if (s.gate) store(q.gate + at, load(q.gate + at) * load(q.y + at));
                }
            for (int t = 0; t < n; ++t) {
                const int64_t at = int64_t(t) * width;
                store_row(s.dx.at(b, t0 + t, d0), q.x + at, s.dx.element, 1, columns, s.dx.past_caches);
                store_row(s.dstep.at(b, t0 + t, d0), q.step + at, s.dstep.element, 1, columns, s.dstep.past_caches);
                if (s.gain) store_row(s.dgain.at(b, t0 + t, d0), q.gain + at, s.dgain.element, 1, columns, s.dgain.past_caches);
                if (s.gate) store_row(s.dgate.at(b, t0 + t, d0), q.gate + at, s.dgate.element, 1, columns, s.dgate.past_caches);
                if (s.decay_step)
                    store_row(s.ddecay_step.at(b, t0 + t, d0), q.ddecay + at, s.ddecay_step.element, 1, columns, s.ddecay_step.past_caches);
            }
        }
        store_transposed(s.dinitial + (b * s.channels + d0) * s.states, dh, columns, s.states, width);
        store_transposed(s.dA + (b * s.channels + d0) * s.states, dA, columns, s.states, width);
        std::memcpy(s.dbias + b * s.channels + d0, dbias, sizeof(float) * size_t(columns));
        std::memcpy(s.dskip + b * s.channels + d0, dskip, sizeof(float) * size_t(columns));
    });
}
