import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import type {
  KubeClient,
  PodVolumeRestore,
  Resource,
  Restore,
} from '../../../../src/kube/index.ts';
import { openActions } from '../../../../src/plugin/index.ts';

const RESTORE = {
  metadata: { name: 'r1', namespace: 'velero', uid: 'u' },
  spec: {},
} as unknown as Restore;
const context = { signal: new AbortController().signal };

class World {
  status: object | undefined = {};
  pod: object | undefined = podOf({});
  agents = ['Running'];
  isAway = false;
  readonly patches: unknown[] = [];
  readonly action = openActions({
    client: {
      find: ({ plural }: Resource<PodVolumeRestore>) => {
        if (this.isAway) {
          return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
        }
        if (plural === 'pods') return Promise.resolve(this.pod);
        return Promise.resolve(this.status && restoreOf(this.status));
      },
      collect: () => Promise.resolve([]),
      list: () => Promise.resolve(this.agents.map((phase) => ({ status: { phase } }))),
      patch: (_resource: unknown, _ref: unknown, patch: unknown) => {
        this.patches.push(patch);
        return Promise.resolve({});
      },
      listPage: () => Promise.resolve({ items: [], resourceVersion: '1', continue: undefined }),
    } as unknown as KubeClient,
    logger: silentLogger,
  }).podVolumeRestoreOperation();

  ask = () => this.action.progress('pvr-1', RESTORE, context);

  /** Asked every ten seconds. */
  async askFor(ms: number) {
    let progress = await this.ask();
    for (let at = 0; at < ms && !progress.completed; at += 10_000) {
      await vi.advanceTimersByTimeAsync(10_000);
      progress = await this.ask();
    }
    return progress;
  }
}

const restoreOf = (status: object): PodVolumeRestore =>
  ({
    metadata: { name: 'pvr-1', namespace: 'velero' },
    spec: { pod: { namespace: 'a', name: 'p', uid: 'pod-uid' }, volume: 'data' },
    status,
  }) as unknown as PodVolumeRestore;
function podOf(status: object, uid = 'pod-uid', nodeName: string | undefined = 'n1') {
  return { metadata: { name: 'p', uid }, spec: { nodeName }, status };
}

describe('the operation of a PodVolumeRestore', () => {
  let world: World;
  beforeEach(() => {
    vi.useFakeTimers();
    world = new World();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it.each([
    [
      { phase: 'InProgress', progress: { bytesDone: 5, totalBytes: 9 } },
      { completed: false, nCompleted: 5, nTotal: 9 },
    ],
    [
      { phase: 'Completed', progress: { bytesDone: 9, totalBytes: 9 } },
      { completed: true, err: '', nCompleted: 9 },
    ],
    [
      { phase: 'Failed', message: 'no space' },
      { completed: true, err: 'pod volume restore failed: no space (volume data of pod a/p)' },
    ],
    [
      { phase: 'Canceled', message: 'by user' },
      { completed: true, err: 'pod volume restore canceled: by user (volume data of pod a/p)' },
    ],
  ])('is as its object is: %j', async (status, expected) => {
    world.status = status;
    expect(await world.ask()).toMatchObject(expected);
  });

  it('fails where its object is gone', async () => {
    world.status = undefined;
    expect(await world.ask()).toMatchObject({
      completed: true,
      err: expect.stringContaining('was deleted') as string,
    });
  });

  it('goes on while the API server is away', async () => {
    world.isAway = true;
    expect(await world.ask()).toMatchObject({ completed: false, err: '' });
  });

  it.each([
    ['its pod is deleted', undefined, 'the pod was deleted before its volume was restored'],
    [
      'another pod has its name',
      podOf({}, 'other'),
      'the pod was deleted before its volume was restored',
    ],
    ['its pod is over', podOf({ phase: 'Failed' }), 'the pod no longer waits for its volume'],
    [
      'its pod waits no more',
      podOf({
        initContainerStatuses: [{ name: 'restore-wait', state: { terminated: { exitCode: 0 } } }],
      }),
      'the pod no longer waits for its volume',
    ],
  ])(
    'fails within two minutes where %s, and does not begin any more',
    async (_about, pod, error) => {
      world.pod = pod;
      const progress = await world.askFor(120_000);
      expect(progress).toMatchObject({ completed: true });
      expect(progress.err).toBe(`pod volume restore failed: ${error} (volume data of pod a/p)`);
      expect(world.patches).toEqual([{ spec: { cancel: true } }]);
    },
  );

  it('fails where no agent runs on the node, but not while one is being replaced', async () => {
    world.agents = ['Pending'];
    expect((await world.askFor(100_000)).completed).toBe(false);
    world.agents = ['Running'];
    expect((await world.askFor(600_000)).completed).toBe(false);
    world.agents = [];
    const progress = await world.askFor(600_000);
    expect(progress.err).toBe(
      'node-agent pod is not running in node n1: daemonset pod not found in running state in node n1 (volume data of pod a/p)',
    );
  });

  it('waits for a pod that is not placed yet', async () => {
    world.pod = podOf({ phase: 'Pending' }, 'pod-uid', '');
    world.agents = [];
    expect((await world.askFor(3_600_000)).completed).toBe(false);
  });

  it('is not asked about any of it once an agent has begun', async () => {
    world.status = { phase: 'Accepted' };
    world.pod = undefined;
    expect((await world.askFor(600_000)).completed).toBe(false);
  });

  it('is canceled by its object', async () => {
    await world.action.cancel('pvr-1', RESTORE, context);
    expect(world.patches).toEqual([{ spec: { cancel: true } }]);
    world.status = { phase: 'Completed' };
    await world.action.cancel('pvr-1', RESTORE, context);
    expect(world.patches).toHaveLength(1);
  });
});
