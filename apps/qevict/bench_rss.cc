#include "bench_rss.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "messages.h"
#include "terminal.h"

namespace qevict::app {
namespace {

// The arguments this process was started with.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

// Everything until the other end is closed.
std::string drain(int descriptor) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string last_line(const std::string& text) {
  std::string last;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) last = line;
  return last;
}

// Both outputs of the process together, and its exit code.
Result<std::pair<std::string, int>> run_again(std::vector<std::string> arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("no pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int problem = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text = problem == 0 ? drain(ends[0]) : "";
  ::close(ends[0]);
  if (problem != 0) return io_error("cannot start a second process: {}", std::strerror(problem));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return std::pair{std::move(text), WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc{} && end == text.data() + text.size();
}

}  // namespace

Result<RssTask> RssTask::parse(const std::string& text) {
  RssTask task;
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos || !read_number(std::string_view(text).substr(0, comma), task.engine) ||
      !read_number(std::string_view(text).substr(comma + 1), task.depth) || task.depth < 0) {
    return invalid("'{}' is not ENGINE,DEPTH", text);
  }
  return task;
}

std::string RssTask::to_string() const { return fmt::format("{},{}", engine, depth); }

Result<std::size_t> measure_rss(const RssTask& task) {
  std::vector<std::string> arguments = own_arguments();
  if (arguments.empty()) return Error{Error::Kind::unsupported, "--rss needs /proc, which is not there"};
  arguments.push_back(fmt::format("{}={}", kRssFlag, task.to_string()));
  const auto ended = run_again(std::move(arguments));
  if (!ended) return ended.error();
  if (interrupted()) return Error{Error::Kind::interrupted, "interrupted"};
  const auto& [text, code] = *ended;
  const std::string line = last_line(text);
  std::size_t bytes = 0;
  if (code == kExitOk && read_number(line, bytes)) return bytes;
  return io_error("measuring peak memory: the process ended with {}: {}", code, line);
}

}  // namespace qevict::app
