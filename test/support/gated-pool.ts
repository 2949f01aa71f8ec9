import type { ThreadPoolFactory } from '../../src/volume-files/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { callsThrough } from './with-calls.ts';

/** Called before each request of the pool, which waits for it. */
export type PoolGate = (
  method: string,
  parameters: readonly unknown[],
) => Promise<void> | undefined;

/** An in-process pool that waits before each call, so that a test can hold an upload. */
export function gatedPool(gate: PoolGate): ThreadPoolFactory {
  return (parameters, arena) => {
    const pool = createInProcessPool(parameters, arena);
    return callsThrough(pool, (method, given, go) => {
      const waiting = gate(method, given);
      return waiting ? waiting.then(go) : go();
    });
  };
}
