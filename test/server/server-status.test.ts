import { Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import type { KubeClient, KubeObject, Resource } from '../../src/kube/index.ts';
import { describeServer } from '../../src/server/index.ts';
import { RepositoryMetrics } from '../../src/server/repositories/repository-metrics.ts';

const NOW = '2026-05-01T12:00:00Z';

interface Cluster {
  readonly lease?: object | Error;
  readonly pods?: readonly object[];
  readonly repositories?: readonly object[] | Error;
}

function clientOf({ lease, pods = [], repositories = [] }: Cluster): KubeClient {
  const answer = (value: unknown): Promise<unknown> =>
    value instanceof Error ? Promise.reject(value) : Promise.resolve(value);
  return {
    clock: { nowNs: () => BigInt(Date.parse(NOW)) * 1_000_000n },
    find: ({ kind }: Resource<KubeObject>, { name }: { name: string }) =>
      answer(
        kind === 'Lease' ? lease : pods.find((pod) => (pod as KubeObject).metadata.name === name),
      ),
    list: ({ kind }: Resource<KubeObject>) => answer(kind === 'Pod' ? pods : repositories),
  } as never;
}

const leaseOf = (holderIdentity: string, renewTime = '2026-05-01T11:59:55.123456Z'): object => ({
  spec: {
    holderIdentity,
    renewTime,
    leaseDurationSeconds: 15,
    acquireTime: '2026-05-01T09:30:00.000001Z',
  },
});

const pod = (name: string, isReady = true): object => ({
  metadata: { name, labels: { name: 'longshore-server' } },
  status: { conditions: [{ type: 'Ready', status: isReady ? 'True' : 'False' }] },
});

const repository = (name: string, phase: string, more: object = {}): object => ({
  metadata: { name, annotations: more },
  spec: { repositoryType: 'kopia' },
  status: { phase, message: phase === 'Ready' ? '' : 'no bucket' },
});

const verified = (time: string, damagedContents = 0): object => ({
  'longshore.io/verification': JSON.stringify({ time, damagedContents }),
});

describe('the status of the server', () => {
  it('names the leader, since when it leads, and how many more are ready to', async () => {
    const lease = leaseOf('server-a_5b1c9f0e');
    const pods = [pod('server-a'), pod('server-b'), pod('server-c', false)];
    expect(await describeServer(clientOf({ lease, pods }), 'velero')).toEqual([
      'server: server-a leads since 2026-05-01T09:30:00Z; 1 more is ready to',
    ]);
    expect(await describeServer(clientOf({ lease }), 'velero')).toEqual([
      'server: server-a leads since 2026-05-01T09:30:00Z',
    ]);
  });

  it('says that none leads where the Lease has run out, or was given back', async () => {
    const lease = leaseOf('server-a_5b1c9f0e', '2026-05-01T11:00:00.000000Z');
    expect(await describeServer(clientOf({ lease }), 'velero')).toEqual([
      'server: none leads since 2026-05-01T11:00:00Z (the last one was server-a), so no repository becomes ready and none is maintained',
    ]);
    expect(await describeServer(clientOf({ lease: leaseOf('') }), 'velero')).toEqual([
      'server: none leads since 2026-05-01T11:59:55Z, so no repository becomes ready and none is maintained',
    ]);
    expect((await describeServer(clientOf({ lease: {} }), 'velero'))[0]).toMatch(
      /none leads since some time, so/,
    );
  });

  it('says nothing where there is no server, and where it may not be asked for', async () => {
    expect(await describeServer(clientOf({}), 'velero')).toEqual([]);
    const refused = new CodedError('KUBE_FORBIDDEN', 'no');
    const client = clientOf({ lease: refused, repositories: refused });
    expect(await describeServer(client, 'velero')).toEqual([]);
    const down = clientOf({ lease: new CodedError('KUBE_UNAVAILABLE', 'away') });
    await expect(describeServer(down, 'velero')).rejects.toThrow('away');
  });

  it('counts repositories that are ready, and names the oldest verification and what is damaged', async () => {
    const repositories = [
      repository('a', 'Ready', verified('2026-04-30T01:00:00Z', 2)),
      repository('b', 'Ready', verified('2026-04-29T01:00:00Z', 1)),
      repository('c', 'NotReady'),
      repository('d', 'Ready', { 'longshore.io/verification': 'null' }),
      repository('e', 'Ready', {
        'longshore.io/verification': '{"time":"2026-04-30T02:00:00Z","damagedContents":"many"}',
      }),
    ];
    expect(await describeServer(clientOf({ repositories }), 'velero')).toEqual([
      'repositories: 4 of 5 are ready; not ready: c: no bucket',
      'verified: 3 of 5 repositories, b the longest ago, at 2026-04-29T01:00:00Z; damaged contents: 3; never verified: 2',
    ]);
    const many = ['c', 'd', 'e', 'f', 'g'].map((name) => repository(name, 'New'));
    expect(await describeServer(clientOf({ repositories: many }), 'velero')).toEqual([
      'repositories: 0 of 5 are ready; not ready: c: no bucket; d: no bucket; e: no bucket and 2 more',
    ]);
  });
});

it('metrics tell when a repository was verified, and what was damaged then', async () => {
  const registry = new Registry();
  const common = { isReady: true, overdueSeconds: 0 };
  new RepositoryMetrics(registry, {
    repositories: () => [
      {
        name: 'a',
        ...common,
        verification: {
          time: '1970-01-01T00:01:00Z',
          damagedContents: 4,
          damagedPacks: 1,
          damagedSnapshots: 1,
          readShare: 1,
        },
      },
      { name: 'b', ...common, verification: undefined },
    ],
    jobs: () => ({ running: 0, waiting: 0 }),
    isPasswordWellKnown: () => true,
  });
  const text = await registry.metrics();
  expect(text).toContain(
    'longshore_repository_verified_timestamp_seconds{repository_name="a"} 60\n',
  );
  expect(text).toContain('longshore_repository_damaged_contents{repository_name="a"} 4\n');
  expect(text).not.toMatch(/(verified|damaged)\w*\{repository_name="b"\}/);
});
