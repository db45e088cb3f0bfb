# Third-party libraries. ggml and libllama come from .deps (setup/setup.sh) unless QEVICT_SYSTEM_LLAMA is on.
set(QEVICT_DEPS "${PROJECT_SOURCE_DIR}/.deps/current" CACHE PATH "Prefix made by setup/setup.sh")
set(QEVICT_DEFAULT_MODEL "${PROJECT_SOURCE_DIR}/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    CACHE FILEPATH "The embedded default model, also used by the tests")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy_pc REQUIRED IMPORTED_TARGET libhwy)
add_library(hwy ALIAS PkgConfig::hwy_pc)

if(NOT QEVICT_CORE_ONLY)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  pkg_check_modules(utf8proc_pc REQUIRED IMPORTED_TARGET libutf8proc)
  add_library(utf8proc ALIAS PkgConfig::utf8proc_pc)

  if(QEVICT_SYSTEM_LLAMA)
    find_package(ggml REQUIRED)
    find_package(llama REQUIRED)
  else()
    if(NOT EXISTS "${QEVICT_DEPS}/prefix/lib/cmake/llama")
      message(FATAL_ERROR "No ggml and libllama under ${QEVICT_DEPS}: run setup/setup.sh (make does), "
                          "or configure with -DQEVICT_SYSTEM_LLAMA=ON to use installed ones")
    endif()
    find_package(ggml REQUIRED PATHS "${QEVICT_DEPS}/prefix" NO_DEFAULT_PATH)
    find_package(llama REQUIRED PATHS "${QEVICT_DEPS}/prefix" NO_DEFAULT_PATH)
  endif()

  # Jinja chat templates: llama.cpp's own engine, whose headers its build does not install (docs/design.md).
  add_library(llama_common INTERFACE)
  if(EXISTS "${QEVICT_DEPS}/common/common/chat.h" AND NOT QEVICT_SYSTEM_LLAMA)
    find_library(QEVICT_LLAMA_COMMON llama-common PATHS "${QEVICT_DEPS}/prefix/lib" NO_DEFAULT_PATH REQUIRED)
    target_include_directories(llama_common SYSTEM INTERFACE "${QEVICT_DEPS}/common/common" "${QEVICT_DEPS}/common/vendor")
    target_link_libraries(llama_common INTERFACE "${QEVICT_LLAMA_COMMON}")
    target_compile_definitions(llama_common INTERFACE QEVICT_HAVE_LLAMA_COMMON=1)
  endif()
endif()

if(QEVICT_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck QUIET)
endif()
