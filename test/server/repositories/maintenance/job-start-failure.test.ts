import { Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import type {
  BackupRepository,
  Job,
  KubeObject,
  Pod,
  Resource,
} from '../../../../src/kube/index.ts';
import { JobKeeper } from '../../../../src/server/repositories/maintenance/job-keeper.ts';
import {
  CLAIM,
  frequencyOf,
  outlineOf,
} from '../../../../src/server/repositories/maintenance/job-outline.ts';
import { RepositoryMetrics } from '../../../../src/server/repositories/repository-metrics.ts';
import { RepositoryWriter } from '../../../../src/server/repositories/repository-writer.ts';

const START_MS = Date.UTC(2026, 4, 1, 12);
const MINUTE_MS = 60_000;
const PULL = {
  phase: 'Pending',
  containerStatuses: [
    {
      name: 'c',
      state: { waiting: { reason: 'ImagePullBackOff', message: 'Back-off pulling image "x"' } },
    },
  ],
};

/** Three repositories with Jobs from the start, one more that is due, and two slots. */
class Cluster {
  nowMs = START_MS;
  readonly repositories = new Map<string, BackupRepository>();
  readonly jobs = new Map<string, Job>();
  /** Keyed by the name of the Job. */
  readonly pods = new Map<string, Pod['status']>();
  mayListPods = true;
  readonly woken: string[] = [];
  readonly keeper: JobKeeper;
  readonly #writer: RepositoryWriter;

  constructor({ label = 'longshore.io/repo-maintenance', isClaimed = true } = {}) {
    for (const name of ['a', 'b', 'due']) {
      const annotations = isClaimed && name !== 'due' ? { [CLAIM]: `j${name}/u${name}` } : {};
      this.repositories.set(name, {
        metadata: { name, uid: name, annotations },
        spec: { maintenanceFrequency: '1h' },
        status: {
          phase: 'Ready',
          lastMaintenanceTime: new Date(START_MS - 7200_000).toISOString(),
        },
      } as never);
      if (name === 'due') continue;
      this.jobs.set(`j${name}`, {
        metadata: {
          name: `j${name}`,
          uid: `u${name}`,
          labels: { [label]: 'true' },
          creationTimestamp: new Date(START_MS).toISOString(),
        },
        status: { active: 1, ready: 0 },
      } as never);
      this.pods.set(`j${name}`, PULL as never);
    }
    const client = {
      clock: { nowNs: () => BigInt(this.nowMs) * 1_000_000n },
      find: (_: Resource<Job>, { name }: { name: string }) => Promise.resolve(this.jobs.get(name)),
      list: ({ kind }: Resource<KubeObject>, { labelSelector }: { labelSelector: string }) => {
        if (kind === 'Job') return Promise.resolve([]);
        if (!this.mayListPods) {
          return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'pods is forbidden'));
        }
        const status = this.pods.get(labelSelector.slice('job-name='.length));
        return Promise.resolve(status ? [{ status }] : []);
      },
      get: () => Promise.reject(new CodedError('KUBE_NOT_FOUND', 'no Deployment')),
      replace: (_: unknown, draft: BackupRepository) => {
        this.repositories.set(draft.metadata.name, draft);
        return Promise.resolve(draft);
      },
      delete: (_: unknown, { name }: { name: string }, { uid }: { uid: string }) => {
        if (this.jobs.get(name)?.metadata.uid === uid) this.jobs.delete(name);
        return Promise.resolve(true);
      },
    };
    this.#writer = new RepositoryWriter({
      client: client as never,
      events: { record: () => undefined } as never,
      signal: new AbortController().signal,
      assertLeading: () => undefined,
    });
    this.keeper = new JobKeeper({
      logger: silentLogger,
      namespace: 'velero',
      configMap: undefined,
      jobsMax: 2,
      deployment: 'd',
      command: [],
      logLevel: 'info',
      logFormat: 'text',
      metrics: new RepositoryMetrics(new Registry(), {
        repositories: () => [],
        jobs: () => ({ running: 0, waiting: 0 }),
        isPasswordWellKnown: () => true,
      }),
      wake: (key) => this.woken.push(key),
    });
  }

  /** Looks at all of them, this many minutes after the start. */
  async look(minutes: number): Promise<void> {
    this.nowMs = START_MS + minutes * MINUTE_MS;
    for (const [key, repository] of this.repositories) {
      const job = this.jobs.get(`j${key}`);
      const jobs = job ? [outlineOf(job)] : [];
      const frequencyNs = frequencyOf(repository, undefined);
      const kept = { key, repository, jobs, isStartable: true, frequencyNs };
      await this.keeper.reconcile(kept, this.#writer);
    }
  }

  claim(name: string): string | undefined {
    return this.repositories.get(name)?.metadata.annotations?.[CLAIM];
  }
  runs(name: string) {
    return this.repositories.get(name)?.status?.recentMaintenance ?? [];
  }
}

describe('a maintenance Job that does not start', () => {
  it('keeps its place for ten minutes, and then makes room for who waits', async () => {
    const cluster = new Cluster();
    await cluster.look(9);
    expect([cluster.keeper.runningCount, cluster.keeper.waitingCount]).toEqual([2, 1]);
    await cluster.look(11);
    expect(cluster.keeper.runningCount).toBe(0);
    expect(cluster.woken).toEqual(['due']);
    // Its turn came, and the server noticed the missing Deployment.
    expect(cluster.runs('due')).toHaveLength(1);
    expect(cluster.claim('a')).toBe('ja/ua');
  });

  it('has its place again when it starts', async () => {
    const cluster = new Cluster();
    await cluster.look(11);
    for (const name of ['ja', 'jb']) cluster.pods.set(name, { phase: 'Running' });
    await cluster.look(12);
    expect(cluster.keeper.runningCount).toBe(2);
  });

  it('is deleted after an hour, recorded with the reason, and tried again some minutes later', async () => {
    const cluster = new Cluster();
    await cluster.look(59);
    expect(cluster.jobs.size).toBe(2);
    await cluster.look(61);
    expect(cluster.jobs.size).toBe(0);
    expect(cluster.claim('a')).toBeUndefined();
    expect(cluster.runs('a')).toMatchObject([
      {
        result: 'Failed',
        message:
          'the maintenance Job did not start within an hour, and was deleted: ImagePullBackOff: Back-off pulling image "x"',
      },
    ]);
    await cluster.look(65);
    expect(cluster.runs('a')).toHaveLength(1);
    await cluster.look(67);
    expect(cluster.runs('a')).toHaveLength(2);
  });

  const started: [string, (cluster: Cluster) => void][] = [
    ['its pod runs', ({ pods }) => pods.set('ja', { phase: 'Running' })],
    ['the node of its pod is out of reach', ({ pods }) => pods.set('ja', { phase: 'Unknown' })],
    ['its pod is not listed yet', ({ pods }) => pods.delete('ja')],
    [
      'its pod is ready, whatever the list of pods says',
      ({ jobs }) => Object.assign(jobs.get('ja')?.status ?? {}, { ready: 1 }),
    ],
    [
      'its pod has failed, and the Job not yet',
      ({ jobs }) => Object.assign(jobs.get('ja')?.status ?? {}, { failed: 1, active: 0 }),
    ],
  ];
  it.each(started)(
    'is not what it is taken for where %s, however much the clock jumps',
    async (_, be) => {
      const cluster = new Cluster();
      be(cluster);
      await cluster.look(100_000);
      expect(cluster.claim('a')).toBe('ja/ua');
      expect(cluster.jobs.has('ja')).toBe(true);
      expect(cluster.jobs.has('jb')).toBe(false);
      expect(cluster.keeper.runningCount).toBe(1);
    },
  );

  const reasons: [string, Pod['status'] | undefined, Job['status'], RegExp][] = [
    [
      'no node takes its pod',
      {
        phase: 'Pending',
        conditions: [
          { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message: '0/3 nodes' },
        ],
      },
      { active: 1, ready: 0 },
      /: Unschedulable: 0\/3 nodes$/,
    ],
    [
      'a volume is missing',
      {
        phase: 'Pending',
        containerStatuses: [{ name: 'c', state: { waiting: { reason: 'ContainerCreating' } } }],
      },
      { active: 1, ready: 0 },
      /Events of the pod say what it waits for, such as a volume$/,
    ],
    [
      'it is suspended',
      undefined,
      { conditions: [{ type: 'Suspended', status: 'True' }] },
      /: the Job is suspended$/,
    ],
    ['no pod could be created', undefined, {}, /: it has no pod: the Events of the Job say/],
  ];
  it.each(reasons)('says it where %s', async (_, pod, status, message) => {
    const cluster = new Cluster();
    cluster.pods.set('ja', pod);
    Object.assign(cluster.jobs.get('ja') ?? {}, { status });
    await cluster.look(61);
    expect(cluster.runs('a')[0]?.message).toMatch(message);
  });

  it('is told by the status of the Job where pods may not be listed', async () => {
    const cluster = new Cluster();
    cluster.mayListPods = false;
    Object.assign(cluster.jobs.get('jb') ?? {}, { status: { active: 1 } });
    await cluster.look(61);
    expect(cluster.runs('a')[0]?.message).toMatch(/pods may not be listed to see why$/);
    // An API server without a readiness status.
    expect(cluster.jobs.has('jb')).toBe(true);
  });

  it('is deleted too where no claim names it, and nothing is recorded of it', async () => {
    const cluster = new Cluster({ isClaimed: false });
    await cluster.look(61);
    expect(cluster.jobs.size).toBe(0);
    expect(cluster.runs('a')).toEqual([]);
  });

  it("is left alone where Velero's server made it, but holds no place", async () => {
    const cluster = new Cluster({ label: 'other', isClaimed: false });
    await cluster.look(61);
    expect(cluster.jobs.size).toBe(2);
    expect(cluster.keeper.runningCount).toBe(0);
  });
});
