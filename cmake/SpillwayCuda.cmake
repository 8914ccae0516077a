# The kernels for NVIDIA GPUs, as one file for several generations, built into the library when CUDA's compiler is there.
# Without it everything else is built, and a run on a GPU is refused with words that say so. No header or library of CUDA
# is needed otherwise: the driver is looked for when the program runs.
option(SPILLWAY_CUDA "build the kernels for NVIDIA GPUs when nvcc is there" ON)
find_program(SPILLWAY_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)

# Ampere, Ada, Hopper, Blackwell; others compile the last line's text when they load it.
set(SPILLWAY_CUDA_TARGETS
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_89,code=sm_89 -gencode arch=compute_90,code=sm_90
    -gencode arch=compute_100,code=sm_100 -gencode arch=compute_120,code=sm_120 -gencode arch=compute_80,code=compute_80
    CACHE STRING "what nvcc makes the kernels for")

# spillway_cuda_kernels(TARGET SOURCE IMAGE): IMAGE is the source of TARGET that takes the kernels in.
function(spillway_cuda_kernels target source image)
  if(NOT SPILLWAY_CUDA OR NOT SPILLWAY_NVCC)
    message(STATUS "No CUDA kernels: nvcc was not found, or SPILLWAY_CUDA is off; runs on a GPU will be refused")
    return()
  endif()
  message(STATUS "CUDA kernels by ${SPILLWAY_NVCC}")
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${target}.fatbin)
  # --fmad=false: bits as on the host. The host's compiler is only asked for its headers.
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND ${SPILLWAY_NVCC} -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr "$<$<BOOL:${SPILLWAY_STRICT}>:-Werror;all-warnings>" -ccbin
            ${CMAKE_CXX_COMPILER} -I${PROJECT_SOURCE_DIR} ${SPILLWAY_CUDA_TARGETS} -MD -MF ${fatbin}.d --fatbin -o
            ${fatbin} ${source}
    DEPENDS ${source}
    DEPFILE ${fatbin}.d
    COMMENT "Compiling ${source} for GPUs"
    VERBATIM COMMAND_EXPAND_LISTS)
  set_source_files_properties(${image} PROPERTIES OBJECT_DEPENDS ${fatbin} COMPILE_DEFINITIONS
                                                                           SPILLWAY_CUDA_FATBIN="${fatbin}")
  target_sources(${target} PRIVATE ${fatbin})
endfunction()
