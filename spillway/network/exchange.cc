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

void broadcast(Port& port, std::size_t from, std::span<std::byte> bytes) {
  const bool sends = from == port.rank();
  std::vector<Message> messages;
  for (std::size_t peer = 0; peer < port.size(); ++peer) {
    if (peer != port.rank() && (sends || peer == from)) {
      messages.push_back({.peer = peer, .sends = sends, .bytes = bytes});
    }
  }
  exchange(port, std::move(messages));
}

}  // namespace spillway::network
