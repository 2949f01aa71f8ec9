import { afterAll, beforeAll, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import {
  BACKUPS,
  DATA_UPLOADS,
  type KubeClient,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import { removeLostSnapshots } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf } from '../../support/plugin-items.ts';
import { callsThrough } from '../../support/with-calls.ts';

const APP = 'app';
const signal = new AbortController().signal;
let test: TestCluster;

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace(APP);
});
afterAll(() => test[Symbol.asyncDispose]());

const unknownKind = (): Promise<never> =>
  Promise.reject(new CodedError('KUBE_NOT_FOUND', 'the server could not find the resource'));

/** The client of an API server that answers 404 for this kind. */
const without = (kind: { plural: string }): KubeClient =>
  callsThrough(test.client, (_, [asked], go) =>
    (asked as { plural: string }).plural === kind.plural ? unknownKind() : go(),
  );

const backup = (name: string) => ({
  metadata: { name, namespace: NAMESPACE },
  spec: backupOf(name).spec,
  status: { phase: 'InProgress' },
});

/** A VolumeSnapshot that this backup has taken. */
const makeSnapshot = (name: string, of: { name: string; uid: string }, isMoved: boolean) =>
  test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name,
      namespace: APP,
      labels: { 'velero.io/backup-uid': of.uid, 'longshore.io/moved': String(isMoved) },
      annotations: { 'longshore.io/for-backup': `${NAMESPACE}/${of.name}` },
    },
    spec: { source: { persistentVolumeClaimName: 'none' } },
  });

const isThere = async (name: string): Promise<boolean> =>
  (await test.client.find(VOLUME_SNAPSHOTS, { namespace: APP, name })) !== undefined;

const remove = (client: KubeClient, lost: { name: string; uid: string }, withKept: boolean) =>
  removeLostSnapshots(
    { client, logger: silentLogger },
    { namespace: NAMESPACE, ...lost },
    { withKept, signal },
  );

it('nothing is removed of a Backup whose kind the API server does not serve for a while', async () => {
  const { metadata } = await test.client.create(BACKUPS, backup('there'));
  await makeSnapshot('taken', metadata, true);
  await expect(remove(without(BACKUPS), metadata, false)).rejects.toMatchObject({
    code: 'KUBE_NOT_FOUND',
  });
  expect(await isThere('taken')).toBe(true);
}, 60_000);

it('nothing is removed of another backup when the API server stops to serve Backups meanwhile', async () => {
  const { metadata: other } = await test.client.create(BACKUPS, backup('other'));
  // A group that the other backup, which runs, is taking at this moment.
  const group = {
    metadata: {
      name: 'group',
      namespace: APP,
      uid: 'group-uid',
      labels: { 'velero.io/backup-uid': other.uid },
      annotations: { 'longshore.io/for-backup': `${NAMESPACE}/other` },
    },
  };
  const removed: string[] = [];
  let isServed = true;
  let hasAsked = false;
  const client = callsThrough(test.client, (name, given, go) => {
    const [{ plural }, ref] = given as [{ plural: string }, { name: string }];
    if (name === 'delete') removed.push(`${plural}/${ref.name}`);
    if (plural === BACKUPS.plural && !isServed) {
      hasAsked = true;
      return unknownKind();
    }
    if (plural !== VOLUME_GROUP_SNAPSHOTS.plural) return go();
    isServed = false;
    return Promise.resolve(name === 'list' ? [group] : group);
  });
  await remove(client, { name: 'deleted', uid: 'deleted' }, false);
  expect(hasAsked).toBe(true);
  expect(removed).toEqual([]);
}, 60_000);

it('a cluster without the kind of uploads gives back the name all the same', async () => {
  const gone = { name: 'gone', uid: 'gone' };
  await makeSnapshot('kept', gone, false);
  await remove(without(DATA_UPLOADS), gone, true);
  expect(await isThere('kept')).toBe(false);
}, 60_000);
