// What a Model is made of.
#pragma once

#include <memory>

#include "model/text.h"
#include "model/transformer.h"
#include "qevict/model.h"

namespace qevict {

struct Model::Parts {
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Vocabulary> vocabulary;
  ModelInfo info;
};

}  // namespace qevict
