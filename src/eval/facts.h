// Facts: what a compressed cache still knows. Sentences with a made-up name and a number of 7 or 8 digits are spread
// evenly through a text; the text is read and compressed before any question is known; then each number is asked for.
//
// A question is the fact's own words up to the number, so a model answers by copying, and a small one can. Between the
// question and its answer nothing is generated freely: the true digits are fed (teacher forcing), and the model's
// choice is noted before each. Up to its first mistake a greedy answer has seen the same tokens, so the same pass tells
// exactly how many digits a greedy answer gets right from its start, and whether it gets all.
//
// A cache cannot be copied or taken back. So that a question begins in the cache as compressed, the document is read
// anew (a prefill is deterministic) for every `questions_per_reading` questions; those of one reading follow one
// another in one sequence, with routing live and the true answers in between.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/divergence.h"
#include "eval/kv_use.h"
#include "eval/progress.h"
#include "qevict/session.h"

namespace qevict {

struct Fact {
  std::string words;   // up to the number, without the space before it: "The door code of Tamo Verrik is"
  std::string number;  // 7 or 8 digits, the first of them not 0
  std::string statement() const { return words + " " + number + "."; }
};

// Different names and numbers, the same for a seed on every machine.
std::vector<Fact> make_facts(int n, std::uint64_t seed);

// How a model's vocabulary sees text. A test's may be simpler than a model's.
struct FactsVocabulary {
  std::function<Result<std::vector<Token>>(std::string_view text)> tokenize;  // without start tokens
  std::function<std::string(Token)> piece;
};

// What is fed for a question, and what the answer ought to be.
struct FactQuestion {
  std::vector<Token> cue;     // words of the question, up to the first token that holds a digit of the number
  std::vector<Token> answer;  // the tokens that hold its digits
};

struct FactsDocument {
  std::vector<Token> prompt;
  std::vector<FactQuestion> questions;  // in the order of the facts in the prompt
};

// A prompt of exactly `prompt_tokens`: start tokens, then `filler` with a fact after a sentence's end near the middle
// of each of n equal parts. filler: at least prompt_tokens long. Errors: the facts do not fit, and what `tokenize`
// says.
Result<FactsDocument> make_facts_document(std::span<const Token> start, std::span<const Token> filler,
                                          int prompt_tokens, std::span<const Fact> facts,
                                          const FactsVocabulary& vocabulary);

struct FactScore {
  double digits = 0;   // share of the answer's tokens that were the model's first choice
  double leading = 0;  // share of them before the first that was not: what a greedy answer gets right in order
  bool whole = false;  // all of them
};

// chosen: the model's first choice before each token of the answer. REQUIRES: equally many, at least one.
FactScore score_answer(std::span<const Token> answer, std::span<const Token> chosen);

struct FactsOptions {
  std::vector<CacheConfig> caches;  // the full cache is measured beside them
  int n_facts = 16;
  int n_samples = 4;  // documents, of different stretches of the text
  int prompt_tokens = 2048;
  int questions_per_reading = 4;
  std::uint64_t seed = 1;
  int n_threads = 0;
};

struct FactsResult {
  std::string method;
  std::vector<Setting> settings;
  std::int64_t n_facts = 0;
  std::int64_t n_digit_tokens = 0;
  // Means over facts.
  Estimate digits, leading, whole;
  Estimate nll;                      // nats of a digit token
  Estimate digits_minus_full;        // fact by fact; 0 for `full`
  std::vector<double> digits_parts;  // `digits` of the facts in each quarter of the prompt, oldest first
  KvUse kv;                          // a sequence: a reading with its questions
};

// The first result is the full cache's. text: the whole text's tokens, without start tokens. Errors: a text too short
// for the samples, questions that do not fit the context, what Session says.
Result<std::vector<FactsResult>> eval_facts(const Model& model, std::span<const Token> text,
                                            const FactsOptions& options, const EvalProgress& progress = {});

}  // namespace qevict
