// Memory for large outputs that is kept from one output to the next: touching fresh pages costs as much as a
// convolution. Linux may take back what is kept whenever it needs it.
#include <algorithm>
#include <new>

#include "arrays.hpp"
#include "binding.hpp"

namespace lengthen {
namespace {

struct Block {
    void* data;
    size_t size;
};

class KeptBlocks {
  public:
    // The closest fit that leaves at most a quarter unused, of several the latest; else fresh memory.
    Block take(size_t bytes) {
        const size_t size = (bytes + page - 1) / page * page;
        {
            std::lock_guard<std::mutex> lock(guard_);
            auto best = blocks_.end();
            for (auto block = blocks_.begin(); block != blocks_.end(); ++block)
                if (block->size >= size && block->size <= size + size / 4 &&
                    (best == blocks_.end() || block->size <= best->size))
                    best = block;
            if (best != blocks_.end()) {
                const Block found = *best;
                blocks_.erase(best);
                total_ -= found.size;
                return found;
            }
        }
        void* data = std::aligned_alloc(page, size);
        if (!data) throw std::bad_alloc();
        prefer_huge_pages(data, int64_t(size));
        return {data, size};
    }

    void give(Block block) {
#if defined(__linux__) && defined(MADV_FREE)
        madvise(block.data, block.size, MADV_FREE);
#endif
        std::lock_guard<std::mutex> lock(guard_);
        blocks_.push_back(block);
        total_ += block.size;
        while (total_ > most) {
            total_ -= blocks_.front().size;
            std::free(blocks_.front().data);
            blocks_.erase(blocks_.begin());
        }
    }

  private:
    static constexpr size_t page = size_t(1) << 21;
    static constexpr size_t most = size_t(1) << 30;
    std::mutex guard_;
    std::vector<Block> blocks_;  // the longest kept first
    size_t total_ = 0;
};

KeptBlocks& kept_blocks() {
    static KeptBlocks* const blocks = new KeptBlocks;  // tensors may outlive every other static
    return *blocks;
}

using Bytes = nanobind::ndarray<nanobind::pytorch, uint8_t, nanobind::ndim<1>, nanobind::device::cpu>;

Bytes large_output(size_t bytes) {
    require(bytes >= 1, "an output has no bytes");
    Block* const block = new Block(kept_blocks().take(bytes));
    nanobind::capsule owner(block, [](void* p) noexcept {
        Block* const mine = static_cast<Block*>(p);
        kept_blocks().give(*mine);
        delete mine;
    });
    return Bytes(block->data, {bytes}, owner);
}

}  // namespace
}  // namespace lengthen

LENGTHEN_BIND(m) {
    m.def("large_output", &lengthen::large_output, nanobind::arg("bytes"));
}
