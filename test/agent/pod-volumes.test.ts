import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NOT_SERVED, PodVolumes } from '../../src/agent/pod-volumes.ts';
import type { Roster } from '../../src/agent/roster.ts';
import {
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolume,
  type Resource,
  waitFor,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { recordingLogger } from '../support/repositories.ts';

const FINALIZER = 'velero.io/pod-volume-finalizer';
const pod = { kind: 'Pod', name: 'writer', namespace: 'app' };
const spec = { backupStorageLocation: 'default', pod, repoIdentifier: '', volume: 'data' };

describe('file-system backups where no agent of Velero is', () => {
  let cluster: TestCluster;
  const abort = new AbortController();
  let work: Promise<void>;
  const logger = recordingLogger();
  beforeAll(async () => {
    cluster = await TestCluster.start();
    const roster = {
      isAlive: (node: string) => node !== 'gone',
      rank: () => 0,
    } as unknown as Roster;
    const { client } = cluster;
    const options = { client, logger, namespace: NAMESPACE, node: 'node-1', roster };
    work = new PodVolumes({ ...options, patienceMs: 200 }).run(abort.signal);
  });
  afterAll(async () => {
    abort.abort();
    await work;
    await cluster[Symbol.asyncDispose]();
  });

  const make = (
    resource: Resource<PodVolume>,
    name: string,
    more: { spec?: object; status?: object; finalizers?: string[] } = {},
  ): Promise<PodVolume> =>
    cluster.client.create(resource, {
      metadata: { name, namespace: NAMESPACE, finalizers: more.finalizers ?? [FINALIZER] },
      spec: { ...spec, ...more.spec },
      status: more.status ?? {},
    } as never);
  const ended = (resource: Resource<PodVolume>, name: string): Promise<PodVolume> =>
    waitFor(
      cluster.client,
      resource,
      { namespace: NAMESPACE, name },
      (now) => (now?.metadata.finalizers?.includes(FINALIZER) === true ? undefined : now),
      { timeoutMs: 20_000 },
    );

  it('a backup of this node ends at once, with a sentence, and keeps what it was', async () => {
    const tags = { 'backup-uid': 'x' };
    await make(POD_VOLUME_BACKUPS, 'here', { spec: { node: 'node-1', tags } });
    const { spec: kept, status } = await ended(POD_VOLUME_BACKUPS, 'here');
    expect(status).toMatchObject({ phase: 'Failed', message: NOT_SERVED });
    expect(status?.completionTimestamp).toMatch(/^\d{4}-.*Z$/);
    expect(kept).toMatchObject({ ...spec, node: 'node-1', tags });
    expect(logger.messages).toContain(NOT_SERVED);
  });

  it('so do a restore, one that the former agent of this node had begun, and one of a node that is gone', async () => {
    const source = { snapshotID: 'a', sourceNamespace: 'b' };
    await make(POD_VOLUME_RESTORES, 'restore', { spec: source });
    const begun = { phase: 'InProgress', node: 'node-1', startTimestamp: '2026-01-01T00:00:00Z' };
    await make(POD_VOLUME_RESTORES, 'begun', { spec: source, status: begun });
    await make(POD_VOLUME_BACKUPS, 'gone', { spec: { node: 'gone' } });
    expect((await ended(POD_VOLUME_RESTORES, 'restore')).status?.phase).toBe('Failed');
    expect((await ended(POD_VOLUME_RESTORES, 'begun')).status).toMatchObject({
      phase: 'Failed',
      startTimestamp: '2026-01-01T00:00:00Z',
    });
    expect((await ended(POD_VOLUME_BACKUPS, 'gone')).status?.phase).toBe('Failed');
  });

  it('those that are over only lose the finalizer, so that their backup can be deleted', async () => {
    const status = { phase: 'Completed', message: 'as it was' };
    const finalizers = ['example.com/other', FINALIZER];
    await make(POD_VOLUME_BACKUPS, 'synced', { spec: { node: 'gone' }, status, finalizers });
    const now = await ended(POD_VOLUME_BACKUPS, 'synced');
    expect(now.status).toEqual(status);
    expect(now.metadata.finalizers).toEqual(['example.com/other']);
  });

  it('those of a node with an agent are left to that', async () => {
    const other = await make(POD_VOLUME_BACKUPS, 'elsewhere', { spec: { node: 'node-2' } });
    await make(POD_VOLUME_BACKUPS, 'after', { spec: { node: 'gone' } });
    await ended(POD_VOLUME_BACKUPS, 'after');
    const { metadata } = await cluster.client.get(POD_VOLUME_BACKUPS, other.metadata);
    expect(metadata.resourceVersion).toBe(other.metadata.resourceVersion);
  });
});
