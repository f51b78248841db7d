// How an operator's file reaches Python: its LENGTHEN_BIND block runs when the extension is imported.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace lengthen {

using Binder = void (*)(nanobind::module_&);

std::vector<Binder>& binders();

struct Binding {
    explicit Binding(Binder binder) { binders().push_back(binder); }
};

}  // namespace lengthen

#define LENGTHEN_BIND(module)                          \
    static void lengthen_bind(nanobind::module_&);     \
    static lengthen::Binding lengthen_binding(lengthen_bind); \
    static void lengthen_bind(nanobind::module_& module)
