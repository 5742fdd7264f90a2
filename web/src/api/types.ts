// The responses of `/api/v1`: generated, in two files.

export type * from './types/jobs';
export type * from './types/memory';
