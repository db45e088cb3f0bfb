// Zones of a sequence: sinks, history windows, recent region (qevict.md section 1; worked examples Q-WIN).
//
// Positions are true positions for life. Window w holds positions sinks + window*w ... sinks + window*(w+1) - 1. It has
// left the recent region once at least `recent` newer tokens exist.
#pragma once

#include <algorithm>

namespace qevict {

struct Zones {
  int sinks = 5;    // first tokens, never routed
  int window = 8;   // tokens of a window, >= 1
  int recent = 64;  // newest tokens, never routed

  int sinks_held(int n_tokens) const { return std::min(n_tokens, sinks); }
  // Windows 0 ... this-1 have left the recent region.
  int windows_left(int n_tokens) const { return std::max(0, (n_tokens - sinks - recent) / window); }
  int first_position(int window_id) const { return sinks + window * window_id; }
  // Tokens after the sinks and the windows that have left.
  int recent_held(int n_tokens) const { return std::max(0, n_tokens - first_position(windows_left(n_tokens))); }
  // Most f16 tokens besides sinks and routed windows that ever exist at once, with a routing every `interval` steps:
  // the recent region, an incomplete window, and a complete one that waits for its event.
  int recent_capacity(int interval) const { return recent + window - 1 + interval; }
};

}  // namespace qevict
