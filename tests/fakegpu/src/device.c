/*
 * The calling thread's device, and what a device is said to be: a Hopper with 132 multiprocessors and no peers.
 */
#include "fake.h"

static _Thread_local int current; /* as in CUDA: every thread begins on device 0 */

int fake_current(void) { return current; }

int fake_set_current(int ordinal) {
    if (fake_physical(ordinal) < 0) return INVALID_DEVICE;
    current = ordinal;
    return OK;
}

int fake_here(int *ordinal) {
    if (fake_count() == 0) return NO_DEVICE;
    *ordinal = current;
    return fake_context(current);
}

int fake_attribute(int attribute, int ordinal) {
    switch (attribute) { /* the numbers of cudaDeviceAttr and CUdevice_attribute, which agree */
    case 1:
    case 2:
    case 3: return 1024;       /* threads of a block, and in x and y */
    case 4: return 64;         /* in z */
    case 5: return 2147483647; /* blocks of a grid in x */
    case 6:
    case 7: return 65535; /* in y and z */
    case 8: return 49152; /* shared memory of a block */
    case 9: return 65536; /* constant memory */
    case 10: return 32;   /* threads of a warp */
    case 12:
    case 82: return 65536;                      /* registers of a block, of a multiprocessor */
    case 13: return 1980000;                    /* clock, kHz */
    case 16: return 132;                        /* multiprocessors */
    case 31: return 1;                          /* concurrent kernels */
    case 33: return fake_physical(ordinal) + 1; /* PCI bus */
    case 36: return 2619000;                    /* memory clock, kHz */
    case 37: return 5120;                       /* memory bus, bits */
    case 38: return 60 << 20;                   /* L2 cache */
    case 39: return 2048;                       /* threads of a multiprocessor */
    case 40: return 3;                          /* copy engines */
    case 41: return 1;                          /* unified addresses */
    case 75: return 9;                          /* compute capability, major */
    case 78: return 1;                          /* stream priorities */
    case 81: return 233472;                     /* shared memory of a multiprocessor */
    case 83: return 1;                          /* managed memory */
    case 97: return 232448;                     /* shared memory of a block that requests it */
    case 102: return 1;                         /* virtual memory management */
    case 106: return 32;                        /* blocks of a multiprocessor */
    case 115: return 1;                         /* memory pools */
    default: return 0;                          /* no minor capability, sharing of pieces, multicast, fabric, ... */
    }
}
