/**
 * Threads that work on bytes and files beside the main thread, and the in-process form of the same.
 */
export { createInProcessPool } from './in-process-pool.ts';
export { createThreadPool } from './thread-pool.ts';
