#include "spillway/storage/failure.h"

#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

namespace spillway::storage {
namespace {

std::string_view name_of(const Subject& place) {
  return place.what.empty() ? "a transfer" : place.what;
}

/// "exp_avg of layer 3: reading 1.0 MiB at byte 4194304 of /ssd/spillway.volume".
std::string action(const Subject& place) {
  return text(name_of(place), ": ", place.direction == Direction::read ? "reading " : "writing ", human(place.bytes),
              " at byte ", place.offset, " of ", place.volume.string());
}

std::string_view advice(int errno_value) {
  switch (errno_value) {
    case EIO:
      return "The drive or its file system reported a fault (see dmesg); use another storage directory";
    case ENOSPC:
    case EDQUOT:
      return "The file system ran out of space under the volume (copy-on-write, snapshots, thin provisioning?); free "
             "space there or use another storage directory";
    case EINVAL:
      return "The file system refused the transfer's alignment or O_DIRECT; use another storage directory";
    case ESTALE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ECONNRESET:
    case ECONNABORTED:
      return "The server of its file system is away, or was begun anew; what was durable is there when the file system "
             "answers again (it may have to be mounted again), and resuming the run takes it back";
    default:
      return "Check the file system that holds the volume, or use another storage directory";
  }
}

std::exception_ptr make(ErrorCode code, std::string message, const Subject& place, int errno_value = 0) {
  return std::make_exception_ptr(Error(code, std::move(message), errno_value, place.volume.string()));
}

}  // namespace

std::exception_ptr system_failure(const Subject& place, int errno_value) {
  return make(ErrorCode::io,
              text(action(place), " failed: ", sys::describe_errno(errno_value), ". ", advice(errno_value)), place,
              errno_value);
}

std::exception_ptr stalled(const Subject& place, Bytes moved) {
  return make(ErrorCode::io,
              text(action(place), " stopped after ", moved,
                   " bytes. Was the volume cut short, or is its file system full? Use another storage directory"),
              place);
}

std::exception_ptr corrupt(const Subject& place) {
  return make(ErrorCode::corrupt,
              text(name_of(place), " is corrupt: the ", human(place.bytes), " at byte ", place.offset, " of ",
                   place.volume.string(),
                   " are not what was written there. The drive, its cable or memory is at fault, or another program "
                   "wrote to the volume; resume from the last checkpoint, on another drive if it happens again"),
              place);
}

std::exception_ptr never_written(const Subject& place, Bytes written) {
  return make(ErrorCode::internal, text(action(place), ", where ", written, " bytes were written"), place);
}

std::exception_ptr unanswered(const std::filesystem::path& path, int errno_value) {
  return std::make_exception_ptr(Error(ErrorCode::io,
                                       text("whether ", path.string(), " is there could not be found out: ",
                                            sys::describe_errno(errno_value), ". ", advice(errno_value)),
                                       errno_value, path.string()));
}

std::exception_ptr unflushed(const std::filesystem::path& volume, int errno_value) {
  return std::make_exception_ptr(
      Error(ErrorCode::io,
            text("flushing ", volume.string(), " failed: ", sys::describe_errno(errno_value),
                 ". What was written there since the flush before may be lost. ", advice(errno_value)),
            errno_value, volume.string()));
}

}  // namespace spillway::storage
