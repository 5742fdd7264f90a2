/*
 * Entries of cuBLAS, cuDNN and the rest whose outputs are read by a caller that goes on: handles, versions, error
 * texts.
 *
 * Everything else of theirs is generated (stubs.py). A handle is any address that is not null. Matrix products do
 * nothing.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <cuda_runtime_api.h>
#include <string.h>

static char handle[64]; /* nothing is ever kept in it */
enum { MAJOR = CUDART_VERSION / 1000, CUBLAS_VERSION = MAJOR * 10000 };

#define HANDLE(name)                                                                                                   \
    API int name(void **out);                                                                                          \
    API int name(void **out) {                                                                                         \
        *out = handle;                                                                                                 \
        return 0;                                                                                                      \
    }
HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cudnnCreate)
HANDLE(cusolverDnCreate)
HANDLE(cusparseCreate)

API int cublasGetVersion_v2(void *blas, int *version);
API int cublasGetVersion_v2(UNUSED void *blas, int *version) {
    *version = CUBLAS_VERSION;
    return 0;
}
API size_t cublasLtGetVersion(void);
API size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

API int cublasGetMathMode(void *blas, int *mode);
API int cublasGetMathMode(UNUSED void *blas, int *mode) { return *mode = 0; }
API int cublasGetPointerMode_v2(void *blas, int *mode);
API int cublasGetPointerMode_v2(UNUSED void *blas, int *mode) { return *mode = 0; }

/* cublasLtMatmulHeuristicResult_t: algorithm (64 bytes), workspace bytes, status, waves, reserved; zeroed it means "no
 * workspace". */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
API int cublasLtMatmulAlgoGetHeuristic(void *lt, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                       int asked, struct heuristic *results, int *found);
API int cublasLtMatmulAlgoGetHeuristic(UNUSED void *lt, UNUSED void *operation, UNUSED void *a, UNUSED void *b,
                                       UNUSED void *c, UNUSED void *d, UNUSED void *preference, int asked,
                                       struct heuristic *results, int *found) {
    memset(results, 0, (size_t)asked * sizeof *results);
    *found = asked > 0;
    return 0;
}
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate)

#define TEXT(name, type)                                                                                               \
    API const char *name(type what);                                                                                   \
    API const char *name(UNUSED type what) { return "the fake GPU does not have this operation"; }
TEXT(cudnnGetErrorString, int)
TEXT(ncclGetErrorString, int)
TEXT(ncclGetLastError, void *)
TEXT(nvrtcGetErrorString, int)
TEXT(cusparseGetErrorString, int)
TEXT(cusparseGetErrorName, int)
TEXT(cublasGetStatusString, int)

API void cudnnGetLastErrorString(char *text, size_t bytes);
API void cudnnGetLastErrorString(char *text, size_t bytes) {
    if (bytes) *text = 0;
}
API size_t cudnnGetCudartVersion(void);
API size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
API int nvrtcVersion(int *major, int *minor);
API int nvrtcVersion(int *major, int *minor) {
    *major = MAJOR;
    *minor = CUDART_VERSION % 1000 / 10;
    return 0;
}
API int cuptiGetVersion(uint32_t *version);
API int cuptiGetVersion(uint32_t *version) {
    *version = 18; /* of CUDA 12; only ever printed */
    return 0;
}
API int cuptiGetResultString(int result, const char **text);
API int cuptiGetResultString(UNUSED int result, const char **text) {
    *text = "the fake GPU has no profiler";
    return 0;
}
