// The short causal convolution for one instruction set. Dims: B batch, T positions, D channels, `taps` of them.
// One task is one row of the batch and one block of channels; lanes are channels. A reset shortens how far back the
// positions after it may look: `reach[t]` inputs before position t are seen.

namespace short_conv_detail {

constexpr int64_t width = 512;  // channels of a block at most: wide enough for memory to be read in long runs
constexpr int64_t length = 24;  // positions of a tile

// Channels of a block: as many as leave every thread one, a multiple of what a cache line holds.
INLINE int64_t block_of(const ShortConv& p) {
    const int64_t share = (p.batch * p.channels + p.threads - 1) / p.threads;
    return std::clamp<int64_t>((share + 15) / 16 * 16, 128, width);
}

// The lanes that hold a block's channels.
INLINE int64_t lanes(int columns) { return (columns + W - 1) / W * W; }

struct Row {
    const uint8_t* reach;
    int64_t real;        // positions that are no padding
    int64_t last_reset;  // among them, or -taps
};

INLINE Row read_row(const ShortConv& p, uint8_t* reach, int64_t b) {
    Row row{reach, p.positions, -p.taps};
    if (p.lengths) {
        row.real = reinterpret_cast<const int64_t*>(p.lengths)[b];
        row.real = row.real < 0 ? 0 : row.real > p.positions ? p.positions : row.real;
    }
    int64_t seen = p.taps - 1;
    for (int64_t t = 0; t < row.real; ++t) {
        if (p.reset && *(static_cast<const uint8_t*>(p.reset.data) + b * p.reset.strides[0] + t * p.reset.strides[1])) {
            seen = 0;
            row.last_reset = t;
        }
        reach[t] = uint8_t(seen);
        seen += seen < p.taps - 1;
    }
    return row;
}

// Inputs t0 - (taps - 1) ... end - 1 of a block, one row each; those before the segment come from the window.
INLINE void load_inputs(const ShortConv& p, float* tile, int64_t b, int64_t t0, int64_t end, int64_t d0, int columns) {
    const int64_t span = lanes(columns);
    for (int64_t t = t0 - (p.taps - 1); t < end; ++t, tile += width) {
        if (t >= 0)
            load_row(tile, p.x.at(b, t, d0), p.x.element, p.x.strides[2], columns, int(span));
        else
            load_row(tile, p.window.at(b, d0, t + p.taps - 1), p.window.element, p.window.strides[1], columns, int(span));
    }
}

INLINE void load_taps(const ShortConv& p, float* taps, float* bias, int64_t d0, int columns) {
    const int64_t span = lanes(columns);
    for (int64_t j = 0; j < p.taps; ++j)
        load_row(taps + j * width, p.weight.at(d0, j), p.weight.element, p.weight.strides[0], columns, int(span));
    if (p.bias)
        load_row(bias, p.bias.at(d0), p.bias.element, p.bias.strides[0], columns, int(span));
    else
        for (int64_t i = 0; i < span; i += W) store(bias + i, vf{});
}

// What the taps see at one position, before the activation; `here` is the input of the position itself.
INLINE vf convolve(const float* here, const float* taps, vf bias, int64_t reach, int64_t last) {
    vf sum = bias;
    for (int64_t back = reach; back >= 0; --back)
        sum = fma(load(taps + (last - back) * width), load(here - back * width), sum);
    return sum;
}

}  // namespace short_conv_detail

inline void short_conv_forward(const ShortConv& p) {
    using namespace short_conv_detail;
    const int64_t block = block_of(p), blocks = (p.channels + block - 1) / block, last = p.taps - 1;
    parallel_for(p.batch * blocks, p.threads, [&](int64_t task) {
        const int64_t b = task / blocks, d0 = task % blocks * block;
        const int columns = int(std::min(p.channels - d0, block));
        const int64_t span = lanes(columns);
        Scratch& scratch = Scratch::of_this_thread();
        float* tile = scratch.take((length + last) * width);
        float *taps = scratch.take(p.taps * width), *bias = scratch.take(width), *y = scratch.take(width);
        const Row row = read_row(p, reinterpret_cast<uint8_t*>(scratch.take(p.positions / 4 + 1)), b);
        load_taps(p, taps, bias, d0, columns);
        for (int64_t t0 = 0; t0 < row.real; t0 += length) {
            const int64_t end = t0 + length < row.real ? t0 + length : row.real;
            load_inputs(p, tile, b, t0, end, d0, columns);
            for (int64_t t = t0; t < end; ++t) {
                const float* here = tile + (t - t0 + last) * width;
                for (int64_t i = 0; i < span; i += W) {
                    __builtin_prefetch(p.x.at(b, t + length, d0 + i));  // of the next tile, a little at each step
                    const vf sum = convolve(here + i, taps + i, load(bias + i), row.reach[t], last);
                    store(y + i, p.silu ? sum * sigmoid(sum) : sum);
                }
                store_row(p.y.at(b, t, d0), y, p.y.element, 1, columns, p.y.past_caches);
            }
        }
        for (int64_t i = 0; i < span; i += W) store(y + i, vf{});
        for (int64_t t = row.real; t < p.positions; ++t) store_row(p.y.at(b, t, d0), y, p.y.element, 1, columns, p.y.past_caches);
        for (int64_t slot = 0; slot < last; ++slot) {
            const int64_t t = row.real - last + slot;
            if (t >= 0)
                load_row(y, p.x.at(b, t, d0), p.x.element, p.x.strides[2], columns, int(span));
            else
                load_row(y, p.window.at(b, d0, t + last), p.window.element, p.window.strides[1], columns, int(span));
            for (int i = 0; i < columns; ++i)
                p.final_window[(b * p.channels + d0 + i) * last + slot] = t < row.last_reset ? 0.0f : y[i];
        }
    });
}

inline void short_conv_backward(const ShortConv& p) {
    using namespace short_conv_detail;
    const int64_t block = block_of(p), blocks = (p.channels + block - 1) / block, last = p.taps - 1;
    parallel_for(p.batch * blocks, p.threads, [&](int64_t task) {
        const int64_t b = task / blocks, d0 = task % blocks * block;
        const int columns = int(std::min(p.channels - d0, block));
        const int64_t span = lanes(columns);
        Scratch& scratch = Scratch::of_this_thread();
        float* tile = scratch.take((length + last) * width);
        float* dz = scratch.take((length + last) * width);  // of the tile, then of the positions after it
        float *taps = scratch.take(p.taps * width), *bias = scratch.take(width), *line = scratch.take(width);
        float *dtaps = scratch.take(p.taps * width), *dbias = scratch.take(width);
        const Row row = read_row(p, reinterpret_cast<uint8_t*>(scratch.take(p.positions / 4 + 1)), b);
        load_taps(p, taps, bias, d0, columns);
        for (int64_t i = 0; i < p.taps * width; i += W) store(dtaps + i, vf{});
        for (int64_t i = 0; i < span; i += W) store(dbias + i, vf{}), store(line + i, vf{});
        for (int64_t i = 0; i < last * width; i += W) store(dz + i, vf{});
        for (int64_t t = row.real; t < p.positions; ++t) store_row(p.dx.at(b, t, d0), line, p.dx.element, 1, columns, p.dx.past_caches);

        // The gradient of the input at t, from the positions after it that see it and from the final window.
        const auto input_gradient = [&](int64_t t, const float* here) {
            for (int64_t i = 0; i < span; i += W) {
                vf sum = vf{};
                for (int64_t ahead = t < 0 ? -t : 0; ahead <= last && t + ahead < row.real; ++ahead)
                    if (row.reach[t + ahead] >= ahead)
                        sum = fma(load(taps + (last - ahead) * width + i), load(here + ahead * width + i), sum);
                store(line + i, sum);
            }
            const int64_t slot = t - row.real + last;
            if (slot >= 0 && t >= row.last_reset)
                for (int i = 0; i < columns; ++i)
                    line[i] += *reinterpret_cast<const float*>(p.dfinal_window.at(b, d0 + i, slot));
        };
        for (int64_t t0 = (row.real - 1) / length * length; t0 >= 0 && row.real > 0; t0 -= length) {
            const int64_t end = t0 + length < row.real ? t0 + length : row.real, n = end - t0;
            for (int64_t i = last * width; i-- > 0;) dz[n * width + i] = dz[i];
            load_inputs(p, tile, b, t0, end, d0, columns);
            for (int64_t t = t0; t < end; ++t) {
                const float* here = tile + (t - t0 + last) * width;
                float* dsum = dz + (t - t0) * width;
                load_row(dsum, p.dy.at(b, t, d0), p.dy.element, p.dy.strides[2], columns, int(span));
                const int64_t reach = row.reach[t];
                for (int64_t i = 0; i < span; i += W) {
                    __builtin_prefetch(p.x.at(b, t - length, d0 + i));
                    __builtin_prefetch(p.dy.at(b, t - length, d0 + i));
                    vf d = load(dsum + i);
                    if (p.silu) {
                        const vf sum = convolve(here + i, taps + i, load(bias + i), reach, last);
                        const vf gate = sigmoid(sum);
                        d *= gate * fma(sum, 1.0f - gate, fill(1.0f));
                        store(dsum + i, d);
                    }
                    store(dbias + i, load(dbias + i) + d);
                    for (int64_t back = 0; back <= reach; ++back) {
                        float* dtap = dtaps + (last - back) * width + i;
                        store(dtap, fma(d, load(here - back * width + i), load(dtap)));
                    }
                }
            }
            for (int64_t t = end; t-- > t0;) {
                input_gradient(t, dz + (t - t0) * width);
                store_row(p.dx.at(b, t, d0), line, p.dx.element, 1, columns, p.dx.past_caches);
            }
        }
        for (int64_t t = -last; t < 0; ++t) {
            input_gradient(t, dz + t * width);
            for (int i = 0; i < columns; ++i) p.dwindow[(b * p.channels + d0 + i) * last + t + last] = line[i];
        }
        for (int64_t j = 0; j < p.taps; ++j)
            for (int i = 0; i < columns; ++i) p.dweight[(b * p.channels + d0 + i) * p.taps + j] = dtaps[j * width + i];
        for (int i = 0; i < columns; ++i) p.dbias[b * p.channels + d0 + i] = dbias[i];
    });
}
