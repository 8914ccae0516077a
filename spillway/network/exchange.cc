#include "spillway/network/exchange.h"

#include <exception>
#include <utility>

#include "spillway/base/mutex.h"

namespace spillway::network {
namespace {

struct Ending {
  Mutex mutex;
  Condition ended;
  bool done SPILLWAY_GUARDED_BY(mutex) = false;
  std::exception_ptr error SPILLWAY_GUARDED_BY(mutex);
};

}  // namespace

void exchange(Port& port, std::vector<Message> messages) {
  Ending ending;
  port.start(std::move(messages), [&ending](const std::exception_ptr& error) {
    const MutexLock lock(ending.mutex);
    ending.error = error;
    ending.done = true;
    ending.ended.notify_one();
  });
  MutexLock lock(ending.mutex);
  while (!ending.done) ending.ended.wait(lock);
  if (ending.error) std::rethrow_exception(ending.error);
}

void move_bytes(Port& port, std::span<const std::size_t> peers, bool sends, std::span<std::byte> bytes) {
  if (peers.empty() || bytes.empty()) return;
  std::vector<Message> messages;
  for (const auto peer : peers) messages.push_back({.peer = peer, .sends = sends, .bytes = bytes});
  exchange(port, std::move(messages));
}

void broadcast(Port& port, std::size_t from, std::span<std::byte> bytes) {
  if (from != port.rank()) return move_bytes(port, std::span(&from, 1), false, bytes);
  std::vector<std::size_t> others;
  for (std::size_t peer = 0; peer < port.size(); ++peer) {
    if (peer != from) others.push_back(peer);
  }
  move_bytes(port, others, true, bytes);
}

}  // namespace spillway::network
