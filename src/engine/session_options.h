// What Session and LockStep share.
#pragma once

#include <memory>
#include <vector>

#include "codec/nuq_calibration.h"
#include "engine/budgeted_cache.h"
#include "model/transformer.h"
#include "qevict/model.h"
#include "qevict/session.h"

namespace qevict {

CacheShape cache_shape_of(const ModelShape& model);
// Puts the defaults in. Errors: values out of range.
Result<void> complete(SessionOptions& options, const ModelShape& model);
// What a calibration file says it is of.
NuqModel nuq_model(const ModelInfo& info);
// What was learned of the model for the cache's codec (eval calibrate), from the file beside the model; null if the
// codec takes none or there is no such file. Errors: a file that is damaged or of another model.
Result<std::shared_ptr<const NuqCalibration>> calibration_for(const CacheSettings& settings, const Model& model);
// Lets a cache use the runner's threads and what the model knows. Both must outlive it.
void connect(BudgetedCache& cache, Runner& runner, const ModelShape& model,
             const std::shared_ptr<const NuqCalibration>& calibration);
// For printing.
std::vector<Setting> settings_of(const CacheSettings& settings, const SessionOptions& options,
                                 const std::shared_ptr<const NuqCalibration>& calibration);

}  // namespace qevict
