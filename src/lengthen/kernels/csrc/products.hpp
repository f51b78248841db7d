// Small matrix products and transposes in registers, over dense float tiles whose rows are padded to whole vectors.
// Included once for each instruction set, inside its namespace and after vector.hpp: hence no include guard.

// A register tile of `tile_rows` rows and up to `tile_vectors` vectors of columns.
constexpr int tile_rows = W == 16 ? 8 : 4;
constexpr int tile_vectors = 2;

INLINE int64_t padded_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }
INLINE int64_t padded_columns(int64_t size) { return padded_to(size, W > tile_rows ? W : tile_rows); }
INLINE int64_t padded_rows(int64_t size) { return padded_to(size, tile_rows); }

template <int N>
struct Accumulator {
    vf at[tile_rows][N];

    inline __attribute__((always_inline)) void clear() {
        for (int r = 0; r < tile_rows; ++r)
            for (int c = 0; c < N; ++c) at[r][c] = vf{};
    }
    // Adds A B over `steps` inner indices. The element of A at (row, step) is a[row * row_stride + step * step_stride].
    inline __attribute__((always_inline)) void add_product(const float* a, int64_t row_stride, int64_t step_stride, const float* b,
                                   int64_t b_stride, int64_t steps) {
        vf sum[tile_rows][N];
        for (int r = 0; r < tile_rows; ++r)
            for (int c = 0; c < N; ++c) sum[r][c] = at[r][c];
        for (int64_t step = 0; step < steps; ++step) {
            vf right[N];
            for (int c = 0; c < N; ++c) right[c] = load(b + step * b_stride + c * W);
#pragma GCC unroll 8
            for (int r = 0; r < tile_rows; ++r) {
                const vf left = fill(a[r * row_stride + step * step_stride]);
                for (int c = 0; c < N; ++c) sum[r][c] = fma(left, right[c], sum[r][c]);
            }
        }
        for (int r = 0; r < tile_rows; ++r)
            for (int c = 0; c < N; ++c) at[r][c] = sum[r][c];
    }
    // Multiplies each row by its factor.
    inline __attribute__((always_inline)) void scale_rows(const float* factors) {
        for (int r = 0; r < tile_rows; ++r)
            for (int c = 0; c < N; ++c) at[r][c] *= fill(factors[r]);
    }
};

// Calls body(accumulator, row, column) for every register tile of `rows` x `columns`, both padded; the columns of a
// row tile end before `limit(row)`.
template <class Limit, class Body>
INLINE void for_tiles(int64_t rows, const Limit& limit, const Body& body) {
    for (int64_t row = 0; row < rows; row += tile_rows) {
        const int64_t columns = limit(row);
        int64_t column = 0;
        for (; column + tile_vectors * W <= columns; column += tile_vectors * W) {
            Accumulator<tile_vectors> tile;
            tile.clear();
            body(tile, row, column);
        }
        for (; column < columns; column += W) {
            Accumulator<1> tile;
            tile.clear();
            body(tile, row, column);
        }
    }
}

template <int N, class Body>
INLINE void for_vectors(const Accumulator<N>&, const Body& body) {
    for (int r = 0; r < tile_rows; ++r)
        for (int c = 0; c < N; ++c) body(r, c);
}

#if LENGTHEN_WIDTH == 16
INLINE vf interleave_low(vf a, vf b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
INLINE vf interleave_high(vf a, vf b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif LENGTHEN_WIDTH == 8
INLINE vf interleave_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
INLINE vf interleave_high(vf a, vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
INLINE vf interleave_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE vf interleave_high(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// target[c][r] = source[r][c]; rows and columns are rounded up to whole vectors.
INLINE void transpose(float* target, int64_t target_stride, const float* source, int64_t source_stride, int64_t rows,
                      int64_t columns) {
    for (int64_t row = 0; row < rows; row += W)
        for (int64_t column = 0; column < columns; column += W) {
            vf lines[W], next[W];
            for (int i = 0; i < W; ++i) lines[i] = load(source + (row + i) * source_stride + column);
            for (int round = W; round > 1; round /= 2) {
                for (int i = 0; i < W / 2; ++i) {
                    next[2 * i] = interleave_low(lines[i], lines[i + W / 2]);
                    next[2 * i + 1] = interleave_high(lines[i], lines[i + W / 2]);
                }
                for (int i = 0; i < W; ++i) lines[i] = next[i];
            }
            for (int i = 0; i < W; ++i) store(target + (column + i) * target_stride + row, lines[i]);
        }
}

// target = source * factors, row by row.
INLINE void scale_rows(float* target, const float* source, const float* factors, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; i += W)
            store(target + row * width + i, load(source + row * width + i) * fill(factors[row]));
}
