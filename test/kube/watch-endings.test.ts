import { setFlagsFromString } from 'node:v8';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { CanceledError, silentLogger } from '../../src/base/index.ts';
import { unreachable } from '../../src/kube/client/errors.ts';
import {
  Cache,
  CONFIG_MAPS,
  type ConfigMap,
  type KubeClient,
  waitFor,
} from '../../src/kube/index.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

async function heapBytes(): Promise<number> {
  for (let i = 0; i < 5; i++) {
    await setImmediate();
    collect();
  }
  return process.memoryUsage().heapUsed;
}

interface FakeOptions {
  /** Whether each watch ends without having brought a bookmark. */
  readonly isEmpty?: boolean;
  /** Data of the only object, at each list. */
  readonly data?: object;
  readonly onWatch?: (count: number) => Promise<void> | void;
}

/** A server whose watches end at once. The server listens to the given signals, as requests do. */
function fakeClient({ isEmpty = false, data, onWatch }: FakeOptions): KubeClient {
  let count = 0;
  const listen = (signal: AbortSignal): void => {
    signal.throwIfAborted();
    signal.addEventListener('abort', () => undefined, { once: true });
  };
  const metadata = { name: 'one', namespace: 'app', resourceVersion: '1' };
  const fake = {
    listPage: (_resource: unknown, { signal }: { signal: AbortSignal }) => {
      listen(signal);
      return Promise.resolve({ items: [{ metadata, data }], resourceVersion: '1' });
    },
    async *watch(_resource: unknown, { signal }: { signal: AbortSignal }) {
      listen(signal);
      await setImmediate();
      await onWatch?.(++count);
      if (!isEmpty) yield { type: 'BOOKMARK', object: { metadata: { resourceVersion: '2' } } };
    },
  };
  return fake as unknown as KubeClient;
}

const CACHE = { resource: CONFIG_MAPS, logger: silentLogger };
const REF = { namespace: 'app', name: 'one' };
/** Earlier, each watch kept 0.8 KB. */
const MANY = 10_000;
const GROWTH_MAX = 3_000_000;

describe('watches', () => {
  it('of a cache leave nothing behind under the signal of an agent that runs for months', async () => {
    const controller = new AbortController();
    const sizes: number[] = [];
    const client = fakeClient({
      onWatch: async (count) => {
        if (count % MANY === 1000) sizes.push(await heapBytes());
        if (sizes.length === 2) controller.abort();
      },
    });
    await new Cache<ConfigMap>({ ...CACHE, client }).run(controller.signal);
    const [before = 0, after = Infinity] = sizes;
    expect(after - before).toBeLessThan(GROWTH_MAX);
  });

  it('of those who wait for an object leave nothing behind either', async () => {
    const { signal } = new AbortController();
    const client = fakeClient({ data: {} });
    const run = async (count: number): Promise<number> => {
      for (let i = 0; i < count; i++) {
        await waitFor(client, CONFIG_MAPS, REF, (now) => now?.data, { timeoutMs: 600_000, signal });
      }
      return heapBytes();
    };
    const before = await run(1000);
    expect((await run(MANY)) - before).toBeLessThan(GROWTH_MAX);
  });

  it('that end at once and bring nothing are asked for ever more seldom', async () => {
    const controller = new AbortController();
    let count = 0;
    const client = fakeClient({ isEmpty: true, onWatch: (now) => void (count = now) });
    const cache = new Cache<ConfigMap>({ ...CACHE, client });
    const running = cache.run(controller.signal);
    const wait = waitFor(client, CONFIG_MAPS, REF, () => undefined, {
      timeoutMs: 60_000,
      signal: controller.signal,
    });
    await sleep(1000);
    expect(cache.failure).toContain('ended at once');
    controller.abort(new CanceledError('shutdown'));
    await running;
    await expect(wait).rejects.toMatchObject({ code: 'CANCELED' });
    expect(count).toBeGreaterThan(2);
    expect(count).toBeLessThan(20);
  });

  it('that hang keep nobody from seeing what has come', async () => {
    const stored: { data?: Record<string, string> } = {};
    const client = {
      listPage: () =>
        Promise.resolve({ items: [{ metadata: REF, ...stored }], resourceVersion: '1' }),
      async *watch(_resource: unknown, { signal }: { signal: AbortSignal }) {
        await new Promise((resolve) => signal.addEventListener('abort', resolve));
        signal.throwIfAborted();
        yield* [];
      },
    } as never as KubeClient;
    const wait = waitFor(client, CONFIG_MAPS, REF, (now) => now?.data, {
      timeoutMs: 2000,
      lookAgainMs: 100,
    });
    await sleep(50);
    stored.data = { a: 'b' };
    expect(await wait).toEqual({ a: 'b' });
  });

  it.each([
    ['the server was away for longer than a wait may take', 600],
    ['nothing was heard until that time was over', 0],
  ])('keep nobody from what has come where %s', async (_where, awayMs) => {
    const startMs = performance.now();
    let asked = 0;
    const client = {
      listPage: () => {
        if (asked++ > 0 && performance.now() - startMs < awayMs) {
          return Promise.reject(unreachable('list', new Error('refused')));
        }
        const found = { metadata: REF, ...(asked > 1 && { data: { a: 'b' } }) };
        return Promise.resolve({ items: [found], resourceVersion: '1' });
      },
      async *watch(_resource: unknown, { signal }: { signal: AbortSignal }) {
        if (awayMs > 0) await Promise.reject(unreachable('watch', new Error('broken off')));
        await new Promise((resolve) => signal.addEventListener('abort', resolve));
        signal.throwIfAborted();
        yield* [];
      },
    } as never as KubeClient;
    const wait = waitFor(client, CONFIG_MAPS, REF, (now) => now?.data, { timeoutMs: 300 });
    expect(await wait).toEqual({ a: 'b' });
  });

  it('end also where watches break off and lists are answered', async () => {
    const client = {
      listPage: () => Promise.resolve({ items: [], resourceVersion: '1' }),
      async *watch() {
        await Promise.reject(unreachable('watch', new Error('broken off')));
        yield* [];
      },
    } as never as KubeClient;
    const wait = waitFor(client, CONFIG_MAPS, REF, () => undefined, { timeoutMs: 700 });
    await expect(wait).rejects.toMatchObject({ code: 'WAIT_TIMEOUT' });
  });

  it('end where a kind is never answered for', async () => {
    const listPage = (): Promise<never> => Promise.reject(unreachable('list', new Error('broken')));
    const client = { listPage } as never as KubeClient;
    const limits = { timeoutMs: 300, awayMsMax: 600 };
    const wait = waitFor(client, CONFIG_MAPS, REF, () => undefined, limits);
    await expect(wait).rejects.toMatchObject({
      code: 'WAIT_TIMEOUT',
      message:
        'ConfigMap app/one was not ready within 0.3 s: list: cannot reach the API server: broken',
    });
  });

  it('end with the time that a wait may take, or with its caller', async () => {
    const client = fakeClient({});
    const never = (): undefined => undefined;
    const late = waitFor(client, CONFIG_MAPS, REF, never, { timeoutMs: 100 });
    await expect(late).rejects.toMatchObject({ code: 'WAIT_TIMEOUT' });
    const signal = AbortSignal.abort(new CanceledError('user'));
    const canceled = waitFor(client, CONFIG_MAPS, REF, never, { timeoutMs: 100, signal });
    await expect(canceled).rejects.toMatchObject({ code: 'CANCELED', by: 'user' });
  });
});
