// What room `sink` says of the arithmetic of passes, under the names of this room.
#pragma once

#include "spillway/sink/arithmetic.h"

namespace spillway::execute {

using sink::Arithmetic;
using sink::element_of;

}  // namespace spillway::execute
