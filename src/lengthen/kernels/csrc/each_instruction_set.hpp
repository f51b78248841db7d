// Compiles LENGTHEN_KERNEL once for each instruction set, each in a namespace of its own; LENGTHEN_DISPATCH calls
// the one that instruction_set() names. Standard headers are included before, so that none of their functions is
// compiled for a machine wider than the one it runs on.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own AVX-512 intrinsics
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#endif
namespace avx512 {
#define LENGTHEN_WIDTH 16
#include "vector.hpp"
#include LENGTHEN_KERNEL
#undef LENGTHEN_WIDTH
#undef INLINE
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#define LENGTHEN_WIDTH 8
#include "vector.hpp"
#include LENGTHEN_KERNEL
#undef LENGTHEN_WIDTH
#undef INLINE
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

namespace portable {
#define LENGTHEN_WIDTH 4
#include "vector.hpp"
#include LENGTHEN_KERNEL
#undef LENGTHEN_WIDTH
#undef INLINE
}  // namespace portable

#if defined(__x86_64__)
#define LENGTHEN_DISPATCH(call)                                      \
    switch (instruction_set()) {                                     \
        case InstructionSet::avx512: avx512::call; break;            \
        case InstructionSet::avx2: avx2::call; break;                \
        case InstructionSet::portable: portable::call; break;        \
    }
#else
#define LENGTHEN_DISPATCH(call) portable::call
#endif
