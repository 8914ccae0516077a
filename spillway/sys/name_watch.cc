#include "spillway/sys/name_watch.h"

#include <sys/stat.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "spillway/sys/errno.h"

namespace spillway::sys {

struct NameWatch::Question {
  std::filesystem::path path;
  dev_t device = 0;
  ino_t inode = 0;

  std::mutex mutex;
  std::condition_variable answered;
  bool asked = false;  ///< a thread asks
  bool lost = false;   ///< the last answer

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
  std::unique_lock lock(question.mutex);
  if (!question.asked) {
    question.asked = true;
    try {
      std::thread([shared = question_] {
        const bool lost = shared->ask();
        const std::lock_guard held(shared->mutex);
        shared->lost = lost;
        shared->asked = false;
        shared->answered.notify_all();
      }).detach();
    } catch (const std::system_error&) {  // no thread is to be had: nobody asks now
      question.asked = false;
    }
  }
  question.answered.wait_for(lock, patience, [&] { return !question.asked; });
  return question.lost;
}

}  // namespace spillway::sys
