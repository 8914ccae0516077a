# The kernels for NVIDIA GPUs, built into the library when CUDA's compiler is there and works: as machine code for several
# generations, and as PTX that the driver compiles, for GPUs and drivers that the machine code is not for. Without them
# everything else is built, and a run on a GPU is refused with words that say why. No header or library of CUDA is needed
# otherwise: the driver is looked for when the program runs.
option(SPILLWAY_CUDA "build the kernels for NVIDIA GPUs when nvcc is there" ON)
find_program(SPILLWAY_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
find_program(SPILLWAY_PTXAS ptxas HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)

set(SPILLWAY_CUDA_GENERATIONS 80 89 90 100 120
    CACHE STRING "compute capabilities that nvcc makes machine code for, as far as it knows them: Ampere, Ada, Hopper, Blackwell")

# spillway_cuda_generations(OUT WHY): those of the list that nvcc knows, the lowest first; none: WHY.
function(spillway_cuda_generations out why)
  set(${out} "" PARENT_SCOPE)
  execute_process(COMMAND ${SPILLWAY_NVCC} --list-gpu-code RESULT_VARIABLE failed OUTPUT_VARIABLE known ERROR_VARIABLE said)
  if(failed)
    string(REGEX MATCH "[^\n]+" said "${said}")
    set(${why} "${SPILLWAY_NVCC} does not say which GPUs it knows (${said})" PARENT_SCOPE)
    return()
  endif()
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  foreach(generation IN LISTS SPILLWAY_CUDA_GENERATIONS)
    if("sm_${generation}" IN_LIST known)
      list(APPEND found ${generation})
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
  if(NOT found)
    list(JOIN SPILLWAY_CUDA_GENERATIONS ", " wanted)
    set(${why} "${SPILLWAY_NVCC} knows no GPU of compute capability ${wanted}" PARENT_SCOPE)
  endif()
endfunction()

# spillway_cuda_kernels(TARGET SOURCE IMAGE): IMAGE is the source of TARGET that takes the kernels in.
function(spillway_cuda_kernels target source image)
  set(kernels ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernels)
  set(files ${kernels}.fatbin ${kernels}.ptx ${kernels}.missing)
  set_source_files_properties(${image} PROPERTIES OBJECT_DEPENDS "${files}" COMPILE_DEFINITIONS
                                                                           SPILLWAY_CUDA_KERNELS="${kernels}")
  if(NOT SPILLWAY_CUDA)
    set(missing "SPILLWAY_CUDA was off when it was built")
  elseif(NOT SPILLWAY_NVCC)
    set(missing "CUDA's compiler (nvcc) was not found when it was built")
  else()
    spillway_cuda_generations(generations missing)
  endif()
  if(missing)
    message(STATUS "No CUDA kernels, because ${missing}; runs on a GPU will be refused")
    file(CONFIGURE OUTPUT ${kernels}.fatbin CONTENT "")
    file(CONFIGURE OUTPUT ${kernels}.ptx CONTENT "")
    file(CONFIGURE OUTPUT ${kernels}.missing CONTENT "${missing}")
    add_custom_target(${target}_cuda)
    return()
  endif()
  list(JOIN generations ", " words)
  message(STATUS "CUDA kernels by ${SPILLWAY_NVCC}, for compute capability (in tenths) ${words}")
  set(script ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernels.cmake)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/SpillwayCudaKernels.cmake.in ${script} @ONLY)
  add_custom_command(
    OUTPUT ${files}
    COMMAND ${CMAKE_COMMAND} -P ${script}
    DEPENDS ${source} ${script} ${SPILLWAY_NVCC}
    DEPFILE ${kernels}.d
    COMMENT "Compiling ${source} for GPUs"
    VERBATIM)
  add_custom_target(${target}_cuda DEPENDS ${files})
  add_dependencies(${target} ${target}_cuda)
endfunction()
