import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { followOrders, type OrdersOptions } from '../../../src/agent/mover/fence.ts';
import { kubeError, unreachable } from '../../../src/kube/client/errors.ts';
import { DATA_DOWNLOADS, type DataDownload, type WatchEvent } from '../../../src/kube/index.ts';

const FENCE_MS = 400;

/** A CR as an API server has it, which may be away. */
class OneObject {
  isAway = false;
  refusal: Error | undefined;
  lists = 0;
  watches = 0;
  bookmarks = 0;
  /** Its watches go on, though it knows nothing new: it is cut off from the others. */
  isStale = false;
  /** An old version that watches return in place of the current object. */
  isBehind: DataDownload | undefined;
  /** As behind some proxies. */
  endsWatches = false;
  #movement: DataDownload | undefined;
  #wake = Promise.withResolvers<undefined>();

  put(movement: DataDownload | undefined): void {
    this.#movement = movement;
    this.#wake.resolve(undefined);
    this.#wake = Promise.withResolvers();
  }

  async listPage(): Promise<object> {
    await sleep(1);
    this.lists++;
    if (this.refusal) throw this.refusal;
    if (this.isAway || this.isStale) throw unreachable('list', new Error('away'));
    return { items: this.#movement ? [this.#movement] : [], resourceVersion: '1' };
  }

  async *watch(
    _resource: unknown,
    { signal }: { signal: AbortSignal },
  ): AsyncGenerator<WatchEvent<DataDownload>> {
    const aborted = new Promise<undefined>((resolve) => {
      signal.addEventListener('abort', () => {
        resolve(undefined);
      });
    });
    this.watches++;
    while (!this.endsWatches) {
      if (this.isStale) {
        this.bookmarks++;
        yield { type: 'BOOKMARK', object: cr('') };
        await sleep(10);
        signal.throwIfAborted();
        continue;
      }
      await Promise.race([this.#wake.promise, aborted]);
      signal.throwIfAborted();
      // An API server that is away sends no answer, and connections stay open.
      if (this.isAway) continue;
      const object = this.isBehind ?? this.#movement;
      if (object) yield { type: 'MODIFIED', object };
      else yield { type: 'DELETED', object: cr('InProgress') };
    }
  }
}

const cr = (phase: string, pod?: string, spec: object = {}): DataDownload =>
  ({
    metadata: {
      name: 'down',
      uid: 'u-1',
      ...(pod !== undefined && {
        annotations: {
          'longshore.io/mover': JSON.stringify({
            generation: 2,
            pod,
            lastPod: '',
            node: 'n',
            namedAt: '2026-01-01T00:00:00Z',
          }),
        },
      }),
    },
    spec,
    status: { phase },
  }) as never;

describe('a data mover follows its CR', () => {
  let server: OneObject;
  let said: string[];
  let done: AbortController;
  beforeEach(() => {
    server = new OneObject();
    said = [];
    done = new AbortController();
  });
  afterEach(() => {
    done.abort();
  });

  const follow = (more: Partial<OrdersOptions> = {}): void => {
    const options: OrdersOptions = {
      client: server as never,
      resource: DATA_DOWNLOADS,
      namespace: 'velero',
      name: 'down',
      podUid: 'me',
      fenceMs: FENCE_MS,
      signal: done.signal,
      ...more,
    };
    void followOrders(options, {
      onStart: () => said.push('start'),
      onCancel: () => said.push('cancel'),
      onFenced: (reason) => said.push(`fenced: ${reason}`),
      onRefused: (error) => said.push(`refused: ${error.message}`),
    });
  };
  const says = (...expected: unknown[]): Promise<void> =>
    expect.poll(() => said, { timeout: 30_000, interval: 5 }).toEqual(expected);

  it('begins when it is the one that is named', async () => {
    server.put(cr('Prepared'));
    follow();
    await sleep(20);
    server.put(cr('InProgress', 'another'));
    await sleep(20);
    expect(said).toEqual([]);
    server.put(cr('InProgress', 'me'));
    await says('start');
  });

  it('begins for an agent that names nobody, and when it does not know its own name', async () => {
    server.put(cr('InProgress'));
    follow();
    await says('start');
    follow({ podUid: undefined });
    server.put(cr('InProgress', 'another'));
    await expect.poll(() => said.filter((word) => word === 'start')).toHaveLength(2);
  });

  it('stops when another one is named, or none', async () => {
    server.put(cr('InProgress', 'me'));
    follow();
    await says('start');
    server.put(cr('InProgress', ''));
    await says('start', 'fenced: another data mover has taken over');
  });

  it('is canceled, and may still be fenced off while it stops', async () => {
    server.put(cr('InProgress', 'me', { cancel: true }));
    follow();
    await says('start', 'cancel');
    server.put(cr('Canceling', 'me', { cancel: true }));
    server.put(cr('InProgress', 'another'));
    await says('start', 'cancel', 'fenced: another data mover has taken over');
  });

  it('is canceled when its CR is gone or over', async () => {
    server.put(cr('InProgress', 'me'));
    follow();
    await says('start');
    server.put(undefined);
    await says('start', 'cancel');
  });

  it('refuses to begin for a CR that is over, or that cannot be read', async () => {
    server.put(cr('Completed'));
    follow();
    await says('refused: it is already Completed');
    server.refusal = kubeError('list', 422, { message: 'no such field' });
    follow();
    await says(
      'refused: it is already Completed',
      expect.stringContaining('its CR cannot be read'),
    );
  });

  it('waits for a right that is missing for a moment, and not for ever', async () => {
    let nowMs = 0;
    server.put(cr('InProgress', 'me'));
    const none = kubeError('list', 403, {
      message: 'it is forbidden: User "longshore" cannot do that',
    });
    server.refusal = none;
    follow({ nowMs: () => nowMs });
    await sleep(50);
    server.refusal = undefined;
    await says('start');
    server.refusal = none;
    follow({ nowMs: () => nowMs });
    await sleep(50);
    nowMs = 300_000;
    await expect.poll(() => said).toContainEqual(expect.stringContaining('its CR cannot be read'));
  });

  it('counts itself out when the API server is away for too long, however its machine slept', async () => {
    let nowMs = 0;
    server.put(cr('InProgress', 'me'));
    follow({ nowMs: () => nowMs });
    await says('start');
    server.isAway = true;
    await sleep(2 * FENCE_MS);
    expect(said).toEqual(['start']);
    // Asleep for ten minutes.
    nowMs = 600_000;
    await says('start', 'fenced: no response from the API server for 600 s');
  });

  it('counts itself out when a watch goes on that knows nothing new', async () => {
    let nowMs = 0;
    server.put(cr('InProgress', 'me'));
    follow({ nowMs: () => nowMs });
    await says('start');
    server.isStale = true;
    server.put(cr('InProgress', 'me'));
    await expect.poll(() => server.bookmarks, { timeout: 30_000 }).toBeGreaterThan(1);
    nowMs = FENCE_MS + 1;
    await says('start', expect.stringContaining('no response from the API server for'));
  });

  it('does not begin on what a watch says, which may be old', async () => {
    server.put(cr('Prepared'));
    follow();
    await sleep(20);
    server.isBehind = cr('InProgress', 'me');
    server.put(cr('InProgress', 'another'));
    await sleep(100);
    expect(said).toEqual([]);
  });

  it('is followed on when a server that comes up refuses for a while', async () => {
    let nowMs = 0;
    server.put(cr('InProgress', 'me'));
    follow({ nowMs: () => nowMs });
    await says('start');
    const { lists } = server;
    server.refusal = kubeError('list', 403, { message: 'roles are not known yet' });
    server.endsWatches = true;
    server.put(cr('InProgress', 'me'));
    // When it asks for the second time the first was refused.
    await expect.poll(() => server.lists, { timeout: 30_000 }).toBeGreaterThan(lists + 1);
    expect(said).toEqual(['start']);
    nowMs = FENCE_MS + 1;
    await says('start', expect.stringContaining('no response from the API server for'));
  });

  it('asks with a pause where watches end at once', async () => {
    server.put(cr('InProgress', 'me'));
    server.endsWatches = true;
    follow({ fenceMs: Infinity });
    await says('start');
    await sleep(600);
    expect(server.watches).toBeLessThan(4);
  });

  it('is not stopped by its clock where no other one would be started: its agent is not one of ours', async () => {
    server.put(cr('InProgress'));
    follow({ podUid: undefined, nowMs: () => performance.now() });
    await says('start');
    server.isAway = true;
    await sleep(3 * FENCE_MS);
    expect(said).toEqual(['start']);
  });

  it('is canceled when another CR has the name of its own', async () => {
    server.put(cr('InProgress', 'me'));
    follow();
    await says('start');
    const another = cr('New');
    another.metadata.uid = 'u-2';
    server.put(another);
    await says('start', 'cancel');
  });

  it('asks again when a watch says nothing, and goes on when it is answered', async () => {
    let nowMs = 0;
    server.put(cr('InProgress', 'me'));
    follow({ nowMs: () => nowMs });
    await says('start');
    // Six steps of a third of the fence time, each after a new answer.
    for (let step = 1; step <= 6; step++) {
      const { lists } = server;
      nowMs = (step * FENCE_MS) / 3;
      await expect
        .poll(() => server.lists, { timeout: 30_000, interval: 5 })
        .toBeGreaterThan(lists);
    }
    await sleep(FENCE_MS);
    expect(said).toEqual(['start']);
  });

  it('goes on for ever where two do no harm, and before it has begun', async () => {
    let nowMs = 0;
    server.put(cr('Prepared'));
    follow({ nowMs: () => nowMs });
    await sleep(50);
    server.isAway = true;
    nowMs = 10 * FENCE_MS;
    await sleep(FENCE_MS);
    expect(said).toEqual([]);
    server.isAway = false;
    server.put(cr('InProgress', 'me'));
    await says('start');
    done.abort();
    done = new AbortController();
    said = [];
    follow({ fenceMs: Infinity, nowMs: () => nowMs });
    await says('start');
    server.isAway = true;
    nowMs = 1e9;
    await sleep(FENCE_MS);
    expect(said).toEqual(['start']);
  });
});
