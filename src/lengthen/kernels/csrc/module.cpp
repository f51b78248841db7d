// The extension lengthen.kernels._compiled: views of tensors, the instruction set, and every operator's functions.
#include "binding.hpp"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace lengthen {

std::vector<Binder>& binders() {
    static std::vector<Binder> all;
    return all;
}

static View make_view(uintptr_t data, bool bfloat16, const std::vector<int64_t>& strides) {
    if (strides.size() > 4) throw nb::value_error("A kernel takes tensors of at most four axes.");
    View view;
    view.data = reinterpret_cast<void*>(data);
    view.element = bfloat16 ? Element::bfloat16 : Element::float32;
    for (size_t axis = 0; axis < strides.size(); ++axis) view.strides[axis] = strides[axis];
    return view;
}

static const char* const names[] = {"portable", "avx2", "avx512"};

static std::string get_instruction_set() { return names[static_cast<int>(instruction_set())]; }

static void set_instruction_set(const std::string& name) {
    static const InstructionSet best = instruction_set();
    for (int i = 0; i <= static_cast<int>(best); ++i)
        if (name == names[i]) {
            instruction_set() = static_cast<InstructionSet>(i);
            return;
        }
    throw nb::value_error(("This machine has no instruction set " + name + ".").c_str());
}

}  // namespace lengthen

NB_MODULE(_compiled, m) {
    using namespace lengthen;
    nb::set_leak_warnings(false);
    nb::class_<View>(m, "View").def(nb::init<>());
    m.def("make_view", &make_view);
    m.def("instruction_set", &get_instruction_set);
    m.def("set_instruction_set", &set_instruction_set);
    for (Binder bind : binders()) bind(m);
}
