/** Threads that run codec work beside the main thread, and the in-process form of the same. */
export { createInProcessPool, createThreadPool } from './pool.ts';
