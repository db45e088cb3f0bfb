// The rows that ranking.cc collects, each defined in the file of its name.
#pragma once

#include "ranking/blended.h"     // IWYU pragma: export
#include "ranking/cumulative.h"  // IWYU pragma: export
#include "ranking/decayed.h"     // IWYU pragma: export
#include "ranking/defensive.h"   // IWYU pragma: export
#include "ranking/expected.h"    // IWYU pragma: export
#include "ranking/key_diff.h"    // IWYU pragma: export
#include "ranking/key_norm.h"    // IWYU pragma: export
#include "ranking/mean.h"        // IWYU pragma: export
#include "ranking/newest.h"      // IWYU pragma: export
#include "ranking/observed.h"    // IWYU pragma: export
#include "ranking/pnorm.h"       // IWYU pragma: export
#include "ranking/probes.h"      // IWYU pragma: export
#include "ranking/random.h"      // IWYU pragma: export
#include "ranking/recency.h"     // IWYU pragma: export
#include "ranking/snapkv.h"      // IWYU pragma: export
