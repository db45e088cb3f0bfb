# Installs the build into a scratch folder, builds a program that only knows find_package(qevict), and runs it there.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed with ${code}: ${ARGN}")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")
# Moved, so that nothing may depend on where it was installed first.
file(RENAME "${SCRATCH}/prefix" "${SCRATCH}/moved")
run("${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${SCRATCH}/build" -G "${GENERATOR}" -D CMAKE_BUILD_TYPE=Release
    -D "CMAKE_PREFIX_PATH=${SCRATCH}/moved")
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
run("${SCRATCH}/build/consumer" "${MODEL}")
run("${SCRATCH}/moved/bin/qevict" methods)
file(REMOVE_RECURSE "${SCRATCH}")
