import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../src/base/index.ts';
import { Cache, CONFIG_MAPS, type ConfigMap, type KubeClient } from '../../src/kube/index.ts';

const map = (name: string, resourceVersion = '1'): ConfigMap =>
  ({ metadata: { name, namespace: 'app', resourceVersion } }) as never;
const end = {
  type: 'BOOKMARK',
  object: {
    metadata: { resourceVersion: '9', annotations: { 'k8s.io/initial-events-end': 'true' } },
  },
};
const added = (name: string): object => ({ type: 'ADDED', object: map(name) });
const away = new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' });
const gone = new CodedError('KUBE_GONE', 'too old', { retry: 'backoff' });

interface Watch {
  /** Its answers in order. An error at the end breaks the watch off. */
  readonly says: readonly (object | Error)[];
  readonly isRefused?: boolean;
}

/**
 * A server whose watches give these answers in turn, and the last answer for ever. `lists`:
 * requests of pages.
 */
function setUp(watches: readonly Watch[]): {
  cache: Cache<ConfigMap>;
  asked: string[];
  run: () => Promise<void>;
  stop: AbortController;
} {
  const asked: string[] = [];
  const stop = new AbortController();
  const client = {
    listPage: () => {
      asked.push('list');
      return Promise.resolve({ items: [map('listed')], resourceVersion: '5' });
    },
    async *watch(
      _resource: unknown,
      options: {
        signal: AbortSignal;
        sendInitialEvents: boolean;
        resourceVersion?: string;
        onActivity: () => void;
      },
    ) {
      const isInitial = options.sendInitialEvents;
      const watch = isInitial
        ? watches[asked.filter((what) => what === 'stream').length]
        : undefined;
      asked.push(isInitial ? 'stream' : `watch ${options.resourceVersion ?? ''}`);
      await Promise.resolve();
      if (watch && watch.isRefused !== true) options.onActivity();
      for (const what of watch?.says ?? []) {
        if (what instanceof Error) throw what;
        yield what;
      }
      await new Promise((resolve) => {
        options.signal.addEventListener('abort', resolve, { once: true });
      });
    },
  } as unknown as KubeClient;
  const cache = new Cache<ConfigMap>({ client, resource: CONFIG_MAPS, logger: silentLogger });
  const running = (): Promise<void> => {
    void cache.run(stop.signal);
    return cache.synced.then(() => undefined);
  };
  return { cache, asked, run: running, stop };
}

const namesOf = (cache: Cache<ConfigMap>): string[] =>
  cache.list().map(({ metadata }) => metadata.name);

describe('the list of a cache', () => {
  it('is the beginning of its watch, where the server can', async () => {
    const before = { type: 'DELETED', object: map('b') };
    const { cache, asked, run, stop } = setUp([
      { says: [added('a'), added('b'), before, end, added('c')] },
    ]);
    await run();
    await expect.poll(() => namesOf(cache)).toEqual(['a', 'c']);
    expect(asked).toEqual(['stream']);
    stop.abort();
  });

  it('is not known before all of it is there', async () => {
    const { cache, stop, run } = setUp([{ says: [added('a')] }]);
    void run();
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect([cache.isSynced, namesOf(cache)]).toEqual([false, []]);
    stop.abort();
  });

  const rows: [when: string, watches: Watch[]][] = [
    ['refuses it', [{ says: [new CodedError('KUBE_INVALID', 'no')], isRefused: true }]],
    [
      'knows nothing of it',
      [
        {
          says: [added('a'), { type: 'BOOKMARK', object: { metadata: { resourceVersion: '3' } } }],
        },
      ],
    ],
    ['breaks it off each time', Array.from({ length: 3 }, () => ({ says: [added('a'), away] }))],
  ];
  it.for(rows)('comes in pages when the server %s', async ([, watches]) => {
    const { cache, asked, run, stop } = setUp(watches);
    await run();
    expect(namesOf(cache)).toEqual(['listed']);
    await expect.poll(() => asked.slice(-2)).toEqual(['list', 'watch 5']);
    expect(asked.filter((what) => what === 'stream')).toHaveLength(watches.length);
    stop.abort();
  });

  it('is still streamed after the server was away', async () => {
    const refused = { says: [away], isRefused: true };
    const { cache, asked, run, stop } = setUp([
      refused,
      refused,
      refused,
      { says: [added('a'), end] },
    ]);
    await run();
    expect(namesOf(cache)).toEqual(['a']);
    expect(asked).toEqual(['stream', 'stream', 'stream', 'stream']);
    expect(cache.failure).toBeUndefined();
    stop.abort();
  });

  it('tells of what went while nobody watched', async () => {
    const { cache, run, stop } = setUp([
      { says: [added('a'), added('b'), end, gone] },
      { says: [added('b'), end] },
    ]);
    const told: string[] = [];
    cache.onChange((after, before) => {
      if (!after) told.push(`${before?.metadata.name ?? ''} is gone`);
    });
    await run();
    await expect.poll(() => told).toEqual(['a is gone']);
    expect(namesOf(cache)).toEqual(['b']);
    stop.abort();
  });
});
