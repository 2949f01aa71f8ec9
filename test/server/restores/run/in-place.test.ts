import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import { CanceledError } from '../../../../src/base/index.ts';
import type { Observation } from '../../../../src/item-operations/index.ts';
import { DATA_DOWNLOADS } from '../../../../src/kube/index.ts';
import { storedVolume } from '../../../../src/cli/backups/describe/described-objects.ts';
import type { RestoreAction } from '../../../../src/restore/index.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { stored } from '../../../restore/support/backup.ts';
import { RestoreCluster } from '../../../restore/support/cluster.ts';
import { reasonOf, Rig, type Parts, storeBackup } from './support/rig.ts';

/** Data of existing volumes is restored before any item may use them, on any server. */

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
    completed,
    err,
    nCompleted: completed ? 7 : 3,
    nTotal: 7,
    operationUnits: 'Bytes',
    description: '',
    started: undefined,
    updated: undefined,
  },
});

describe('a restore of a volume that is there', () => {
  let cluster: RestoreCluster;
  let bucket: MemoryBucket;
  let asked: string[];
  /** Results of the operation, poll by poll; the last one stays. */
  let answers: Observation[];
  /** Number of polls. At the first poll, all earlier items exist. */
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
        spec: { volumeName: 'pv-1', dataSource: { kind: 'VolumeSnapshot', name: 'old' } },
        status: { phase: 'Bound' },
      } as never,
    ]);
    await storeBackup(bucket, ITEMS);
  });

  const server = (more: Partial<Parts> = {}): Rig =>
    new Rig({
      cluster,
      bucket,
      actions: [bringsBack],
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
      restoreItemOperationsAttempted: 1,
      restoreItemOperationsCompleted: 1,
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

  it('says in its log what they wait for, once', async () => {
    const waiting = (completed: boolean, description: string): Observation => {
      const { progress: before } = progress(completed) as { progress: object };
      return { kind: 'progress', progress: { ...before, description } } as Observation;
    };
    const nobody = waiting(false, 'waits for a node-agent: none is running');
    answers = [nobody, nobody, waiting(false, 'InProgress'), progress(true)];
    const rig = server();
    await rig.run();
    const log = await rig.log();
    const told =
      'db/data is not brought back yet: its operation waits for a node-agent: none is running';
    expect(log.split(told)).toHaveLength(2);
    expect(log).not.toContain('its operation InProgress');
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
    // Items that were not in the journal yet are created again, and recognised.
    expect(made().filter((name, at) => at >= until.length && !until.includes(name))).toEqual([
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
          name: 'd',
          namespace: 'velero',
          uid: 'd',
          resourceVersion: '1',
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
        pvcName: 'data',
        pvcNamespace: 'db',
        pvName: 'pv-1',
        snapshotDataMoved: true,
      }),
    ]);
  });

  it.each([false, true])(
    'makes no pod of volumes of two times; killed before: %s',
    async (isKilled) => {
      bucket = new MemoryBucket();
      await storeBackup(bucket, [
        ...ITEMS,
        stored('persistentvolumeclaims', 'db/wal', { spec: {} }),
      ]);
      const refuses: RestoreAction = {
        ...bringsBack,
        execute: (input, context) =>
          input.item.metadata.name === 'wal'
            ? Promise.reject(new Error('PVC db/wal is there already, and has another size'))
            : bringsBack.execute(input, context),
      };
      if (isKilled) {
        answers = [progress(false)];
        const first = server({ actions: [refuses] });
        const running = reasonOf(first.run());
        await expect.poll(() => made().length).toBe(3);
        await sleep(50);
        first.abort.abort(new CanceledError('shutdown'));
        await running;
        answers = [progress(true)];
      }
      const rig = server({ actions: [refuses] });
      expect((await rig.run()).phase).toBe('FinalizingPartiallyFailed');
      expect(made().filter((name) => /^(pods|deployments)/.test(name))).toEqual(['pods app/web']);
      expect(JSON.stringify(await rig.archive.results('r1'))).toContain(
        'they are of different times: db/wal;',
      );
    },
  );

  it('makes pods of a namespace in which nothing was brought back', async () => {
    const refuses: RestoreAction = {
      ...bringsBack,
      execute: () => Promise.reject(new Error('PVC db/data is used')),
    };
    await server({ actions: [refuses] }).run();
    expect(made()).toContain('pods db/db-0');
  });

  describe('that another one brings back', () => {
    const download = (phase: string, more: object = {}): object => ({
      apiVersion: 'velero.io/v2alpha1',
      kind: DATA_DOWNLOADS.kind,
      metadata: { name: 'd', namespace: 'velero', uid: 'd', resourceVersion: '1' },
      spec: {
        targetVolume: { namespace: 'db', pvc: 'data', pv: '' },
        snapshotID: 's',
        datamover: 'longshore',
        dataMoverConfig: { 'longshore.inPlace': 'true', ...more },
      },
      status: { phase },
    });
    const set = (object: object): void => {
      cluster.objects.set('datadownloads.velero.io', [object as never]);
    };
    const pods = (): string[] => made().filter((name) => name.startsWith('pods'));
    const other = (more: Partial<Parts> = {}): Rig => server({ actions: [], spec: {}, ...more });

    it.each(['', 'Accepted', 'InProgress', 'Canceling'])('waits while it is %j', async (phase) => {
      set(download(phase));
      const rig = other();
      const running = rig.run();
      await expect.poll(() => made().includes('pods app/web')).toBe(true);
      await sleep(50);
      expect(pods()).toEqual(['pods app/web']);
      set(download('Completed'));
      await running;
      expect(pods()).toEqual(['pods app/web', 'pods db/db-0']);
      expect(await rig.archive.results('r1')).toMatchObject({ errors: {} });
    });

    it.each(['Failed', 'Canceled', undefined])(
      'makes no pod beside what is left: %s',
      async (phase) => {
        set(download('InProgress'));
        const rig = other();
        const running = rig.run();
        await expect.poll(() => made().includes('pods app/web')).toBe(true);
        await sleep(20);
        if (phase === undefined) cluster.objects.set('datadownloads.velero.io', []);
        else set(download(phase));
        expect((await running).phase).toBe('FinalizingPartiallyFailed');
        expect(pods()).toEqual(['pods app/web']);
        expect(JSON.stringify(await rig.archive.results('r1'))).toContain(
          'not brought back whole: db/data',
        );
      },
    );

    it('goes on after minutes in which nobody took it up, and not where one stands in line', async () => {
      set(download(''));
      const rig = other();
      await rig.run();
      expect(pods()).toEqual(['pods app/web', 'pods db/db-0']);
      expect(await rig.log()).toContain(
        'db/data is not waited for any longer: no node-agent has taken up DataDownload d',
      );
      bucket = new MemoryBucket();
      await storeBackup(bucket, ITEMS);
      for (const id of ['app/web', 'db/db-0']) cluster.remove('pods', id);
      const { metadata, ...rest } = download('') as { metadata: object };
      set({ ...rest, metadata: { ...metadata, finalizers: ['velero.io/x'] } });
      const spec = { itemOperationTimeout: '2s' };
      expect((await other({ spec }).run()).phase).toBe('FinalizingPartiallyFailed');
      expect(pods().slice(2)).toEqual(['pods app/web']);
    });

    it('gives up after the time that operations have', async () => {
      set(download('InProgress'));
      const outcome = await other({ spec: { itemOperationTimeout: '50ms' } }).run();
      expect(outcome.phase).toBe('FinalizingPartiallyFailed');
      expect(pods()).toEqual(['pods app/web']);
    });

    it('does not wait for one that was canceled before anybody took it up', async () => {
      const { spec, ...rest } = download('') as { spec: object };
      const canceled = { ...rest, spec: { ...spec, cancel: true } };
      set(canceled);
      await other().run();
      expect(pods()).toEqual(['pods app/web', 'pods db/db-0']);
      // A cancel during the wait ends it, too: nothing was written.
      bucket = new MemoryBucket();
      await storeBackup(bucket, ITEMS);
      for (const id of ['app/web', 'db/db-0']) cluster.remove('pods', id);
      set(download(''));
      const rig = other();
      const running = rig.run();
      await expect.poll(() => pods().length).toBe(3);
      await sleep(20);
      set(canceled);
      await running;
      expect(pods().slice(2)).toEqual(['pods app/web', 'pods db/db-0']);
    });

    it('does not wait for one that only looks, or that is over', async () => {
      set(download('InProgress', { 'longshore.dryRun': 'true' }));
      await other().run();
      expect(pods()).toEqual(['pods app/web', 'pods db/db-0']);
      bucket = new MemoryBucket();
      await storeBackup(bucket, ITEMS);
      for (const id of ['app/web', 'db/db-0']) cluster.remove('pods', id);
      set(download('Failed'));
      await other().run();
      expect(pods()).toEqual([
        ...['pods app/web', 'pods db/db-0'],
        ...['pods app/web', 'pods db/db-0'],
      ]);
    });
  });

  it('says which volumes are as they were, since the backup has nothing for them', async () => {
    const { object } = ITEMS[2] as ReturnType<typeof stored>;
    cluster.objects.set('persistentvolumeclaims', [object]);
    const results = async (rig: Rig): Promise<object> => {
      await rig.run();
      return await rig.archive.results('r1');
    };
    const said = (text: string): object => ({
      namespaces: {
        db: [
          expect.stringContaining(
            `the volume of PersistentVolumeClaim db/data, which is there already, is as it was before this restore: ${text}`,
          ),
        ],
      },
    });
    expect(await results(server({ actions: [] }))).toEqual({
      errors: {},
      warnings: said('the backup has no data of it'),
    });
    cluster.objects.delete('pods');
    cluster.objects.delete('services');
    cluster.objects.delete('secrets');
    cluster.objects.delete('deployments.apps');
    bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS, {
      volumeInfos: [{ pvcName: 'data', pvcNamespace: 'db', backupMethod: 'NativeSnapshot' }],
    });
    expect(await results(server({ actions: [] }))).toMatchObject({
      errors: said('the backup has a snapshot of it at its provider'),
    });
    bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS);
    const spec = { existingVolumeDataPolicy: 'full', restorePVs: false };
    expect(await results(server({ actions: [], spec }))).toMatchObject({
      warnings: {
        namespaces: {
          db: expect.arrayContaining([expect.stringContaining('restorePVs is false')]) as unknown,
        },
      },
    });
    // The user requested nothing.
    bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS);
    expect(JSON.stringify(await results(server({ actions: [], spec: {} })))).not.toContain(
      'as it was',
    );
  });

  it('says which files of pods did not come, since their pods were not made', async () => {
    const info = {
      pvcName: 'data',
      pvcNamespace: 'db',
      backupMethod: 'PodVolumeBackup',
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

  const infoOf = (backupMethod: string, more: object = {}): object => ({
    pvName: 'pv-1',
    pvcName: 'data',
    pvcNamespace: 'db',
    backupMethod,
    ...more,
  });
  const moved = infoOf('CSISnapshot', {
    snapshotDataMoved: true,
    snapshotDataMovementInfo: { snapshotHandle: 's' },
  });
  const files = infoOf('PodVolumeBackup', {
    pvbInfo: { snapshotHandle: 's', volumeName: 'v', podName: 'p', podNamespace: 'db' },
  });

  it.each<[string, object, string]>([
    ['data that were moved', moved, 'use --existing-volume-data-policy full'],
    ['a snapshot that stayed in the storage', infoOf('CSISnapshot'), 'was not moved'],
    ['a snapshot of a provider', infoOf('NativeSnapshot'), 'a snapshot of its provider'],
    ['files of pods', files, 'They come with a pod'],
  ])('without a policy for its data says what did not come: %s', async (_, info, how) => {
    for (const namespaceMapping of [{}, { db: 'copy' }]) {
      const own = new RestoreCluster().namespaces('copy');
      const [target = 'db'] = Object.values(namespaceMapping);
      const claim = stored('persistentvolumeclaims', `${target}/data`).object;
      own.add('persistentvolumeclaims', { ...claim, spec: { volumeName: 'pv-1' } });
      const rig = new Rig({ cluster: own, bucket: new MemoryBucket(), spec: { namespaceMapping } });
      await storeBackup(rig.bucket, ITEMS, { volumeInfos: [info as never] });
      await rig.run();
      const { warnings } = await rig.archive.results('r1');
      const said = (warnings?.namespaces?.[target] ?? []).filter((text) =>
        text.includes('not restored'),
      );
      expect(said).toHaveLength(1);
      expect(said[0]).toContain(`of PersistentVolumeClaim ${target}/data were not restored`);
      expect(said[0]).toContain(how);
      const [volume, ...more] = await rig.archive.volumeInfos('r1');
      expect(more).toEqual([]);
      expect(volume).toMatchObject({ pvcNamespace: target, pvcName: 'data', skipped: true });
      expect(storedVolume(volume ?? {})).toMatchObject({
        volume: `${target}/data`,
        phase: 'Skipped',
        note: expect.stringContaining('the claim exists') as string,
      });
    }
  });

  it.each<[string, object, object]>([
    ['the backup has no data of it', infoOf('', { skipped: true }), {}],
    ['its backup failed', { ...moved, result: 'failed' }, {}],
    ['data of volumes are not asked for', moved, { restorePVs: false }],
    ['the claim is not asked for', moved, { includedResources: ['secrets'] }],
  ])('says nothing of its data where %s', async (_, info, spec) => {
    const rig = new Rig({ cluster, bucket: new MemoryBucket(), spec });
    await storeBackup(rig.bucket, ITEMS, { volumeInfos: [info as never] });
    await rig.run();
    expect(JSON.stringify(await rig.archive.results('r1'))).not.toContain('not restored');
    expect(await rig.archive.volumeInfos('r1')).toEqual([]);
  });
});
