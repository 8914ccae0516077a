#include "spillway/storage/ledger.h"

namespace spillway::storage {

Ledger::Ledger(Bytes capacity, Bytes piece_size) : piece_size_(piece_size), marks_(capacity / piece_size) {}

}  // namespace spillway::storage
