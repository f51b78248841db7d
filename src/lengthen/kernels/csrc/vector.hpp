// Vectors of floats and their functions. Included once for each instruction set, inside its namespace and under
// its target pragma, with LENGTHEN_WIDTH lanes: hence no include guard.

constexpr int W = LENGTHEN_WIDTH;
typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float* p) { vf v; __builtin_memcpy(&v, p, sizeof v); return v; }
INLINE void store(float* p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE vf fill(float x) { return x - vf{}; }

#if LENGTHEN_WIDTH == 16
INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
// The second operand where either is NaN.
INLINE vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
// v where the sign bit of c is set, else zero.
INLINE vf where_signed(vf c, vf v) {
    return (vf)_mm512_maskz_mov_ps(_mm512_movepi32_mask((__m512i)c), (__m512)v);
}
#elif LENGTHEN_WIDTH == 8
INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf where_signed(vf c, vf v) { return (vf)((vi)v & ((vi)c >> 31)); }
#else
INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf max(vf a, vf b) { return a > b ? a : b; }
INLINE vf min(vf a, vf b) { return a < b ? a : b; }
INLINE vf where_signed(vf c, vf v) { return (vf)((vi)v & ((vi)c >> 31)); }
#endif

INLINE float sum(vf v) {
    float lanes[W];
    store(lanes, v);
    for (int width = W / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

// out[i] += the sum of the lanes of v[i], for four vectors.
INLINE void add_sums(float* out, const vf v[4]) {
#if LENGTHEN_WIDTH == 16
    const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
#elif LENGTHEN_WIDTH == 8
    const __m256 a = (__m256)v[0], b = (__m256)v[1], c = (__m256)v[2], d = (__m256)v[3];
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
#else
    for (int i = 0; i < 4; ++i) out[i] += sum(v[i]);
#endif
}

// exp(x) - 1 = scale (1 + excess) - 1 with |ln(1 + excess)| <= ln(2) / 2, for x <= 88; scale is 0 from x = -87.7
// down. The polynomial's relative error in `excess` is 1.4e-8.
struct Exponential {
    vf scale, excess;
};
INLINE Exponential exponential(vf x) {
    x = max(fill(-88.0f), x);
    const vf shifted = fma(x, fill(1.44269504f), fill(12582912.0f));
    const vf n = shifted - fill(12582912.0f);
#if LENGTHEN_WIDTH >= 8
    const vf r = fma(n, fill(-0.693147182f), x);
#else
    // Both parts negative: -0 must stay -0, see decay_coefficient.
    const vf r = (x + n * fill(-0.693145752f)) + n * fill(-1.42860677e-6f);
#endif
    vf q = fma(fill(1.3946426e-3f), r, fill(8.366572e-3f));
    q = fma(q, r, fill(4.1666284e-2f));
    q = fma(q, r, fill(1.6666543e-1f));
    q = fma(q, r, fill(0.5f));
    const vf excess = r * fma(q, r, fill(1.0f));
    const vf scale = (vf)(((vi)shifted << 23) + 0x3f800000);
    return {scale, excess};
}
INLINE vf exp(vf x) {
    const Exponential e = exponential(min(fill(88.0f), x));
    return fma(e.scale, e.excess, e.scale);
}
INLINE vf expm1(vf x) {
    const Exponential e = exponential(min(fill(88.0f), x));
    return fma(e.scale, e.excess, e.scale - 1.0f);
}

// A decay is kept as one float: with the sign bit set it is decay - 1 (slow decays, whose distance from 1 float32
// could not hold: 1e-6 would be off by 3 %), without it the decay itself. log-decay -inf gives exactly 0.
INLINE vf decay_coefficient(vf log_decay) {
    const vi slow = (vi)log_decay < (int32_t)(0x80000000u + 0x3eae147bu);  // -0.34 < log-decay <= -0.0
    const Exponential e = exponential(log_decay);
    const vf decay = fma(e.scale, e.excess, e.scale);
    return slow ? e.excess : decay;
}
INLINE vf decayed(vf coefficient, vf state) { return fma(coefficient, state, where_signed(coefficient, state)); }
// decayed(coefficient, state) + write, where a change below the state's last digit still counts together with the
// write: rounded once.
INLINE vf advanced(vf coefficient, vf state, vf write) {
    return fma(coefficient, state, write) + where_signed(coefficient, state);
}

// log(1 + u) for 0 <= u <= 1, as 2 atanh(u / (2 + u)).
INLINE vf log1p_unit(vf u) {
    const vf s = u / (u + 2.0f), z = s * s;
    vf p = fma(fill(0.122128315f), z, fill(0.10694886f));
    p = fma(p, z, fill(0.1431053f));
    p = fma(p, z, fill(0.19999339f));
    p = fma(p, z, fill(0.3333334f));
    p = fma(p, z, fill(1.0f));
    return 2.0f * s * p;
}
INLINE vf softplus(vf x) {
    const vf magnitude = max(x, -x);
    return max(fill(0.0f), x) + log1p_unit(exp(-magnitude));
}
INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

// Rows of a tensor into a dense tile of `width` floats a row (the lanes past `columns` zero), and back.
INLINE void load_row(float* tile, const char* source, Element element, int64_t stride, int columns, int width) {
    int i = 0;
    if (element == Element::float32) {
        const float* p = reinterpret_cast<const float*>(source);
        if (stride == 1)
            for (; i + W <= columns; i += W) store(tile + i, load(p + i));
        for (; i < columns; ++i) tile[i] = p[i * stride];
    } else {
        const uint16_t* p = reinterpret_cast<const uint16_t*>(source);
        if (stride == 1)
            for (; i + W <= columns; i += W) {
                vh half;
                __builtin_memcpy(&half, p + i, sizeof half);
                store(tile + i, (vf)(__builtin_convertvector(half, vu) << 16));
            }
        for (; i < columns; ++i) tile[i] = widen(p[i * stride]);
    }
    for (; i < width; ++i) tile[i] = 0.0f;
}
// n rows, one a position; asks for the row `ahead` bytes on of each, since a head's rows lie too far apart for the
// machine to foresee.
INLINE void load_rows(float* tile, const View& view, const char* source, int64_t position_stride, int64_t stride, int n,
                      int columns, int width, int64_t ahead) {
    for (int t = 0; t < n; ++t) {
        const char* row = source + t * position_stride * view.bytes();
        for (int64_t i = 0; i < columns * view.bytes(); i += 64) __builtin_prefetch(row + ahead * view.bytes() + i);
        load_row(tile + int64_t(t) * width, row, view.element, stride, columns, width);
    }
}
// Past the caches: for outputs that outgrow them, which otherwise would be read before they are written.
INLINE void stream(float* p, vf v) {
#if LENGTHEN_WIDTH == 16
    _mm512_stream_ps(p, (__m512)v);
#elif LENGTHEN_WIDTH == 8
    _mm256_stream_ps(p, (__m256)v);
#else
    store(p, v);
#endif
}
INLINE void store_row(char* target, const float* tile, Element element, int64_t stride, int columns,
                      bool past_caches = false) {
    int i = 0;
    if (element == Element::float32) {
        float* p = reinterpret_cast<float*>(target);
        if (past_caches && stride == 1 && reinterpret_cast<uintptr_t>(p) % (W * 4) == 0)
            for (; i + W <= columns; i += W) stream(p + i, load(tile + i));
        if (stride == 1)
            for (; i + W <= columns; i += W) store(p + i, load(tile + i));
        for (; i < columns; ++i) p[i * stride] = tile[i];
    } else {
        uint16_t* p = reinterpret_cast<uint16_t*>(target);
        if (stride == 1)
            for (; i + W <= columns; i += W) {
                const vf v = load(tile + i);
                const vu word = (vu)v;
                const vu rounded = v == v ? (word + 0x7fff + ((word >> 16) & 1)) >> 16 : (word >> 16) | 0x40;
                const vh half = __builtin_convertvector(rounded, vh);
                __builtin_memcpy(p + i, &half, sizeof half);
            }
        for (; i < columns; ++i) p[i * stride] = narrow(tile[i]);
    }
}
