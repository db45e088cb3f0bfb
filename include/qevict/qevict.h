// The whole public API.
#pragma once

#include "qevict/cache_config.h"  // IWYU pragma: export
#include "qevict/generate.h"      // IWYU pragma: export
#include "qevict/lock_step.h"     // IWYU pragma: export
#include "qevict/method.h"        // IWYU pragma: export
#include "qevict/model.h"         // IWYU pragma: export
#include "qevict/result.h"        // IWYU pragma: export
#include "qevict/session.h"       // IWYU pragma: export
#include "qevict/version.h"       // IWYU pragma: export
