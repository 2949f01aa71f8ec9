import { beforeEach, describe, expect, it } from 'vitest';
import { CanceledError } from '../../../../src/base/index.ts';
import type { Observation } from '../../../../src/item-operations/index.ts';
import { DATA_DOWNLOADS } from '../../../../src/kube/index.ts';
import type { RestoreAction } from '../../../../src/restore/index.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { stored } from '../../../restore/support/backup.ts';
import { RestoreCluster } from '../../../restore/support/cluster.ts';
import { reasonOf, Rig, type Parts, storeBackup } from './support/rig.ts';

/** Volumes that are there are brought back before anything may use them, whoever makes the restore meanwhile. */

const ITEMS = [
  stored('namespaces', 'app'),
  stored('namespaces', 'db'),
  stored('persistentvolumeclaims', 'db/data', { spec: { volumeName: 'pv-1' } }),
  stored('secrets', 'db/key'),
  stored('pods', 'app/web', { spec: { containers: [] } }),
  stored('pods', 'db/db-0', { spec: { containers: [] } }),
  stored('deployments.apps', 'db/api'),
  stored('services', 'db/api'),
];
const OPERATION = 'dd-in-place-u1.old-db/data';

const progress = (completed: boolean, err = ''): Observation => ({
  kind: 'progress',
  progress: {
    ...{ completed, err, nCompleted: completed ? 7 : 3, nTotal: 7, operationUnits: 'Bytes' },
    ...{ description: '', started: undefined, updated: undefined },
  },
});

describe('a restore of a volume that is there', () => {
  let cluster: RestoreCluster;
  let bucket: MemoryBucket;
  let asked: string[];
  /** What comes of the operation, question by question; the last one stays. */
  let answers: Observation[];
  /** How often it was asked about: then everything before what waits is made. */
  let questions: number;

  const bringsBack: RestoreAction = {
    name: 'longshore.io/csi-pvc-restorer',
    appliesTo: { includedResources: ['persistentvolumeclaims'] },
    execute: ({ item }) => {
      asked.push(item.metadata.name);
      return Promise.resolve({ operationId: OPERATION, isInPlace: true });
    },
  };

  beforeEach(async () => {
    cluster = new RestoreCluster();
    bucket = new MemoryBucket();
    asked = [];
    questions = 0;
    answers = [progress(true)];
    cluster.objects.set('persistentvolumeclaims', [
      {
        ...stored('persistentvolumeclaims', 'db/data').object,
        ...{ spec: { volumeName: 'pv-1', dataSource: { kind: 'VolumeSnapshot', name: 'old' } } },
        status: { phase: 'Bound' },
      } as never,
    ]);
    await storeBackup(bucket, ITEMS);
  });

  const server = (more: Partial<Parts> = {}): Rig =>
    new Rig({
      ...{ cluster, bucket, actions: [bringsBack] },
      ask: () => {
        questions++;
        return Promise.resolve((answers.length > 1 ? answers.shift() : answers[0]) as Observation);
      },
      spec: { existingVolumeDataPolicy: 'full' },
      ...more,
    });
  const made = (): string[] =>
    cluster.calls.filter((call) => call.startsWith('create ')).map((call) => call.slice(7));

  it('lets what may use it wait until it is done', async () => {
    const before: string[][] = [];
    answers = [progress(false), progress(false), progress(true)];
    const rig = server({
      ask: () => {
        before.push(made());
        return Promise.resolve(answers.shift() ?? progress(true));
      },
    });
    const outcome = await rig.run();
    expect(before.length).toBe(3);
    for (const names of before) {
      expect(names).toEqual(['namespaces app', 'namespaces db', 'secrets db/key']);
    }
    expect(made().slice(3)).toEqual([
      ...['pods app/web', 'pods db/db-0', 'services db/api', 'deployments.apps db/api'],
    ]);
    expect(outcome.phase).toBe('Finalizing');
    expect(outcome.status).toMatchObject({
      ...{ restoreItemOperationsAttempted: 1, restoreItemOperationsCompleted: 1 },
    });
    const list = await rig.archive.resourceList('r1');
    expect(list['v1/PersistentVolumeClaim']).toEqual(['db/data(updated)']);
    expect(await rig.archive.results('r1')).toEqual({ errors: {}, warnings: {} });
    expect(cluster.patches).toEqual([]);
    expect(await rig.log()).toContain('waits until these are brought back in place: db/data');
  });

  it('changes the object of the claim only where that is asked for', async () => {
    const rig = server({
      spec: { existingVolumeDataPolicy: 'full', existingResourcePolicy: 'update' },
    });
    await rig.run();
    expect(cluster.calls).toContain('patch persistentvolumeclaims db/data');
    const list = await rig.archive.resourceList('r1');
    expect(list['v1/PersistentVolumeClaim']).toEqual(['db/data(updated)']);
  });

  it('restores nothing that may use it where it failed, and says so once', async () => {
    answers = [progress(false), progress(true, 'pod db/x uses PVC db/data, and it was stopped')];
    const rig = server();
    const outcome = await rig.run();
    expect(made()).toEqual([
      ...['namespaces app', 'namespaces db', 'secrets db/key', 'pods app/web', 'services db/api'],
    ]);
    expect(outcome.phase).toBe('FinalizingPartiallyFailed');
    const { errors } = await rig.archive.results('r1');
    const said = Object.values(errors?.namespaces ?? {}).flat();
    expect(said).toHaveLength(2);
    expect(said.join('\n')).toContain('not brought back whole: db/data; restore the backup again');
    expect(said.join('\n')).toContain('pod db/x uses PVC db/data');
  });

  it('goes on waiting when its server is killed meanwhile, and begins nothing twice', async () => {
    answers = [progress(false)];
    const first = server();
    const running = reasonOf(first.run());
    await expect.poll(() => questions).toBeGreaterThan(0);
    first.abort.abort(new CanceledError('shutdown'));
    expect(await running).toMatchObject({ code: 'CANCELED' });
    expect(first.canceled).toEqual([]);
    const until = made();
    answers = [progress(false), progress(true)];
    const outcome = await server().run();
    expect(asked).toEqual(['data']);
    expect(made().slice(until.length)).toEqual([
      ...['pods app/web', 'pods db/db-0', 'services db/api', 'deployments.apps db/api'],
    ]);
    expect(outcome.status).toMatchObject({ restoreItemOperationsCompleted: 1 });
  });

  it('ends it where the restore is canceled while it waits', async () => {
    answers = [progress(false)];
    const rig = server();
    const running = reasonOf(rig.run());
    await expect.poll(() => questions).toBeGreaterThan(0);
    rig.abort.abort(new CanceledError('user'));
    expect(await running).toMatchObject({ code: 'CANCELED' });
    expect(rig.canceled).toEqual([OPERATION]);
    expect(made().filter((name) => name.startsWith('pods'))).toEqual([]);
  });

  it('does not wait where nothing comes that may use it, and notes its volume', async () => {
    answers = [progress(false)];
    cluster.objects.set('datadownloads.velero.io', [
      {
        apiVersion: 'velero.io/v2alpha1',
        kind: DATA_DOWNLOADS.kind,
        metadata: {
          ...{ name: 'd', namespace: 'velero', uid: 'd', resourceVersion: '1' },
          labels: { 'velero.io/restore-uid': 'u1', 'velero.io/async-operation-id': OPERATION },
        },
        spec: { targetVolume: { namespace: 'db', pvc: 'data', pv: '' }, snapshotID: 's' },
      } as never,
    ]);
    const spec = { includedResources: ['persistentvolumeclaims', 'secrets'] };
    const rig = server({ spec: { existingVolumeDataPolicy: 'full', ...spec } });
    expect((await rig.run()).phase).toBe('WaitingForPluginOperations');
    expect(await rig.archive.volumeInfos('r1')).toEqual([
      expect.objectContaining({
        ...{ pvcName: 'data', pvcNamespace: 'db', pvName: 'pv-1', snapshotDataMoved: true },
      }),
    ]);
  });

  it('says which files of pods did not come, since their pods were not made', async () => {
    const info = {
      ...{ pvcName: 'data', pvcNamespace: 'db', backupMethod: 'PodVolumeBackup' },
      pvbInfo: { snapshotHandle: 's', volumeName: 'v', podName: 'p', podNamespace: 'db' },
    };
    bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS, { volumeInfos: [info] });
    const errors = async (rig: Rig): Promise<string> => {
      await rig.run();
      return JSON.stringify((await rig.archive.results('r1')).errors);
    };
    const text = 'they come with their pod, and no pod that uses it was created by this restore';
    expect(await errors(server({ actions: [] }))).toContain(text);
    const plain = new Rig({ cluster, bucket: new MemoryBucket() });
    await storeBackup(plain.bucket, ITEMS, { volumeInfos: [info] });
    expect(await errors(plain)).not.toContain(text);
  });
});
