import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import {
  BACKUPS,
  DATA_UPLOADS,
  type DataUpload,
  type KubeClient,
  VOLUME_SNAPSHOTS,
} from '../../../../src/kube/index.ts';
import { removeLostSnapshots } from '../../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../../support/dev-cluster.ts';
import { backupOf } from '../../../support/plugin-items.ts';
import { withCalls } from '../../../support/with-calls.ts';

const APP = 'app';
const signal = new AbortController().signal;
const lost = { namespace: NAMESPACE, name: 'lost', uid: 'lost-uid' };
let test: TestCluster;

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace(APP);
});
afterAll(() => test[Symbol.asyncDispose]());
beforeEach(async () => {
  for (const { metadata } of await test.client.list(VOLUME_SNAPSHOTS)) {
    await test.client.delete(VOLUME_SNAPSHOTS, metadata);
  }
  for (const { metadata } of await test.client.list(DATA_UPLOADS)) {
    await test.client.delete(DATA_UPLOADS, metadata);
  }
  await expect.poll(remaining).toEqual([]);
});

const take = (
  name: string,
  { isMoved = true, uid = lost.uid, of = `${NAMESPACE}/lost`, source = {} } = {},
): Promise<unknown> =>
  test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name,
      namespace: APP,
      labels: { 'velero.io/backup-uid': uid, 'longshore.io/moved': String(isMoved) },
      annotations: {
        'longshore.io/for-backup': of,
        'velero.io/csi-volumesnapshot-handle': `handle-of-${name}`,
      },
    },
    spec: { source: { persistentVolumeClaimName: 'none', ...source } },
  });

const upload = async (snapshot: string, phase = ''): Promise<DataUpload> => {
  const made = await test.client.create(DATA_UPLOADS, {
    metadata: {
      name: `of-${snapshot}`,
      namespace: NAMESPACE,
      labels: { 'velero.io/backup-uid': lost.uid },
    },
    spec: {
      snapshotType: 'CSI',
      sourceNamespace: APP,
      sourcePVC: 'none',
      csiSnapshot: { volumeSnapshot: snapshot, storageClass: '' },
      backupStorageLocation: 'default',
      operationTimeout: '1m0s',
    },
  });
  const patch = { status: { phase } };
  return phase === '' ? made : test.client.patch(DATA_UPLOADS, made.metadata, patch);
};

const remaining = async (): Promise<string[]> =>
  (await test.client.list(VOLUME_SNAPSHOTS))
    .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
    .map(({ metadata }) => metadata.name)
    .sort();

const remove = (client: KubeClient = test.client, withKept = true): Promise<void> =>
  removeLostSnapshots({ client, logger: silentLogger }, lost, { withKept, signal });

it('an upload that no agent had taken went with its Backup: its snapshot is removed', async () => {
  await take('left');
  await take('kept', { isMoved: false });
  await remove();
  expect(await remaining()).toEqual([]);
});

it('one that is still there is waited for, since Kubernetes deletes it a moment later', async () => {
  await take('left');
  const { metadata } = await upload('left');
  let looks = 0;
  const client = withCalls(test.client, {
    list: async (resource, options) => {
      const found = await test.client.list(resource, options);
      if (resource.plural === DATA_UPLOADS.plural && ++looks === 1) {
        void sleep(300).then(() => test.client.delete(DATA_UPLOADS, metadata));
      }
      return found;
    },
  });
  await remove(client);
  expect(await remaining()).toEqual([]);
});

it('a snapshot stays whose upload an agent has, and so do those of anything else', async () => {
  await take('moving');
  await upload('moving', 'Accepted');
  await take('of-another-server', { of: 'other/lost' });
  await take('of-another-backup', { uid: 'another-uid' });
  await take('of-another-name', { of: `${NAMESPACE}/found` });
  const content = { persistentVolumeClaimName: undefined, volumeSnapshotContentName: 'c' };
  await take('of-a-restore', { source: content });
  const all = await remaining();
  await remove();
  expect(await remaining()).toEqual(all);
});

it('snapshots that were to be kept stay where files of the backup may be in the bucket', async () => {
  await take('kept', { isMoved: false });
  await take('left');
  await remove(test.client, false);
  expect(await remaining()).toEqual(['kept']);
});

it('nothing is removed while the Backup is there', async () => {
  const { spec } = backupOf('there');
  const status = { phase: 'InProgress' };
  const object = { metadata: { name: 'there', namespace: NAMESPACE }, spec, status };
  const { metadata } = await test.client.create(BACKUPS, object);
  await take('taken', { uid: metadata.uid, of: `${NAMESPACE}/there` });
  const options = { withKept: true, signal };
  const setting = { client: test.client, logger: silentLogger };
  const backup = { namespace: NAMESPACE, name: 'there', uid: metadata.uid };
  await removeLostSnapshots(setting, backup, options);
  expect(await remaining()).toEqual(['taken']);
});

it('says which one stays, so that it is tried again', async () => {
  await take('left');
  const client = withCalls(test.client, {
    delete: () => Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no')),
  });
  await expect(remove(client)).rejects.toMatchObject({
    code: 'SNAPSHOT_STAYS',
    message: expect.stringContaining(`${APP}/left`) as string,
  });
  expect(await remaining()).toEqual(['left']);
});

it('a cluster that has no snapshots has none of the backup', async () => {
  const client = withCalls(test.client, {
    list: (resource, options) =>
      resource.plural === VOLUME_SNAPSHOTS.plural
        ? Promise.reject(new CodedError('KUBE_NOT_FOUND', 'no such kind'))
        : test.client.list(resource, options),
  });
  await remove(client);
});
