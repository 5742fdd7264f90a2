/*
 * What runtime.c and runtime_streams.c share: CUDA's headers, and the thread's last error.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "fake.h"

#include <cuda_runtime_api.h>

cudaError_t fake_result(int answer); /* remembers an error for cudaGetLastError */

#endif
