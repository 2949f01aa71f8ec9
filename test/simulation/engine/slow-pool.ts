import { CodedError } from '../../../src/base/index.ts';
import type { Arena, CodecKeys } from '../../../src/codec/index.ts';
import type { ThreadPool } from '../../../src/volume-files/index.ts';
import { createInProcessPool } from '../../../src/workers/index.ts';
import type { Process } from './process.ts';

/** The codec's threads for one process: each task takes time, and a thread may die in it. */
export function slowPool(process: Process): (keys: CodecKeys, arena: Arena) => ThreadPool {
  return (keys, arena) => {
    const pool = createInProcessPool(keys, arena);
    const { taskMs, readMs, threadDeath } = process.options;
    const slow = (name: string, ms: number): unknown => {
      const methods = pool as unknown as Record<
        string,
        (...parameters: unknown[]) => Promise<unknown>
      >;
      return async (...parameters: unknown[]): Promise<unknown> => {
        await process.wait(`${name} of a thread`, process.random.between(0, ms));
        if (process.random.chance(threadDeath)) {
          process.troubles.add('a thread that died');
          throw new CodedError('THREAD_DIED', 'a thread died');
        }
        return methods[name]?.apply(pool, parameters);
      };
    };
    const methods: Record<string, unknown> = {
      hash: slow('hash', taskMs),
      hashPartly: slow('hashPartly', taskMs),
      cut: slow('cut', taskMs),
      seal: slow('seal', taskMs),
      open: slow('open', taskMs),
      readFiles: slow('readFiles', readMs),
      readDirectory: slow('readDirectory', readMs),
      lookAt: slow('lookAt', readMs),
      compareDirectory: slow('compareDirectory', readMs),
    };
    return new Proxy(pool, {
      get: (target, key) => methods[key as string] ?? (Reflect.get(target, key, target) as unknown),
    });
  };
}
