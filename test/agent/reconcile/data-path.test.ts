import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { DataPath } from '../../../src/agent/reconcile/data-path.ts';
import type { Event, WatchEvent } from '../../../src/kube/index.ts';

/** `version`: the mover writes a new version each time, even without progress. */
const told = (doneBytes: number, name = `e-${doneBytes}`, version = '1'): Event =>
  ({
    metadata: { name, resourceVersion: version },
    reason: 'Data-Path-Progress',
    message: JSON.stringify({ doneBytes }),
  }) as never;

/** Events as an API server has them; its watches tell nothing. */
class Server {
  events: Event[] = [];
  watches = 0;
  endsWatches = false;
  isAway = false;

  lists = 0;
  answers = 0;

  selector: string | undefined;

  async listPage(_resource: unknown, asked?: { fieldSelector?: string }): Promise<object> {
    this.selector = asked?.fieldSelector;
    this.lists++;
    await sleep(1);
    if (this.isAway) throw new Error('away');
    this.answers++;
    return { items: this.events, resourceVersion: '1' };
  }

  async *watch(
    _resource: unknown,
    { signal }: { signal: AbortSignal },
  ): AsyncGenerator<WatchEvent<Event>> {
    this.watches++;
    if (this.endsWatches) return;
    await new Promise((resolve) => {
      signal.addEventListener('abort', resolve);
    });
    signal.throwIfAborted();
    yield { type: 'ADDED', object: told(0) };
  }
}

/** Goes on only when it is moved: a busy machine is no mover that stands still. */
function stopClock(): { nowMs: number } {
  const clock = { nowMs: Math.round(performance.now()) };
  vi.spyOn(performance, 'now').mockImplementation(() => clock.nowMs);
  return clock;
}
/** Longer than a watch may be silent here, and shorter than a process stands still. */
const AWHILE_MS = 20_000;

const follow = (server: Server, heard: number[]): DataPath =>
  new DataPath({ metadata: { uid: 'u-1' } } as never, {
    client: server as never,
    logger: { debug: () => undefined } as never,
    namespace: 'velero',
    onProgress: ({ bytesDone }) => heard.push(bytesDone),
    silenceMs: 100,
  });

describe('what a data mover tells', () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });

  it('is asked for less often while the API server is away', async () => {
    const server = new Server();
    server.isAway = true;
    const path = follow(server, []);
    await sleep(4500);
    path.close();
    expect(server.lists).toBeGreaterThanOrEqual(2);
    expect(server.lists).toBeLessThanOrEqual(4);
  });

  it('is heard though the watch hangs', async () => {
    const server = new Server();
    const heard: number[] = [];
    server.events = [told(1)];
    const path = follow(server, heard);
    await expect.poll(() => heard).toEqual([1]);
    server.events = [told(2)];
    await expect.poll(() => heard).toEqual([1, 2]);
    path.close();
    await sleep(20);
    const { watches } = server;
    await sleep(200);
    expect(server.watches).toBe(watches);
  });

  it('is no stall while the API server is away', async () => {
    const clock = stopClock();
    const server = new Server();
    const heard: number[] = [];
    server.events = [told(1)];
    const path = follow(server, heard);
    path.podIsRunning(true);
    await expect.poll(() => heard).toEqual([1]);
    server.isAway = true;
    const { lists } = server;
    clock.nowMs += AWHILE_MS;
    // The first list has failed when the second is requested.
    await expect.poll(() => server.lists, { timeout: 30_000 }).toBeGreaterThan(lists + 1);
    expect(path.stalledMs).toBe(0);
    server.isAway = false;
    // The answer is back, without new progress: earlier progress still counts.
    await expect.poll(() => server.answers, { timeout: 30_000 }).toBe(2);
    await sleep(20);
    expect(path.stalledMs).toBe(0);
    clock.nowMs += 50;
    expect(path.stalledMs).toBe(50);
    path.close();
  });

  it('is a stall also of a mover that was started again: what the one before told is old', async () => {
    const server = new Server();
    const heard: number[] = [];
    server.events = [told(500, 'first', '7'), told(5, 'second', '8')];
    const path = follow(server, heard);
    path.podIsRunning(true);
    await expect.poll(() => server.lists, { timeout: 30_000 }).toBeGreaterThanOrEqual(3);
    await sleep(50);
    expect(path.stalledMs).toBeGreaterThan(2000);
    expect(heard).toEqual([500, 5]);
    path.close();
  });

  it('is no stall while the mover says that it lives, though nothing moves', async () => {
    const clock = stopClock();
    const server = new Server();
    const heard: number[] = [];
    server.events = [told(5, 'first', '7')];
    const path = follow(server, heard);
    path.podIsRunning(true);
    await expect.poll(() => heard, { timeout: 30_000 }).toEqual([5]);
    server.events = [told(5, 'first', '8')];
    clock.nowMs += AWHILE_MS;
    expect(path.stalledMs).toBe(AWHILE_MS);
    await expect.poll(() => path.stalledMs, { timeout: 30_000 }).toBe(0);
    expect(heard).toEqual([5]);
    path.close();
  });

  it('is no stall while the process, or its node, stood still', async () => {
    const clock = stopClock();
    const server = new Server();
    const heard: number[] = [];
    server.events = [told(5)];
    const path = follow(server, heard);
    path.podIsRunning(true);
    await expect.poll(() => heard).toEqual([5]);
    clock.nowMs += 20_000;
    expect(path.stalledMs).toBe(20_000);
    clock.nowMs += 3_600_000;
    expect(path.stalledMs).toBe(20_000);
    clock.nowMs += 1000;
    expect(path.stalledMs).toBe(21_000);
    path.close();
  });

  it('counts each byte once: also when it is told again, and after a mover began anew', async () => {
    const server = new Server();
    server.endsWatches = true;
    const moved: number[] = [];
    server.events = [told(7), told(20), told(1e400), { ...told(0), message: '{"doneBytes":"99"}' }];
    const seen = { metadata: { uid: 'u-1' }, status: { progress: { bytesDone: 5 } } };
    const path = new DataPath(seen as never, {
      client: server as never,
      logger: { debug: () => undefined } as never,
      namespace: 'velero',
      onProgress: () => undefined,
      onMoved: (bytes) => moved.push(bytes),
    });
    await expect.poll(() => moved).toEqual([2, 13]);
    server.events = [told(3), told(30)];
    await expect.poll(() => moved).toEqual([2, 13, 10]);
    expect(path.doneBytes).toBe(30);
    path.close();
  });

  it('is heard only if it is about the object that the mover is named after', async () => {
    const server = new Server();
    const movement = { metadata: { name: 'm-1', uid: 'u-1' } };
    const path = new DataPath(movement as never, {
      client: server as never,
      logger: { debug: () => undefined } as never,
      namespace: 'velero',
      onProgress: () => undefined,
    });
    await expect.poll(() => server.selector).toBeDefined();
    path.close();
    expect(server.selector).toBe('involvedObject.name=m-1,involvedObject.uid=u-1');
  });

  it('is asked for with a pause where watches end at once', async () => {
    const server = new Server();
    server.endsWatches = true;
    const path = follow(server, []);
    await sleep(500);
    path.close();
    expect(server.watches).toBeLessThan(4);
  });
});

describe('the word of a data mover that it is done', () => {
  const RESULT = { snapshotID: 's-1', totalBytes: 5, source: { byPath: '/v' } };
  const done = (pod: string, message: string, annotation = 'longshore.io/mover-pod'): Event =>
    ({
      metadata: { name: `done-${pod}`, resourceVersion: '1', annotations: { [annotation]: pod } },
      reason: 'Data-Path-Completed',
      message,
    }) as never;

  async function told(events: Event[]): Promise<{ path: DataPath; calls: number }> {
    const server = new Server();
    server.events = events;
    let calls = 0;
    const path = new DataPath({ metadata: { uid: 'u-1' } } as never, {
      client: server as never,
      logger: { debug: () => undefined } as never,
      namespace: 'velero',
      onProgress: () => undefined,
      onDone: () => calls++,
      silenceMs: 100,
    });
    await expect.poll(() => server.watches).toBeGreaterThan(0);
    path.close();
    return { path, calls };
  }

  it('is kept by the pod that said it, and told once', async () => {
    const { path, calls } = await told([
      done('p-1', JSON.stringify(RESULT)),
      done('p-1', JSON.stringify({ ...RESULT, snapshotID: 's-2' })),
      done('p-2', JSON.stringify({ totalBytes: 7, more: true })),
    ]);
    expect(path.resultOf('p-1')).toEqual(RESULT);
    expect(path.resultOf('p-2')).toEqual({ totalBytes: 7 });
    expect(path.resultOf('p-3')).toBeUndefined();
    expect(calls).toBe(2);
  });

  it('counts for nothing where it is long, whoever wrote it', async () => {
    const long = JSON.stringify({ ...RESULT, snapshotID: 's'.repeat(2000) });
    expect((await told([done('p-1', long)])).path.resultOf('p-1')).toBeUndefined();
  });

  it('counts for nothing where it names no pod, is cut off, or is no result', async () => {
    const { path, calls } = await told([
      done('p-1', JSON.stringify(RESULT), 'another'),
      done('', JSON.stringify(RESULT)),
      done('p-2', JSON.stringify(RESULT).slice(0, -3)),
      done('p-3', '{"totalBytes":-1}'),
      done('p-4', '{"totalBytes":1e400}'),
      done('p-5', '[]'),
      done('p-6', '{"snapshotID":7}'),
      { ...done('p-7', JSON.stringify(RESULT)), reason: 'Data-Path-Started' },
    ]);
    for (const pod of ['', ...Array.from({ length: 7 }, (_, i) => `p-${i + 1}`)]) {
      expect(path.resultOf(pod), pod).toBeUndefined();
    }
    expect(calls).toBe(0);
  });

  it('is kept of few movers only', async () => {
    const events = Array.from({ length: 100 }, (_, i) => done(`p-${i}`, JSON.stringify(RESULT)));
    const { path } = await told(events);
    const kept = events.filter((_, i) => path.resultOf(`p-${i}`) !== undefined);
    expect(kept.length).toBe(8);
    expect(path.resultOf('p-99')).toEqual(RESULT);
  });
});
