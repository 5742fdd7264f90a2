/*
 * Between memory.c and vmm.c: the list of ranges and raw address space. Refuses nothing by itself; callers keep ranges
 * apart.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include "fake.h"

bool fake_range_add(struct fake_range range);               /* false: no memory for the list */
bool fake_range_take(void *base, struct fake_range *taken); /* the range that begins there, removed from the list */
void *fake_address_space(size_t bytes, size_t alignment,
                         int protection); /* NULL when there is none; a power of two aligns */

#endif
