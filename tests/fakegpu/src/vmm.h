/*
 * The layout of CUDA's CUmemAllocationProp (cuda.h), written out so that the driver builds without CUDA's headers.
 */
#ifndef VMM_H
#define VMM_H

enum { LOCATION_DEVICE = 1, SHAREABLE_BY_FD = 1 };

struct fake_location {
    int type, id;
};
struct fake_properties {
    int type;
    int shareable; /* requestedHandleTypes: torch asks for descriptors even where it never exports one */
    struct fake_location location;
    void *windows_only;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

#endif
