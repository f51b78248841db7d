// Checked views of the arrays that Python passes in.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>

#include "common.hpp"

namespace lengthen {

using Array = nanobind::ndarray<nanobind::device::cpu>;
using OptionalArray = std::optional<Array>;
using Shape = std::initializer_list<int64_t>;

inline std::string written(const int64_t* sizes, size_t axes) {
    std::string text = "[";
    for (size_t i = 0; i < axes; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
    return text + "]";
}

inline int64_t size_of(const Array& array, const char* name, size_t axes, size_t axis) {
    if (array.ndim() != axes)
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.ndim()) + " axes, not " +
                                    std::to_string(axes));
    return int64_t(array.shape(axis));
}

// A view of `array`, whose shape must be `shape`, of four axes at most; its elements are float32, or bfloat16 where `bf16` allows it.
inline View view(const Array& array, const char* name, Shape shape, bool bf16 = true) {
    bool same = array.ndim() == shape.size();
    int64_t sizes[8] = {};
    for (size_t i = 0; i < array.ndim() && i < 8; ++i) sizes[i] = int64_t(array.shape(i));
    size_t axis = 0;
    View out;
    if (shape.size() > 4) throw std::logic_error("a view has four axes at most");
    for (const int64_t expected : shape) {
        if (!same) break;
        same = sizes[axis] == expected;
        out.strides[axis] = array.stride(axis);
        ++axis;
    }
    if (!same)
        throw std::invalid_argument(std::string(name) + " has shape " + written(sizes, array.ndim()) + ", not " +
                                    written(shape.begin(), shape.size()));
    const auto type = array.dtype();
    if (type == nanobind::dtype<float>())
        out.element = Element::float32;
    else if (bf16 && type.code == uint8_t(nanobind::dlpack::dtype_code::Bfloat) && type.bits == 16)
        out.element = Element::bfloat16;
    else
        throw std::invalid_argument(std::string(name) + (bf16 ? " is neither float32 nor bfloat16" : " is not float32"));
    out.data = array.data();
    return out;
}
inline View view(const OptionalArray& array, const char* name, Shape shape, bool bf16 = true) {
    return array ? view(*array, name, shape, bf16) : View{};
}

// The same for an array that a kernel fills, whose last axis must be contiguous.
inline View output(const Array& array, const char* name, Shape shape) {
    View out = view(array, name, shape);
    const size_t last = shape.size() - 1;
    if (out.strides[last] != 1 && shape.begin()[last] != 1)
        throw std::invalid_argument(std::string(name) + "'s last axis is not contiguous");
    const int64_t bytes = int64_t(array.size()) * out.bytes();
    prefer_huge_pages(out.data, bytes);
    out.past_caches = bytes > (int64_t(1) << 21);
    return out;
}
inline View output(const OptionalArray& array, const char* name, Shape shape) {
    return array ? output(*array, name, shape) : View{};
}

// The same for an array that a kernel fills through a plain pointer: dense, float32.
inline float* dense(const Array& array, const char* name, Shape shape) {
    const View out = view(array, name, shape, false);
    for (const int64_t size : shape)
        if (size == 0) return static_cast<float*>(out.data);
    int64_t expected = 1;
    for (size_t i = shape.size(); i-- > 0;) {
        const int64_t size = shape.begin()[i];
        if (size != 1 && out.strides[i] != expected)
            throw std::invalid_argument(std::string(name) + " is not contiguous");
        expected *= size;
    }
    prefer_huge_pages(out.data, expected * 4);
    return static_cast<float*>(out.data);
}

// One byte an element, non-zero for true.
inline View flags(const OptionalArray& array, const char* name, Shape shape) {
    if (!array) return {};
    const auto type = array->dtype();
    if (type != nanobind::dtype<uint8_t>()) throw std::invalid_argument(std::string(name) + " is not uint8");
    View out;
    out.data = array->data();
    bool same = array->ndim() == shape.size();
    for (size_t i = 0; same && i < shape.size(); ++i) {
        same = int64_t(array->shape(i)) == shape.begin()[i];
        out.strides[i] = array->stride(i);
    }
    if (!same) throw std::invalid_argument(std::string(name) + " has not shape " + written(shape.begin(), shape.size()));
    return out;
}

inline void require(bool condition, const char* sentence) {
    if (!condition) throw std::invalid_argument(sentence);
}

}  // namespace lengthen
