// The extension lengthen.kernels._compiled: every operator's functions, and the instruction set they run on.
#include <nanobind/stl/string.h>

#include "binding.hpp"
#include "common.hpp"

namespace nb = nanobind;

namespace lengthen {

std::vector<Binder>& binders() {
    static std::vector<Binder> all;
    return all;
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
    m.def("instruction_set", &get_instruction_set);
    m.def("set_instruction_set", &set_instruction_set);
    for (Binder bind : binders()) bind(m);
}
