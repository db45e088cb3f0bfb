#include "environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace qevict::app {
namespace {

TEST(Environment, AVariableIsNamedAfterItsFlag) { EXPECT_EQ(variable_name("--kv-budget"), "QEVICT_KV_BUDGET"); }

TEST(Environment, TheNearestNameIsFoundOrNone) {
  const std::vector<std::string> names = {"QEVICT_KV_BUDGET", "QEVICT_KV_METHOD"};
  EXPECT_EQ(nearest("QEVICT_KV_BUGDET", names), "QEVICT_KV_BUDGET");
  EXPECT_EQ(nearest("--frobnicate", {"--json", "--temp"}), "");
}

TEST(Environment, OnlyForeignAndKnownVariablesPass) {
  ::setenv("QEVICT_TEST_MODEL", "x", 1);
  ::setenv("QEVICT_MODEL", "x", 1);
  EXPECT_TRUE(check_environment({"QEVICT_MODEL"}).ok());
  ::setenv("QEVICT_MODLE", "x", 1);
  const Result<void> checked = check_environment({"QEVICT_MODEL"});
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().message, "unknown environment variable QEVICT_MODLE; did you mean QEVICT_MODEL?");
  ::unsetenv("QEVICT_MODLE");
  ::unsetenv("QEVICT_MODEL");
}

}  // namespace
}  // namespace qevict::app
