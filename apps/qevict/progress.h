// Progress on stderr of work that lasts long enough to want it: a bar on a terminal, elsewhere a line every minute.
#pragma once

#include <cstdint>
#include <string>

#include "clock.h"

namespace qevict::app {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done, std::int64_t total);
  void finish();  // wipes the bar
  void set_label(std::string label) { label_ = std::move(label); }

 private:
  std::string label_;
  bool draws_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_drawn_ = start_;
};

}  // namespace qevict::app
