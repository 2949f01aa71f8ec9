import type { ThreadPoolFactory } from '../../src/volume-files/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';

/** Called before the pool does what is asked; what it returns is waited for. */
export type PoolGate = (
  method: string,
  parameters: readonly unknown[],
) => Promise<void> | undefined;

/** An in-process pool that asks before each call, so that a test can hold an upload at a known place. */
export function gatedPool(gate: PoolGate): ThreadPoolFactory {
  return (parameters, arena) => {
    const pool = createInProcessPool(parameters, arena);
    return new Proxy(pool, {
      get(target, key) {
        const value: unknown = Reflect.get(target, key, target);
        if (typeof value !== 'function') return value;
        const method = value.bind(target) as (...rest: unknown[]) => unknown;
        return (...rest: unknown[]) => {
          const waiting = gate(String(key), rest);
          return waiting ? waiting.then(() => method(...rest)) : method(...rest);
        };
      },
    });
  };
}
