import { afterAll, beforeAll, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import {
  BACKUPS,
  DATA_UPLOADS,
  VOLUME_GROUP_SNAPSHOTS,
  type VolumeGroupSnapshot,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import { removeLostSnapshots } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf } from '../../support/plugin-items.ts';
import { withCalls } from '../../support/with-calls.ts';

const APP = 'app';
const signal = new AbortController().signal;
let test: TestCluster;

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace(APP);
});
afterAll(() => test[Symbol.asyncDispose]());

it('nothing is removed of a Backup whose kind the API server does not serve for a while, nor of others', async () => {
  const { spec } = backupOf('there');
  const status = { phase: 'InProgress' };
  const object = { metadata: { name: 'there', namespace: NAMESPACE }, spec, status };
  const { metadata } = await test.client.create(BACKUPS, object);
  await test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name: 'taken',
      namespace: APP,
      labels: { 'velero.io/backup-uid': metadata.uid, 'longshore.io/moved': 'true' },
      annotations: { 'longshore.io/for-backup': `${NAMESPACE}/there` },
    },
    spec: { source: { persistentVolumeClaimName: 'none' } },
  });
  // A group that another backup, which runs, is taking at this moment.
  const other = await test.client.create(BACKUPS, {
    ...object,
    metadata: { name: 'other', namespace: NAMESPACE },
  });
  const group = {
    metadata: {
      name: 'group',
      namespace: APP,
      uid: 'group-uid',
      labels: { 'velero.io/backup-uid': other.metadata.uid },
      annotations: { 'longshore.io/for-backup': `${NAMESPACE}/other` },
    },
  } as unknown as VolumeGroupSnapshot;
  const removed: string[] = [];
  const client = withCalls(test.client, {
    get: ((resource: { plural: string }, ...rest: unknown[]) =>
      resource.plural === 'backups'
        ? Promise.reject(new CodedError('KUBE_NOT_FOUND', 'the server could not find the resource'))
        : (test.client.get as (...all: unknown[]) => unknown)(resource, ...rest)) as never,
    list: ((resource: { plural: string }, ...rest: unknown[]) =>
      resource.plural === VOLUME_GROUP_SNAPSHOTS.plural
        ? Promise.resolve([group])
        : (test.client.list as (...all: unknown[]) => unknown)(resource, ...rest)) as never,
    find: ((resource: { plural: string }, ...rest: unknown[]) =>
      resource.plural === VOLUME_GROUP_SNAPSHOTS.plural
        ? Promise.resolve(group)
        : (test.client.find as (...all: unknown[]) => unknown)(resource, ...rest)) as never,
    delete: ((resource: { plural: string }, ref: { name: string }, ...rest: unknown[]) => {
      removed.push(`${resource.plural}/${ref.name}`);
      if (resource.plural === VOLUME_GROUP_SNAPSHOTS.plural) return Promise.resolve(true);
      return (test.client.delete as (...all: unknown[]) => unknown)(resource, ref, ...rest);
    }) as never,
  });
  const lost = { namespace: NAMESPACE, name: 'there', uid: metadata.uid };
  await removeLostSnapshots({ client, logger: silentLogger }, lost, { withKept: false, signal });
  expect(removed).toEqual([]);
}, 60_000);

it('a cluster without the kind of uploads gives back the name all the same', async () => {
  await test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name: 'kept',
      namespace: APP,
      labels: { 'velero.io/backup-uid': 'gone', 'longshore.io/moved': 'false' },
      annotations: { 'longshore.io/for-backup': `${NAMESPACE}/gone` },
    },
    spec: { source: { persistentVolumeClaimName: 'none' } },
  });
  const client = withCalls(test.client, {
    list: (resource, options) =>
      resource.plural === DATA_UPLOADS.plural
        ? Promise.reject(new CodedError('KUBE_NOT_FOUND', 'no such kind'))
        : test.client.list(resource, options),
  });
  const lost = { namespace: NAMESPACE, name: 'gone', uid: 'gone' };
  await removeLostSnapshots({ client, logger: silentLogger }, lost, { withKept: true, signal });
}, 60_000);
