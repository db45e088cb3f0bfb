#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace qevict::app {
namespace {

constexpr int kCells = 30;
constexpr auto kFirstAfter = std::chrono::milliseconds(400);
constexpr auto kEvery = std::chrono::milliseconds(80);
constexpr auto kEveryLine = std::chrono::minutes(1);

}  // namespace

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), draws_(::isatty(STDERR_FILENO) == 1) {
  const char* terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") draws_ = false;
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  const auto now = Clock::now();
  const bool wanted = draws_ ? now - start_ >= kFirstAfter && (!drawn_ || now - last_drawn_ >= kEvery)
                             : now - last_drawn_ >= kEveryLine;
  if (total <= 0 || !wanted) return;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const std::string left = share > 0 ? fmt::format(", {:.0f} s left", elapsed * (1 - share) / share) : "";
  std::string line;
  if (draws_) {
    const int filled = static_cast<int>(share * kCells);
    line = fmt::format("\r{} [{}{}] {:3.0f} %{}\x1b[K", label_, std::string(filled, '#'),
                       std::string(kCells - filled, '.'), share * 100, left);
  } else {
    line = fmt::format("{}: {:.0f} %{}\n", label_, share * 100, left);
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
  drawn_ = draws_;
  last_drawn_ = now;
}

void ProgressBar::finish() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace qevict::app
