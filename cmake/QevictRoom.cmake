# qevict_room(name USES targets... [TEST_USES targets...]): the static library qevict_<name> from src/<name>/*.cc, and, from its *_test.cc
# files, the test program <name>_test. Sources are found by name, so a new codec or method is one file and one row.
function(qevict_room name)
  cmake_parse_arguments(ROOM "" "" "USES;TEST_USES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cc")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(NOT sources)
    add_library(qevict_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(qevict_${name} STATIC ${sources})
    set(scope PUBLIC)
    qevict_warnings(qevict_${name})
    set_property(GLOBAL APPEND PROPERTY QEVICT_ROOMS qevict_${name})
  endif()
  target_include_directories(qevict_${name} ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                             "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(qevict_${name} ${scope} ${ROOM_USES})
  if(QEVICT_BUILD_TESTS AND tests)
    qevict_test(${name}_test SOURCES ${tests} USES qevict_${name} ${ROOM_TEST_USES})
  endif()
endfunction()

# qevict_test(name SOURCES files... USES targets... [TIMEOUT seconds]): one GoogleTest program, one ctest entry.
function(qevict_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  qevict_warnings(${name})
  target_link_libraries(${name} PRIVATE ${TEST_USES} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT
    "QEVICT_TEST_MODEL=${QEVICT_DEFAULT_MODEL};QEVICT_TEST_SCRATCH=${PROJECT_BINARY_DIR}/test-scratch")
  if(TEST_TIMEOUT)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT})
  endif()
  if("qevict_engine" IN_LIST TEST_USES OR "qevict_model" IN_LIST TEST_USES)
    # ggml's threads spin: two such programs on two cores take many times as long as one after the other.
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

function(qevict_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi
                         -Wno-missing-field-initializers  # designated initialisers leave defaults
                         -Wno-restrict)  # false alarms on std::string in GCC 12 (bug 105651)
  if(QEVICT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
