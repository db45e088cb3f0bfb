#include "terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "messages.h"

namespace qevict::app {
namespace {

std::atomic<bool> interrupt_pending = false;
int wake_pipe[2] = {-1, -1};  // [1] gets a byte at each Ctrl-C, so that a wait for input ends

extern "C" void on_interrupt(int) {
  if (interrupt_pending.exchange(true)) _exit(kExitInterrupted);
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = ::write(wake_pipe[1], "", 1);
  errno = saved;
}

// Opened so that the use the descriptor is meant for fails as it would on a closed one.
void reopen_if_closed(int descriptor, int flags) {
  if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) return;
  const int opened = ::open("/dev/null", flags);  // the lowest free number: `descriptor`
  if (opened != -1 && opened != descriptor) {
    ::dup2(opened, descriptor);
    ::close(opened);
  }
}

enum class Wait { input, interrupt };

Wait wait_for(int descriptor) {
  std::array<pollfd, 2> waits = {{{descriptor, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}}};
  while (!interrupted()) {
    if (::poll(waits.data(), waits.size(), -1) > 0 && waits[0].revents != 0) return Wait::input;
  }
  return Wait::interrupt;
}

// Appends what is there to `text`. False at the end of input and on Ctrl-C.
Result<bool> read_some(int descriptor, const std::string& name, std::string& text) {
  std::array<char, 65536> buffer;
  while (wait_for(descriptor) == Wait::input) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count >= 0) return count > 0;
    if (errno != EINTR && errno != EAGAIN) return io_error("cannot read {}: {}", name, std::strerror(errno));
  }
  return false;
}

}  // namespace

void prepare_process() {
  reopen_if_closed(STDIN_FILENO, O_WRONLY);
  reopen_if_closed(STDOUT_FILENO, O_RDONLY);
  reopen_if_closed(STDERR_FILENO, O_WRONLY);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write then fails with a reason
  if (::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_pending.load(); }

void clear_interrupt() {
  std::array<char, 16> drain;
  while (::read(wake_pipe[0], drain.data(), drain.size()) > 0) {
  }
  interrupt_pending = false;
}

bool Output::write(std::string_view text) {
  if (!text.empty()) last_ = text.back();
  while (!failed() && !text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd wait = {STDOUT_FILENO, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      error_number_ = errno;
    }
  }
  return !failed();
}

Result<void> Output::status() const {
  if (failed()) return io_error("cannot write to standard output: {}", std::strerror(error_number_));
  return {};
}

bool Output::is_terminal() const { return ::isatty(STDOUT_FILENO) == 1; }

Result<std::optional<std::string>> LineReader::next() {
  while (true) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return std::optional(line);
    }
    if (ended_) {
      if (pending_.empty()) return std::optional<std::string>();
      return std::optional(std::exchange(pending_, {}));
    }
    const Result<bool> more = read_some(STDIN_FILENO, "standard input", pending_);
    if (!more) return more.error();
    if (interrupted()) return std::optional<std::string>();
    ended_ = !*more;
  }
}

bool LineReader::is_terminal() { return ::isatty(STDIN_FILENO) == 1; }

constexpr std::size_t kMostTextBytes = std::size_t{256} << 20;  // some 60 million tokens

Result<std::string> read_whole(const std::string& path) {
  const bool standard_input = path == "-";
  const std::string name = standard_input ? "standard input" : path;
  const int descriptor = standard_input ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor == -1) return io_error("cannot read {}: {}", name, std::strerror(errno));
  std::string text;
  Result<bool> more = true;
  while (more && *more && text.size() <= kMostTextBytes) more = read_some(descriptor, name, text);
  if (!standard_input) ::close(descriptor);
  if (!more) return more.error();
  if (text.size() > kMostTextBytes)
    return io_error("{} is longer than {} MiB: give a part of it", name, kMostTextBytes >> 20);
  return text;
}

}  // namespace qevict::app
