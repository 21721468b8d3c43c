# Flags, dependencies and the two functions that declare folders.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_path(LIBEDIT_INCLUDE_DIR histedit.h REQUIRED)  # line editing in `glint chat`
find_library(LIBEDIT_LIBRARY edit REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # header only: checksums of cache pages on disk
# Its CMake package would ask for the HTTP client and server of its other parts.
find_path(PROMETHEUS_INCLUDE_DIR prometheus/registry.h REQUIRED)
find_library(PROMETHEUS_CORE_LIBRARY prometheus-cpp-core REQUIRED)

add_library(glint_flags INTERFACE)
target_compile_options(glint_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
target_include_directories(glint_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(glint_flags INTERFACE Threads::Threads)
if(GLINT_WERROR)
  target_compile_options(glint_flags INTERFACE -Werror)
endif()
if(GLINT_SANITIZE)
  target_compile_options(glint_flags INTERFACE -fsanitize=${GLINT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(glint_flags INTERFACE -fsanitize=${GLINT_SANITIZE})
  if(GLINT_SANITIZE MATCHES "undefined")
    # A null pointer stops the program anyway, and the others find little in -O1 code: together they are a third of its compile time.
    target_compile_options(glint_flags INTERFACE -fno-sanitize=null,object-size,vptr,alignment)
  endif()
  # Instrumented code confuses this warning of g++.
  target_compile_options(glint_flags INTERFACE -Wno-error=maybe-uninitialized)
  if(GLINT_SANITIZE MATCHES "address")
    target_compile_definitions(glint_flags INTERFACE _GLIBCXX_ASSERTIONS)
  endif()
endif()

if(GLINT_PRECOMPILED)
  add_library(glint_source_header OBJECT ${PROJECT_SOURCE_DIR}/cmake/source_header.cc)
  target_link_libraries(glint_source_header PRIVATE glint_flags)
  target_precompile_headers(glint_source_header PRIVATE ${PROJECT_SOURCE_DIR}/cmake/source_header.h)
endif()

if(GLINT_FUZZ)
  target_compile_options(glint_flags INTERFACE -fsanitize=fuzzer-no-link)
  add_custom_target(fuzzers)
endif()

if(GLINT_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  enable_testing()
  add_test(NAME layers COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/check_layers.py)
  add_test(NAME layers_self_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/check_layers.py --self-test)
  add_test(NAME notices COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/make_notices.py --check)
endif()

# The Rust crate, one static library behind rust/textcore.h.
set(TEXTCORE_DIR ${PROJECT_SOURCE_DIR}/rust)
set(GLINT_CARGO_DIR "${PROJECT_BINARY_DIR}/cargo" CACHE PATH "where cargo builds; the presets share one")
set(TEXTCORE_LIB ${GLINT_CARGO_DIR}/release/libtextcore.a)
file(GLOB_RECURSE TEXTCORE_SOURCES CONFIGURE_DEPENDS ${TEXTCORE_DIR}/src/*.rs)
if(DEFINED ENV{CARGO_HOME})
  set(cargo_home $ENV{CARGO_HOME})
else()
  set(cargo_home $ENV{HOME}/.cargo)
endif()
# The same flags for building and testing, else cargo builds every crate twice. No path of this machine gets in.
string(ASCII 31 separator)
set(TEXTCORE_CARGO ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${GLINT_CARGO_DIR}
  "CARGO_ENCODED_RUSTFLAGS=--remap-path-prefix=${PROJECT_SOURCE_DIR}/=${separator}--remap-path-prefix=${cargo_home}/=" cargo)
set(TEXTCORE_OPTIONS --release --locked --quiet --manifest-path ${TEXTCORE_DIR}/Cargo.toml)
add_custom_command(
  OUTPUT ${TEXTCORE_LIB}
  COMMAND ${TEXTCORE_CARGO} build ${TEXTCORE_OPTIONS}
  DEPENDS ${TEXTCORE_SOURCES} ${TEXTCORE_DIR}/Cargo.toml ${TEXTCORE_DIR}/Cargo.lock
  COMMENT "Building the Rust text crate"
  VERBATIM)
add_custom_target(textcore_build DEPENDS ${TEXTCORE_LIB})
add_library(textcore STATIC IMPORTED GLOBAL)
set_target_properties(textcore PROPERTIES IMPORTED_LOCATION ${TEXTCORE_LIB}
  INTERFACE_INCLUDE_DIRECTORIES ${TEXTCORE_DIR})
target_link_libraries(textcore INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(textcore textcore_build)

if(GLINT_TESTS AND NOT GLINT_SANITIZE)
  add_test(NAME textcore COMMAND ${TEXTCORE_CARGO} test ${TEXTCORE_OPTIONS})
endif()

# A fuzz target per tests/FOLDER/NAME_fuzz.cc, with its seeds in tests/data/fuzz/NAME. Under clang with GLINT_FUZZ it is a
# libFuzzer program; otherwise tests/fuzz_replay.cc runs it over the seeds and their simple mutations as the test NAME_fuzz.
function(glint_fuzzers folder)
  file(GLOB targets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_fuzz.cc)
  foreach(source ${targets})
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" corpus ${target})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE glint_${folder})
    if(GLINT_FUZZ)
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${target})
    else()
      target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz_replay.cc)
      add_test(NAME ${target} COMMAND ${target} ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${corpus})
    endif()
  endforeach()
endfunction()

# Tests are long rows of assertions, which cost a compiler more than all of the program and gain nothing from being
# optimised: they are compiled without, and share one precompiled header. Where they compute much themselves they are
# compiled like the rest.
set(GLINT_COMPUTING_TESTS kernels ops tensor models cache)
if(GLINT_TESTS)
  add_library(glint_test_header OBJECT ${PROJECT_SOURCE_DIR}/tests/test_header.cc)
  target_link_libraries(glint_test_header PRIVATE glint_flags GTest::gtest GTest::gmock)
  target_compile_options(glint_test_header PRIVATE -O0)
  target_compile_definitions(glint_test_header PRIVATE
    GLINT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" GLINT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_precompile_headers(glint_test_header PRIVATE ${PROJECT_SOURCE_DIR}/tests/test_header.h)
endif()

function(glint_test_flags target name)
  if(name IN_LIST GLINT_COMPUTING_TESTS OR CMAKE_CXX_COMPILER_ID MATCHES Clang)
    return()
  endif()
  target_compile_options(${target} PRIVATE -O0)
  target_precompile_headers(${target} REUSE_FROM glint_test_header)
endfunction()

# glint_library(NAME DEPENDS ...): src/NAME/*.cc as glint_NAME, and tests/NAME/*.cc as the test program NAME_test
# that links this folder alone with what it may include.
function(glint_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  set(links glint_flags)
  foreach(dep ${ARG_DEPENDS})
    if(EXISTS ${PROJECT_SOURCE_DIR}/src/${dep})
      list(APPEND links glint_${dep})
    else()
      list(APPEND links ${dep})
    endif()
  endforeach()
  if(sources)
    add_library(glint_${name} STATIC ${sources})
    target_link_libraries(glint_${name} PUBLIC ${links})
    # Kernels include everything before their target region, and what they include is little.
    if(GLINT_PRECOMPILED AND NOT name STREQUAL "kernels")
      target_precompile_headers(glint_${name} REUSE_FROM glint_source_header)
    endif()
  else()
    add_library(glint_${name} INTERFACE)
    target_link_libraries(glint_${name} INTERFACE ${links})
  endif()
  if(GLINT_TESTS)
    file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*.cc)
    list(FILTER tests EXCLUDE REGEX "_fuzz\\.cc$")
    if(tests)
      add_executable(${name}_test ${tests})
      target_link_libraries(${name}_test PRIVATE glint_${name} GTest::gtest GTest::gmock GTest::gtest_main)
      target_compile_definitions(${name}_test PRIVATE
        GLINT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" GLINT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      glint_test_flags(${name}_test ${name})
      add_test(NAME ${name} COMMAND ${name}_test)
    endif()
    glint_fuzzers(${name})
  endif()
endfunction()
