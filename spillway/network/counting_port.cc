#include "spillway/network/counting_port.h"

namespace spillway::network {

void CountingPort::start(std::vector<Message> messages, Done done) {
  for (const auto& it : messages) {
    auto& ways = it.peer / local_ == rank() / local_ ? inside_ : between_;
    (it.sends ? ways.sent : ways.received) += it.bytes.size();
  }
  port_->start(std::move(messages), std::move(done));
}

Traffic CountingPort::traffic() const noexcept {
  return {inside_.sent + between_.sent, inside_.received + between_.received, between_.sent, between_.received};
}

}  // namespace spillway::network
