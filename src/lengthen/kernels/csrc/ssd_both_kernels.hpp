#include "chunks.hpp"
#include "ssd_kernel.hpp"
#include "ssd_backward_kernel.hpp"
