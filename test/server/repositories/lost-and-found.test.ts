import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { CodedError, HOUR_NS, silentLogger } from '../../../src/base/index.ts';
import type { BackupRepository, KubeObject, Resource } from '../../../src/kube/index.ts';
import { CONNECTED } from '../../../src/server/repositories/connection-annotation.ts';
import { Connections } from '../../../src/server/repositories/connection.ts';
import { JobKeeper } from '../../../src/server/repositories/maintenance/job-keeper.ts';
import { CLAIM } from '../../../src/server/repositories/maintenance/job-outline.ts';
import { RepositoryMetrics } from '../../../src/server/repositories/repository-metrics.ts';
import { RepositoryWriter } from '../../../src/server/repositories/repository-writer.ts';

const NOW_MS = Date.UTC(2026, 4, 1, 12);
const NAMESPACE = 'velero';

function repositoryWith(annotations: Record<string, string> = {}): BackupRepository {
  return {
    metadata: { name: 'app-default-kopia', namespace: NAMESPACE, uid: 'u1', annotations },
    spec: { volumeNamespace: 'app', backupStorageLocation: 'default', maintenanceFrequency: '1h' },
    status: { phase: 'Ready', lastMaintenanceTime: new Date(NOW_MS - 7_200_000).toISOString() },
  } as never;
}

function writerOf(client: object): RepositoryWriter {
  return new RepositoryWriter({
    client: { clock: { nowNs: () => BigInt(NOW_MS) * 1_000_000n }, ...client } as never,
    events: { record: () => undefined } as never,
    signal: new AbortController().signal,
    assertLeading: () => undefined,
  });
}

it("a repository that Velero's server has connected is noted with its location, so that the next leader sees it change", async () => {
  const connections = new Connections({ logger: silentLogger, namespace: NAMESPACE } as never);
  const written: BackupRepository[] = [];
  const replace = (_: unknown, draft: BackupRepository): Promise<BackupRepository> => {
    written.push(draft);
    return Promise.resolve(draft);
  };
  const location = {
    metadata: { name: 'default', namespace: NAMESPACE },
    spec: { provider: 'aws', objectStorage: { bucket: 'first' } },
  } as unknown as KubeObject;
  await connections.reconcile('k', repositoryWith(), location, writerOf({ replace }));
  expect(written).toHaveLength(1);
  expect(written[0]?.metadata.annotations?.[CONNECTED]).toBeDefined();
});

it("a Job that has the name and belongs to another repository is not taken for one's own", async () => {
  const written: BackupRepository[] = [];
  const theirs = {
    metadata: { name: 'taken', uid: 'j1', ownerReferences: [{ uid: 'another' }] },
    status: {},
  };
  const deployment = {
    metadata: { name: 'server' },
    spec: { template: { spec: { containers: [{ name: 'server', image: 'x' }] } } },
  };
  const claimed = repositoryWith({ [CLAIM]: 'taken' });
  const client = {
    find: ({ kind }: Resource<KubeObject>) =>
      Promise.resolve(kind === 'BackupRepository' ? claimed : undefined),
    list: () => Promise.resolve([]),
    get: ({ kind }: Resource<KubeObject>) =>
      Promise.resolve(kind === 'Deployment' ? deployment : theirs),
    create: () => Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'there is one')),
    replace: (_: unknown, draft: BackupRepository) => {
      written.push(draft);
      return Promise.resolve(draft);
    },
  };
  const keeper = new JobKeeper({
    logger: silentLogger,
    namespace: NAMESPACE,
    metrics: new RepositoryMetrics(new Registry(), {
      repositories: () => [],
      jobs: () => ({ running: 0, waiting: 0 }),
      isPasswordWellKnown: () => true,
    }),
    configMap: undefined,
    jobsMax: 1,
    deployment: 'server',
    command: ['/velero'],
    logLevel: 'info',
    logFormat: 'text',
    wake: () => undefined,
  });
  const kept = { key: 'k', repository: claimed, jobs: [], isStartable: true, frequencyNs: HOUR_NS };
  await keeper.reconcile(kept, writerOf(client));
  expect(written.map(({ metadata }) => metadata.annotations?.[CLAIM])).toEqual([undefined]);
});
