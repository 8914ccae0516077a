#include "spillway/sys/name_watch.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "spillway/base/mutex.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {

struct NameWatch::Question {
  std::filesystem::path path;
  dev_t device = 0;
  ino_t inode = 0;

  Mutex mutex;
  Condition answered;
  bool asked SPILLWAY_GUARDED_BY(mutex) = false;  ///< a thread asks
  bool lost SPILLWAY_GUARDED_BY(mutex) = false;   ///< the last answer

  [[nodiscard]] bool ask() const noexcept {
    struct stat named {};
    if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
    return named.st_dev != device || named.st_ino != inode;
  }
};

NameWatch::NameWatch(const File& file) : question_(std::make_shared<Question>()) {
  struct stat opened {};
  if (::fstat(file.fd(), &opened) != 0) throw_errno(errno, "examine", file.path());
  question_->path = file.path();
  question_->device = opened.st_dev;
  question_->inode = opened.st_ino;
}

bool NameWatch::is_lost(std::chrono::milliseconds patience) const {
  auto& question = *question_;
  MutexLock lock(question.mutex);
  if (!question.asked) {
    try {
      std::thread([shared = question_] {
        const bool lost = shared->ask();
        const MutexLock answer(shared->mutex);
        shared->lost = lost;
        shared->asked = false;
        shared->answered.notify_all();
      }).detach();
      question.asked = true;              // its answer waits for our lock
    } catch (const std::system_error&) {  // no thread is to be had: nobody asks now
    }
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  while (question.asked) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    question.answered.wait_for(lock, left);
  }
  return question.lost;
}

}  // namespace spillway::sys
