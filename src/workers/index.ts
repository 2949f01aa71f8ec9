/** Threads for work on bytes and files beside the main thread, and an in-process form. */
export { createInProcessPool } from './in-process-pool.ts';
export { createThreadPool } from './thread-pool.ts';
