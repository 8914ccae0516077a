// A process of this program, whose standard output comes to the driver and whose errors go to a file.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace spillway::stress {

/// The pipe of a round, which several processes share.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int to_write() const { return ends_[1]; }
  /// Whole lines that came within so many milliseconds.
  [[nodiscard]] std::vector<std::string> lines(int milliseconds) {
    pollfd ready{ends_[0], POLLIN, 0};
    if (::poll(&ready, 1, milliseconds) > 0) {
      std::array<char, 65536> block;
      const auto count = ::read(ends_[0], block.data(), block.size());
      if (count > 0) rest_.append(block.data(), static_cast<std::size_t>(count));
    }
    std::vector<std::string> out;
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      out.push_back(rest_.substr(0, end));
      rest_.erase(0, end + 1);
    }
    return out;
  }

 private:
  std::array<int, 2> ends_{};
  std::string rest_;
};

class Child {
 public:
  Child(const std::vector<std::string>& arguments, const Pipe& pipe, const std::filesystem::path& errors) {
    std::vector<char*> words = {const_cast<char*>("stress")};
    for (const auto& it : arguments) words.push_back(const_cast<char*>(it.c_str()));
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("no fork");
    if (pid_ > 0) return;
    const int out = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(pipe.to_write(), STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv("/proc/self/exe", words.data());
    ::_exit(70);
  }
  ~Child() {
    kill(SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  /// Whether it has ended; then its status is known.
  [[nodiscard]] bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ < 0;
  }
  [[nodiscard]] int status() const { return status_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace spillway::stress
