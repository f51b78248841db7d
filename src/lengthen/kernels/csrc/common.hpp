// What the compiled kernels share: tensors as strided views, threads, the choice of an instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <dlfcn.h>
#include <sys/mman.h>
#endif

namespace lengthen {

enum class Element : int { float32, bfloat16 };

// A tensor of up to four axes; strides count elements. A view without data stands for an argument left out.
struct View {
    void* data = nullptr;
    Element element = Element::float32;
    int64_t strides[4] = {0, 0, 0, 0};
    bool past_caches = false;  // an output that outgrows the caches: written past them

    explicit operator bool() const { return data != nullptr; }
    int64_t bytes() const { return element == Element::bfloat16 ? 2 : 4; }
    char* at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const {
        return static_cast<char*>(data) +
               (i * strides[0] + j * strides[1] + k * strides[2] + l * strides[3]) * bytes();
    }
};

inline float widen(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Round to nearest, ties to even; a NaN stays one.
inline uint16_t narrow(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if (value != value) return static_cast<uint16_t>((word >> 16) | 0x40);
    return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

// States that decay for long turn denormal, and denormal arithmetic is slow: they count as zero in a kernel.
class FlushDenormals {
#if defined(__x86_64__)
  public:
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#else
  public:
    FlushDenormals() {}
#endif
};

// Runs work() here and on other threads, `threads` at most. PyTorch's own pool, where it stands on OpenMP under GNU's
// names: its idle threads keep their cores busy for a while after each of PyTorch's operators, so that threads of our
// own would have to share the cores with them.
template <class Work>
void on_threads(int threads, const Work& work) {
#if defined(__linux__)
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    static const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    if (parallel) {
        const auto call = [](void* data) { (*static_cast<const Work*>(data))(); };
        return parallel(call, const_cast<Work*>(&work), unsigned(threads), 0);
    }
#endif
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}

// Calls body(task) for each task below `tasks`, on at most `threads` threads; which thread runs a task never
// changes a result. The first exception of a task is thrown here.
template <class Body>
void parallel_for(int64_t tasks, int threads, const Body& body) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto work = [&] {
        FlushDenormals flush;
        try {
            for (int64_t task = next++; task < tasks; task = next++) body(task);
#if defined(__x86_64__)
            _mm_sfence();  // stores past the caches are seen only after this
#endif
        } catch (...) {
            std::lock_guard<std::mutex> lock(guard);
            if (!failure) failure = std::current_exception();
        }
    };
    const int wanted = int(std::min<int64_t>(threads, tasks));
    if (wanted > 1)
        on_threads(wanted, work);
    else
        work();
    if (failure) std::rethrow_exception(failure);
}

// Large fresh outputs: asks for huge pages before they are first touched, since small ones cost more than the
// arithmetic that fills them.
inline void prefer_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = uintptr_t(1) << 21;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / page * page;
    if (last > first + page) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// A thread's working memory, aligned for the widest vectors and kept between calls.
class Scratch {
  public:
    // Memory for `count` floats; the next call hands out the same bytes again after reset().
    float* take(int64_t count) {
        const int64_t rounded = (count + 15) / 16 * 16;
        if (block_ == blocks_.size()) blocks_.emplace_back();
        Block& block = blocks_[block_++];
        if (block.size < rounded) {
            std::free(block.data);
            block.data = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(rounded) * 4));
            if (!block.data) throw std::bad_alloc();
            block.size = rounded;
        }
        return block.data;
    }
    void reset() { block_ = 0; }
    static Scratch& of_this_thread() {
        thread_local Scratch scratch;
        scratch.reset();
        return scratch;
    }
    ~Scratch() {
        for (auto& block : blocks_) std::free(block.data);
    }

  private:
    struct Block {
        float* data = nullptr;
        int64_t size = 0;
    };
    std::vector<Block> blocks_;
    size_t block_ = 0;
};

enum class InstructionSet : int { portable, avx2, avx512 };

// The widest one this machine has, unless set (tests run each).
inline InstructionSet& instruction_set() {
    static InstructionSet best = [] {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
            return InstructionSet::avx512;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::avx2;
#endif
        return InstructionSet::portable;
    }();
    return best;
}

}  // namespace lengthen
