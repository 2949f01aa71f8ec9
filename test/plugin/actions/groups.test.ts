import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError, isCode, type Logger, silentLogger } from '../../../src/base/index.ts';
import {
  type Backup,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeClient,
  PVCS,
  RESTORES,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeGroupSnapshotContent,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
} from '../../../src/kube/index.ts';
import type { BackupOutput } from '../../../src/plugin/contract.ts';
import { openActions } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf } from '../../support/plugin-items.ts';
import { withCalls } from '../../support/with-calls.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';

const DRIVER = 'dir.csi.longshore.dev';
const KEY = 'velero.io/volume-group';
const FINALIZER = 'snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection';
const GROUP_FINALIZER = 'groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection';
const signal = new AbortController().signal;

/**
 * On the real API server with the real definitions; the test is the snapshot controller for groups.
 */
describe.skipIf(!hasRealApi())('volumes of a group', () => {
  let api: RealApi;
  let test: TestCluster;
  let client: KubeClient;
  let isOver = false;
  let controller: Promise<void>;
  /** Names of PVCs that get no snapshot in their group. */
  const refused = new Set<string>();
  /** Deletion policy of the contents of groups. */
  let policy = 'Delete';
  const groups = new Map<string, string>();
  const warnings: string[] = [];
  /** PVCs that warnings are about. */
  const warnedOf: string[] = [];
  /** Handles of groups that the driver tells nothing about. */
  const untold = new Set(['g-untold']);
  /** Contents that were deleted together with their group in the storage. */
  const removed: string[] = [];
  const logger: Logger = {
    ...silentLogger,
    warn: (fields, message) => {
      warnings.push(message);
      const { resource, namespace = '', name } = fields as Record<string, string | undefined>;
      if (resource === 'persistentvolumeclaims') warnedOf.push(`${namespace}/${name ?? ''}`);
    },
  };

  beforeAll(async () => {
    api = await startRealApi(27_000);
    test = await TestCluster.start({ nodes: ['node-1'], kubeconfig: api.kubeconfig });
    // This API server has no CRDs of Velero: a test registers the Backups that exist.
    client = withCalls(test.client, {
      list: (resource, options) => {
        if (resource.plural !== BACKUPS.plural) return test.client.list(resource, options);
        const name = options?.fieldSelector?.replace('metadata.name=', '') ?? '';
        return Promise.resolve([stored.get(name)].filter((each) => each) as never);
      },
    });
    await client.create(VOLUME_SNAPSHOT_CLASSES, {
      metadata: { name: 'only' },
      driver: DRIVER,
      deletionPolicy: 'Delete',
    });
    controller = run();
  }, 120_000);
  afterAll(async () => {
    isOver = true;
    await controller;
    await test[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  }, 60_000);

  async function run(): Promise<void> {
    while (!isOver) {
      for (const group of await client.list(VOLUME_GROUP_SNAPSHOTS, {})) {
        if (group.metadata.deletionTimestamp) await end(group);
        if (groups.has(group.metadata.uid) || group.metadata.deletionTimestamp) continue;
        groups.set(group.metadata.uid, group.metadata.name);
        await take(group);
      }
      await own();
      await drop();
      await tell();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  const ownerOf = ({ metadata: { name, uid } }: VolumeGroupSnapshot) => ({
    apiVersion: 'groupsnapshot.storage.k8s.io/v1beta2',
    kind: 'VolumeGroupSnapshot',
    name,
    uid,
  });

  /**
   * As external-snapshotter v8.7.0 (syncReadySnapshot): a snapshot that names a group is the
   * group's.
   */
  async function own(): Promise<void> {
    for (const { metadata, status } of await client.list(VOLUME_SNAPSHOTS, {})) {
      const { namespace, ownerReferences = [] } = metadata;
      const name = status?.volumeGroupSnapshotName;
      if (name === undefined || ownerReferences.length > 0) continue;
      const group = await client.find(VOLUME_GROUP_SNAPSHOTS, { namespace, name });
      const patch = { metadata: { ownerReferences: group ? [ownerOf(group)] : [] } };
      if (group) await client.patch(VOLUME_SNAPSHOTS, metadata, patch);
    }
  }

  /** Plays the sidecar: releases our deleted contents together with their group in the storage. */
  async function drop(): Promise<void> {
    const labelSelector = 'velero.io/backup-uid';
    for (const { metadata } of await client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, { labelSelector }))
      if (metadata.deletionTimestamp)
        await client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, metadata, {
          metadata: { finalizers: null },
        });
  }

  /** As the sidecar: it asks the driver about a content that names handles. */
  async function tell(): Promise<void> {
    for (const { metadata, spec, status } of await client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS)) {
      const handle = spec.source?.groupSnapshotHandles?.volumeGroupSnapshotHandle;
      if (handle === undefined || status?.volumeGroupSnapshotHandle !== undefined) continue;
      if (untold.has(handle)) continue;
      const told = { status: { volumeGroupSnapshotHandle: handle } };
      const options = { subresource: 'status' };
      await client
        .patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, metadata, told, options)
        .catch(() => undefined);
    }
  }

  /** Snapshots that a group owns go with it, and its content by its policy. */
  async function end(group: VolumeGroupSnapshot): Promise<void> {
    const { namespace, uid } = group.metadata;
    for (const { metadata } of await client.list(VOLUME_SNAPSHOTS, { namespace })) {
      if (!metadata.ownerReferences?.some((owner) => owner.uid === uid)) continue;
      await client.delete(VOLUME_SNAPSHOTS, metadata);
      const patch = { metadata: { finalizers: null } };
      await client.patch(VOLUME_SNAPSHOTS, metadata, patch).catch(() => undefined);
    }
    const ref = { name: group.status?.boundVolumeGroupSnapshotContentName ?? '' };
    const content = await client.find(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref);
    if (content?.spec.deletionPolicy === 'Delete')
      await client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref);
    if (content?.spec.deletionPolicy === 'Delete') removed.push(ref.name);
    await client.patch(VOLUME_GROUP_SNAPSHOTS, group.metadata, { metadata: { finalizers: null } });
  }

  /**
   * As external-snapshotter v8.x: members are owned by the group and protected, and say which it
   * is.
   */
  async function take(group: VolumeGroupSnapshot): Promise<void> {
    const { namespace = '', name, uid } = group.metadata;
    const finalizers = { metadata: { finalizers: [GROUP_FINALIZER] } };
    await client.patch(VOLUME_GROUP_SNAPSHOTS, group.metadata, finalizers);
    const [[key, value] = ['', '']] = Object.entries(group.spec.source.selector?.matchLabels ?? {});
    const claims = await client.list(PVCS, { namespace, labelSelector: `${key}=${value}` });
    for (const { metadata } of claims) {
      if (refused.has(metadata.name)) continue;
      const made = await client.create(VOLUME_SNAPSHOTS, {
        metadata: {
          name: `snapshot-${uid.slice(0, 8)}-${metadata.name}`,
          namespace,
          finalizers: [FINALIZER],
          ownerReferences: [ownerOf(group)],
        },
        spec: { source: { persistentVolumeClaimName: metadata.name } },
      });
      await client.patch(
        VOLUME_SNAPSHOTS,
        made.metadata,
        { status: { volumeGroupSnapshotName: name } },
        { subresource: 'status' },
      );
    }
    const content = await client.create(VOLUME_GROUP_SNAPSHOT_CONTENTS, {
      metadata: { name: `groupsnapcontent-${uid}` },
      spec: {
        deletionPolicy: policy,
        driver: DRIVER,
        source: { volumeHandles: claims.map(({ spec }) => spec.volumeName ?? '') },
        volumeGroupSnapshotClassName: group.spec.volumeGroupSnapshotClassName,
        volumeGroupSnapshotRef: {
          namespace,
          name,
          uid,
          apiVersion: 'groupsnapshot.storage.k8s.io/v1beta2',
          kind: 'VolumeGroupSnapshot',
        },
      },
    } as never);
    const status = {
      volumeGroupSnapshotHandle: `group-${uid}`,
      volumeSnapshotInfoList: claims.map(({ metadata }) => ({
        snapshotHandle: `${metadata.name}-of-${uid}`,
      })),
    };
    const options = { subresource: 'status' };
    await client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, content.metadata, { status }, options);
    await client.patch(
      VOLUME_GROUP_SNAPSHOTS,
      group.metadata,
      {
        status: {
          boundVolumeGroupSnapshotContentName: content.metadata.name,
          readyToUse: true,
        },
      },
      options,
    );
  }

  async function makeClass(name: string): Promise<void> {
    await client.create(VOLUME_GROUP_SNAPSHOT_CLASSES, {
      metadata: { name, labels: { 'velero.io/csi-volumegroupsnapshot-class': 'true' } },
      driver: DRIVER,
      deletionPolicy: 'Delete',
    });
  }
  async function members(namespace: string, ...names: string[]): Promise<void> {
    await test.makeNamespace(namespace).catch(() => undefined);
    for (const name of names) {
      await test.makeVolume(namespace, name);
      await client.patch(PVCS, { namespace, name }, { metadata: { labels: { [KEY]: 'db' } } });
    }
  }
  const backupFor = (name: string, spec: Partial<Backup['spec']> = {}): Backup =>
    backupOf(name, { datamover: 'longshore', volumeGroupSnapshotLabelKey: KEY, ...spec });
  /** Velero's definitions are not on this API server. */
  const stored = new Map<string, Backup>();
  const withBackups = (calls: Partial<KubeClient> = {}): KubeClient =>
    withCalls(withCalls(client, calls), {
      get: (resource, ref, options) => {
        const found = resource.plural === BACKUPS.plural ? stored.get(ref.name) : undefined;
        return found ? Promise.resolve(found as never) : client.get(resource, ref, options);
      },
    });
  const storedBackup = (
    name: string,
    phase: string,
    spec: Partial<Backup['spec']> = {},
  ): Backup => {
    const backup = { ...backupFor(name, spec), status: { phase } };
    stored.set(name, backup);
    return backup;
  };
  const execute = async (
    namespace: string,
    backup: Backup,
    names: readonly string[],
    actions = openActions({ client, logger }).pvcBackup(),
  ): Promise<PromiseSettledResult<BackupOutput>[]> =>
    Promise.allSettled(
      names.map(async (name) =>
        actions.execute(await pvcOf(client, namespace, name), backup, { signal }),
      ),
    );
  const snapshots = (namespace: string): Promise<VolumeSnapshot[]> =>
    client.list(VOLUME_SNAPSHOTS, { namespace });
  const nothingLeft = async (namespace: string): Promise<void> => {
    const left = async () => (await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace })).length;
    await expect.poll(left).toBe(0);
    await expect.poll(async () => (await snapshots(namespace)).length, { timeout: 15_000 }).toBe(0);
  };

  it('fail without a class, and with two of them', async () => {
    await members('none', 'a');
    const [missing] = await execute('none', backupFor('b-none'), ['a']);
    expect(missing).toMatchObject({
      reason: {
        code: 'NO_GROUP_CLASS',
        message: /^no VolumeGroupSnapshotClass found for driver dir/,
      },
    });
    await makeClass('first');
    await makeClass('second');
    const [two] = await execute('none', backupFor('b-two'), ['a']);
    expect(two).toMatchObject({
      reason: { message: /^multiple VolumeGroupSnapshotClasses.*: first, second$/ },
    });
    await client.delete(VOLUME_GROUP_SNAPSHOT_CLASSES, { name: 'second' });
    await nothingLeft('none');
  });

  it('are snapshotted once together, and each has an upload', async () => {
    await members('app', 'a', 'b', 'c');
    await test.makeVolume('app', 'single');
    const backup = backupFor('b-group');
    const before = groups.size;
    const outputs = await execute('app', backup, ['a', 'b', 'c', 'single']);
    expect(outputs.filter(({ status }) => status === 'rejected')).toEqual([]);
    expect(groups.size - before).toBe(1);
    expect([...groups.values()].at(-1)).toMatch(/^velero-db-[0-9a-f]{10}$/);
    const uploads = await client.list(DATA_UPLOADS, { namespace: NAMESPACE });
    const taken = await snapshots('app');
    expect(uploads.map(({ spec }) => spec.csiSnapshot?.volumeSnapshot).sort()).toEqual(
      taken.map(({ metadata }) => metadata.name).sort(),
    );
    for (const { metadata } of taken.filter((each) => each.metadata.name.startsWith('snapshot-'))) {
      expect(metadata).toMatchObject({
        labels: { 'velero.io/backup-name': 'b-group', 'velero.io/backup-uid': backup.metadata.uid },
      });
      expect(metadata.ownerReferences ?? []).toEqual([]);
      expect(metadata.finalizers ?? []).not.toContain(FINALIZER);
    }
    const gone = async () => (await client.list(VOLUME_GROUP_SNAPSHOTS, {})).length;
    await expect.poll(gone).toBe(0);
    // The group in the storage stays while the uploads are under way.
    const [content, ...more] = await client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, {});
    expect(more).toEqual([]);
    expect(content).toMatchObject({
      metadata: { labels: { 'velero.io/backup-uid': backup.metadata.uid } },
      spec: { deletionPolicy: 'Retain' },
    });
    // A restarted process finds the existing objects.
    await execute('app', backup, ['a', 'b']);
    expect(groups.size - before).toBe(1);
    expect(await snapshots('app')).toHaveLength(4);
  });

  it('stay of one moment when the process dies after the first of them', async () => {
    await members('later', 'a', 'b');
    const backup = backupFor('b-later');
    const before = groups.size;
    await execute('later', backup, ['a']);
    expect(await snapshots('later')).toHaveLength(2);
    const [output] = await execute('later', backup, ['b']);
    expect(output?.status).toBe('fulfilled');
    expect(groups.size - before).toBe(1);
    expect(await snapshots('later')).toHaveLength(2);
  });

  it('of a moved backup leave the storage when the last upload is over, and not before', async () => {
    await members('moved', 'a', 'b');
    const backup = storedBackup('b-moved', 'WaitingForPluginOperations');
    const actions = openActions({ client: withBackups(), logger }).pvcBackup();
    const outputs = await execute('moved', backup, ['a', 'b'], actions);
    const ids = outputs.map((each) => (each.status === 'fulfilled' ? each.value.operationId : ''));
    const labelSelector = `velero.io/backup-uid=${backup.metadata.uid}`;
    const contents = () => client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, { labelSelector });
    const [before] = await contents();
    const policies: unknown[] = [];
    const watching = openActions({
      client: withBackups({
        patch: (resource, ref, patch, options) => {
          if (resource.plural === VOLUME_GROUP_SNAPSHOT_CONTENTS.plural) policies.push(patch);
          return client.patch(resource, ref, patch, options);
        },
      }),
      logger,
    }).pvcBackup();
    for (const [i, id] of ids.entries()) {
      expect((await contents()).map(({ metadata }) => metadata.uid)).toEqual([
        before?.metadata.uid,
      ]);
      const [upload] = await client.list(DATA_UPLOADS, {
        namespace: NAMESPACE,
        labelSelector: `velero.io/async-operation-id=${id ?? ''}`,
      });
      const status = { phase: i === 0 ? 'Failed' : 'Completed' };
      if (upload) await client.patch(DATA_UPLOADS, upload.metadata, { status });
      await watching.progress(id ?? '', backup, { signal });
    }
    // Policies are set at the operation's end, and by the concurrent sweep.
    expect(new Set(policies.map((patch) => (patch as { spec: object }).spec))).toEqual(
      new Set(policies.map(() => ({ deletionPolicy: 'Delete' }))),
    );
    expect(policies.length).toBeGreaterThan(0);
    await expect.poll(async () => (await contents()).length).toBe(0);
  });

  it('of backups that are over are looked after by a later one, as each of them needs it', async () => {
    const keep = { snapshotMoveData: false };
    const made = new Map<string, Backup>();
    const cases = [
      ['left-moved', 'Failed', {}],
      ['left-failed', 'Failed', keep],
      ['left-kept', 'Completed', keep],
      ['left-ending', 'Finalizing', keep],
      ['left-taking', 'InProgress', keep],
    ] as const;
    const policies = new Map<string, string>();
    const watching = withBackups({
      delete: async (resource, ref, options) => {
        if (resource.plural === VOLUME_GROUP_SNAPSHOT_CONTENTS.plural) {
          const { metadata, spec } = await client.get(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref);
          const [, backup = ''] =
            metadata.annotations?.['longshore.io/for-backup']?.split('/') ?? [];
          policies.set(backup, spec.deletionPolicy);
        }
        return client.delete(resource, ref, options);
      },
    });
    for (const [name, phase, spec] of cases) {
      await members(name, 'a');
      const backup = storedBackup(name, 'InProgress', spec);
      made.set(name, backup);
      const taking = openActions({ client: watching, logger }).pvcBackup();
      const [output] = await execute(name, backup, ['a'], taking);
      expect(output?.status).toBe('fulfilled');
      const keeping = openActions({ client: watching, logger }).snapshotBackup();
      if (name === 'left-ending')
        for (const snapshot of await snapshots(name))
          await keeping.execute(snapshot, backup, { signal });
      storedBackup(name, phase, spec);
      for (const { metadata } of await client.list(DATA_UPLOADS, {
        namespace: NAMESPACE,
        labelSelector: `velero.io/backup-uid=${backup.metadata.uid}`,
      }))
        await client.patch(DATA_UPLOADS, metadata, { status: { phase: 'Canceled' } });
    }
    await members('left-next', 'a');
    const actions = openActions({ client: watching, logger }).pvcBackup();
    await execute('left-next', backupFor('b-left-next'), ['a'], actions);
    expect(Object.fromEntries([...policies].filter(([name]) => name.startsWith('left-')))).toEqual({
      'left-moved': 'Delete',
      'left-failed': 'Delete',
      'left-kept': 'Retain',
    });
    // The needed content is deleted with the last snapshot, and the group stays in the storage.
    const backup = made.get('left-ending');
    if (!backup) throw new Error('no backup');
    const ending = { ...backup, status: { phase: 'Finalizing' } };
    const release = openActions({ client: watching, logger }).snapshotBackup();
    for (const snapshot of await snapshots('left-ending'))
      await release.execute(snapshot, ending, { signal });
    expect(policies.get('left-ending')).toBe('Retain');
    expect(policies.has('left-taking')).toBe(false);
  });

  it('are taken when their snapshots are ready, and else the error says which is not', async () => {
    await members('unready', 'a', 'slow');
    const backup = backupFor('b-unready', { csiSnapshotTimeout: '2s' });
    const notReady = (each: VolumeSnapshot): VolumeSnapshot =>
      each.spec.source.persistentVolumeClaimName === 'slow'
        ? { ...each, status: { ...each.status, readyToUse: false } }
        : each;
    const waiting = withCalls(client, {
      list: async (resource, options) => {
        const found = await client.list(resource, options);
        if (resource.plural !== VOLUME_SNAPSHOTS.plural) return found;
        return (found as unknown as VolumeSnapshot[]).map(notReady) as never;
      },
    });
    const actions = openActions({ client: waiting, logger }).pvcBackup();
    const [output] = await execute('unready', backup, ['a'], actions);
    expect(output).toMatchObject({
      reason: {
        code: 'GROUP_NOT_TAKEN',
        message: expect.stringMatching(
          /was not taken within 2s: the snapshot of PVC slow is not ready; .* needs a longer csiSnapshotTimeout$/,
        ) as string,
      },
    });
    await nothingLeft('unready');
  });

  it('are taken anew when a process was killed while it removed what it had taken', async () => {
    await members('again', 'a', 'b');
    // Without data movement: the snapshots of an upload would be reused.
    const backup = backupFor('b-again', { snapshotMoveData: false });
    await execute('again', backup, ['a', 'b']);
    const labelSelector = `velero.io/backup-uid=${backup.metadata.uid}`;
    for (const { metadata } of await client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, { labelSelector }))
      await client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, metadata);
    const before = groups.size;
    const [output] = await execute('again', backup, ['a']);
    expect(output?.status).toBe('fulfilled');
    expect(groups.size - before).toBe(1);
  });

  it('that a policy leaves out have no snapshot', async () => {
    await members('partly', 'a', 'b');
    await client.patch(
      PVCS,
      { namespace: 'partly', name: 'b' },
      { metadata: { labels: { tier: 'cache' } } },
    );
    const policy =
      'version: v1\nvolumePolicies:\n- conditions:\n    pvcLabels:\n      tier: cache\n  action:\n    type: skip\n';
    await client.create(CONFIG_MAPS, {
      metadata: { name: 'policy', namespace: NAMESPACE },
      data: { policy },
    });
    const resourcePolicy = { kind: 'configmap', name: 'policy' };
    const outputs = await execute('partly', backupFor('b-partly', { resourcePolicy }), ['a', 'b']);
    expect(
      outputs.map((each) => each.status === 'fulfilled' && each.value.operationId !== undefined),
    ).toEqual([true, false]);
    expect(warnings).toContain(
      'a PVC has the label of a volume group, and no snapshot is wanted of it',
    );
    expect(warnedOf).toEqual(['partly/b']);
    // A killed process has cut the group. This process then reaches the excluded PVC.
    await execute('partly', backupFor('b-partly', { resourcePolicy }), ['b']);
    expect(warnedOf).toEqual(['partly/b', 'partly/b']);
    await expect
      .poll(async () =>
        (await snapshots('partly')).map(({ spec }) => spec.source.persistentVolumeClaimName),
      )
      .toEqual(['a']);
  });

  it('are not cut where one would be moved by its rule, and another one kept', async () => {
    await members('ways', 'a', 'b');
    const metadata = { labels: { tier: 'cache' } };
    await client.patch(PVCS, { namespace: 'ways', name: 'b' }, { metadata });
    const policy =
      'version: v1\nvolumePolicies:\n- conditions:\n    pvcLabels:\n      tier: cache\n  action:\n    type: snapshot-csi\n';
    await client.create(CONFIG_MAPS, {
      metadata: { name: 'ways', namespace: NAMESPACE },
      data: { policy },
    });
    const resourcePolicy = { kind: 'configmap', name: 'ways' };
    const outputs = await execute('ways', backupFor('b-ways', { resourcePolicy }), ['a', 'b']);
    for (const each of outputs)
      expect(each).toMatchObject({ status: 'rejected', reason: { code: 'GROUP_WAYS' } });
    expect(await snapshots('ways')).toEqual([]);
  });

  it('leave nothing of a backup whose process was killed, once another one runs', async () => {
    await members('killed', 'a');
    const backup = backupFor('b-killed');
    const group = {
      metadata: {
        name: 'velero-db-killed',
        namespace: 'killed',
        labels: { 'velero.io/backup-uid': backup.metadata.uid },
        annotations: { 'longshore.io/for-backup': `${NAMESPACE}/b-killed` },
      },
      spec: { source: { selector: { matchLabels: { [KEY]: 'other' } } } },
    };
    const made = await client.create(VOLUME_GROUP_SNAPSHOTS, group);
    await expect.poll(() => groups.has(made.metadata.uid)).toBe(true);
    const [output] = await execute('killed', backupFor('b-next'), ['a']);
    expect(output?.status).toBe('fulfilled');
    const left = async () =>
      (await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace: 'killed' })).length;
    await expect.poll(left).toBe(0);
  });

  it('of a later process fail where they were not cut with the others, and nothing is removed', async () => {
    await members('grown', 'a');
    const backup = backupFor('b-grown');
    await execute('grown', backup, ['a']);
    const before = groups.size;
    await members('grown', 'new');
    const [output] = await execute('grown', backup, ['new']);
    const reason: unknown = output?.status === 'rejected' ? output.reason : undefined;
    expect(isCode(reason, 'NOT_IN_GROUP')).toBe(true);
    expect(groups.size).toBe(before);
    expect(await snapshots('grown')).toHaveLength(1);
  });

  it('that are left over are removed from the storage too, and one that cannot be does not keep the others', async () => {
    await members('retained', 'a');
    await members('retained-next', 'a');
    policy = 'Retain';
    const leave = (name: string) =>
      client.create(VOLUME_GROUP_SNAPSHOTS, {
        metadata: {
          name,
          namespace: 'retained',
          labels: { 'velero.io/backup-uid': 'gone' },
          annotations: { 'longshore.io/for-backup': `${NAMESPACE}/gone` },
        },
        spec: { source: { selector: { matchLabels: { [KEY]: 'other' } } } },
      });
    const made = [await leave('aaa'), await leave('bbb')];
    await expect.poll(() => made.every(({ metadata }) => groups.has(metadata.uid))).toBe(true);
    const isBound = async () =>
      (await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace: 'retained' })).every(
        ({ status }) => status?.boundVolumeGroupSnapshotContentName !== undefined,
      );
    await expect.poll(isBound).toBe(true);
    policy = 'Delete';
    const stubborn = withCalls(client, {
      delete: (resource, ref, options) =>
        ref.name === 'aaa'
          ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
          : client.delete(resource, ref, options),
    });
    const actions = openActions({ client: stubborn, logger }).pvcBackup();
    await execute('retained-next', backupFor('b-retained'), ['a'], actions);
    const left = async () =>
      (await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace: 'retained' })).map(
        ({ metadata }) => metadata.name,
      );
    await expect.poll(left).toEqual(['aaa']);
    expect(removed).toContain(`groupsnapcontent-${made[1]?.metadata.uid ?? ''}`);
    expect(removed).not.toContain(`groupsnapcontent-${made[0]?.metadata.uid ?? ''}`);
  });

  describe('that a backup has kept', () => {
    const HANDLES = 'longshore.io/group-snapshot-handles';
    const contentOf = (
      backup: string,
      group: string,
      annotations: Record<string, string>,
    ): VolumeSnapshotContent => ({
      metadata: {
        name: `content-${group}`,
        uid: 'u',
        resourceVersion: '1',
        creationTimestamp: '2026-11-24T10:00:00Z',
        labels: { 'velero.io/backup-name': backup },
        annotations: {
          ...annotations,
          'snapshot.storage.kubernetes.io/deletion-secret-name': 'secret',
          'snapshot.storage.kubernetes.io/deletion-secret-namespace': 'storage',
        },
      },
      spec: {
        driver: DRIVER,
        deletionPolicy: 'Retain',
        source: { volumeHandle: 'v' },
        volumeSnapshotRef: { namespace: 'app', name: 's' },
      },
      status: { snapshotHandle: 'h1', volumeGroupSnapshotHandle: group },
    });
    const all = { [HANDLES]: JSON.stringify(['h1', 'h2']) };
    const contents = () => client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, {});
    const ofDriver = async (): Promise<VolumeGroupSnapshotContent[]> =>
      (await contents()).filter(
        ({ metadata, spec }) =>
          spec.source?.groupSnapshotHandles !== undefined &&
          metadata.labels?.['velero.io/backup-uid'] === undefined,
      );

    it('are restored beside a content of their group, one for each restore, until it is over', async () => {
      const restore = { ...restoreOf('r-stub', 'b-kept'), status: { phase: 'InProgress' } };
      const action = openActions({ client, logger }).contentRestore();
      for (const snapshotHandle of ['h1', 'h2']) {
        const item = contentOf('b-kept', 'g-kept', all);
        const fromBackup = { ...item, status: { ...item.status, snapshotHandle } };
        const output = await action.execute(
          { item, itemFromBackup: fromBackup, restore },
          { signal },
        );
        expect(output.item).toMatchObject({ spec: { source: { snapshotHandle } } });
      }
      const [stub, ...more] = await ofDriver();
      expect(more).toEqual([]);
      expect(stub).toMatchObject({
        metadata: {
          name: createHash('sha256').update(`${restore.metadata.uid}/g-kept`).digest('hex'),
          labels: { 'velero.io/restore-name': 'r-stub' },
          annotations: {
            'groupsnapshot.storage.kubernetes.io/deletion-secret-name': 'secret',
            'groupsnapshot.storage.kubernetes.io/deletion-secret-namespace': 'storage',
          },
        },
        spec: {
          deletionPolicy: 'Retain',
          driver: DRIVER,
          source: {
            groupSnapshotHandles: {
              volumeGroupSnapshotHandle: 'g-kept',
              volumeSnapshotHandles: ['h1', 'h2'],
            },
          },
        },
        status: { volumeGroupSnapshotHandle: 'g-kept' },
      });
      const restores = (phase: string): KubeClient =>
        withCalls(client, {
          list: (resource, options) =>
            resource.plural === RESTORES.plural
              ? Promise.resolve([{ ...restore, status: { phase } }] as never)
              : client.list(resource, options),
        });
      await members('after-restore', 'a');
      const later = async (name: string, phase: string): Promise<number> => {
        const actions = openActions({ client: restores(phase), logger }).pvcBackup();
        await execute('after-restore', backupFor(name), ['a'], actions);
        return (await ofDriver()).length;
      };
      expect(await later('b-after-1', 'Finalizing')).toBe(1);
      expect(await later('b-after-2', 'Completed')).toBe(0);
    });

    it('are restored also where the cluster has no such kind, with a warning', async () => {
      const without = withCalls(client, {
        create: (resource, object, options) =>
          resource.plural === VOLUME_GROUP_SNAPSHOT_CONTENTS.plural
            ? Promise.reject(new CodedError('KUBE_NOT_FOUND', 'no such kind'))
            : client.create(resource, object, options),
      });
      const action = openActions({ client: without, logger }).contentRestore();
      const item = contentOf('b-kept', 'g-none', {});
      const input = { item, itemFromBackup: item, restore: restoreOf('r-none', 'b-kept') };
      expect((await action.execute(input, { signal })).item).toBeDefined();
      expect(
        warnings.filter((each) => each.startsWith('no VolumeGroupSnapshotContent')),
      ).toHaveLength(1);
    });

    it('are deleted once and together, by what the sidecar looks for', async () => {
      const seen: VolumeGroupSnapshotContent[] = [];
      const sidecar = withCalls(client, {
        delete: async (resource, ref, options) => {
          seen.push(await client.get(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref));
          const answer = await client.delete(resource, ref, options);
          const patch = { metadata: { finalizers: null } };
          await client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref, patch);
          return answer;
        },
      });
      const action = openActions({ client: sidecar, logger }).groupDelete();
      const backup = backupFor('b-kept');
      const deleted = async (item: VolumeSnapshotContent): Promise<number> => {
        await action.execute(item, backup, { signal });
        return seen.length;
      };
      expect(await deleted(contentOf('b-kept', 'g-1', all))).toBe(1);
      expect(await deleted(contentOf('b-kept', 'g-1', all))).toBe(1);
      // In turn: another backup, Velero's own action, and a snapshot without a group.
      expect(await deleted(contentOf('b-other', 'g-2', all))).toBe(1);
      expect(await deleted(contentOf('b-kept', 'g-2', {}))).toBe(1);
      const alone = contentOf('b-kept', 'g-2', all);
      expect(await deleted({ ...alone, status: { snapshotHandle: 'h1' } })).toBe(1);
      expect(seen).toMatchObject([
        {
          metadata: {
            finalizers: [
              'groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection',
            ],
          },
          spec: {
            deletionPolicy: 'Delete',
            source: { groupSnapshotHandles: { volumeSnapshotHandles: ['h1', 'h2'] } },
          },
          status: { volumeGroupSnapshotHandle: 'g-1' },
        },
      ]);
      expect(await ofDriver()).toEqual([]);
      // The driver tells nothing about it, and the sidecar would remove nothing of the storage.
      expect(await deleted(contentOf('b-kept', 'g-untold', all))).toBe(2);
      expect(seen[1]?.status?.volumeGroupSnapshotHandle).toBe('g-untold');
    }, 30_000);

    it('stay if they belong to a backup of another namespace, or to a restore', async () => {
      const action = openActions({ client, logger }).groupDelete();
      const before = (await contents()).length;
      const foreign = { ...all, 'longshore.io/for-backup': 'other/b-kept' };
      const restored = contentOf('b-kept', 'g-4', all);
      Object.assign(restored.metadata.labels ?? {}, { 'velero.io/restore-name': 'r1' });
      for (const item of [contentOf('b-kept', 'g-4', foreign), restored]) {
        await action.execute(item, backupFor('b-kept'), { signal });
      }
      expect(await contents()).toHaveLength(before);
    });

    it('that the driver does not delete are in an error with what the driver said', async () => {
      const told = { error: { message: 'Failed to delete: still in use' } };
      const stubborn = withCalls(client, {
        delete: async (resource, ref, options) => {
          const answer = await client.delete(resource, ref, options);
          const where = { subresource: 'status' };
          await client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, ref, { status: told }, where);
          return answer;
        },
      });
      const action = openActions({ client: stubborn, logger, deletionMs: 500 }).groupDelete();
      const failing = action.execute(contentOf('b-kept', 'g-3', all), backupFor('b-kept'), {
        signal,
      });
      await expect(failing).rejects.toMatchObject({
        code: 'GROUP_NOT_DELETED',
        message: expect.stringMatching(
          /^the snapshots of volume group g-3 are still in the storage: .*\(Failed to delete: still in use\); it goes when the driver can delete them$/,
        ) as string,
      });
      for (const { metadata } of await ofDriver())
        await client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, metadata, {
          metadata: { finalizers: null },
        });
    });
  });

  it('all fail with one error when a member is not taken, and leave nothing', async () => {
    await members('short', 'a', 'late');
    refused.add('late');
    const backup = backupFor('b-short', { csiSnapshotTimeout: '2s' });
    const outputs = await execute('short', backup, ['a', 'late']);
    for (const output of outputs) {
      const reason: unknown = output.status === 'rejected' ? output.reason : undefined;
      expect(isCode(reason, 'GROUP_NOT_TAKEN')).toBe(true);
      expect((reason as Error).message).toMatch(
        /^VolumeGroupSnapshot short\/velero-db-\w+ was not taken within 2s: no snapshot of PVC late$/,
      );
    }
    // The real snapshot controller takes its protection off when the group goes.
    for (const { metadata } of await snapshots('short')) {
      await client.patch(VOLUME_SNAPSHOTS, metadata, { metadata: { finalizers: null } });
    }
    await nothingLeft('short');
  });
});
