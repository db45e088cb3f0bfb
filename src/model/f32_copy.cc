#include "model/f32_copy.h"

#include "base/check.h"
#include "llama.h"
#include "model/ggml_log.h"
#include "model/text.h"

namespace qevict {

Result<void> write_f32_copy(const std::string& from, const std::string& to) {
  route_llama_log();
  take_log_errors();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;  // that is, decode what is quantized
  if (llama_model_quantize(from.c_str(), to.c_str(), &params) == 0) return {};
  const std::string reason = take_log_errors();
  return io_error("cannot write {} as f32 to {}{}{}", from, to, reason.empty() ? "" : ": ", reason);
}

}  // namespace qevict
