import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError, isCode, type Logger, silentLogger } from '../../../src/base/index.ts';
import {
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeClient,
  PVCS,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeSnapshot,
} from '../../../src/kube/index.ts';
import type { Backup, BackupOutput } from '../../../src/plugin/contract.ts';
import { openActions } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, clientWith, pvcOf } from '../../support/plugin-items.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';

const DRIVER = 'dir.csi.longshore.dev';
const KEY = 'velero.io/volume-group';
const FINALIZER = 'snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection';
const signal = new AbortController().signal;

/** On the real API server with the real definitions; the test is the snapshot controller for groups. */
describe.skipIf(!hasRealApi())('volumes of a group', () => {
  let api: RealApi;
  let test: TestCluster;
  let client: KubeClient;
  let isOver = false;
  let controller: Promise<void>;
  /** Of PVCs: nothing is taken of these. */
  const refused = new Set<string>();
  /** Of the contents of groups. */
  let policy = 'Delete';
  const groups = new Map<string, string>();
  const warnings: string[] = [];
  const logger: Logger = { ...silentLogger, warn: (_, message) => warnings.push(message) };

  beforeAll(async () => {
    api = await startRealApi(25_600);
    test = await TestCluster.start({ nodes: ['node-1'], kubeconfig: api.kubeconfig });
    ({ client } = test);
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
        if (groups.has(group.metadata.uid) || group.metadata.deletionTimestamp) continue;
        groups.set(group.metadata.uid, group.metadata.name);
        await take(group);
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  /** As external-snapshotter v8.x: members are owned by the group and protected, and say which it is. */
  async function take(group: VolumeGroupSnapshot): Promise<void> {
    const { namespace = '', name, uid } = group.metadata;
    const [[key, value] = ['', '']] = Object.entries(group.spec.source.selector?.matchLabels ?? {});
    const claims = await client.list(PVCS, { namespace, labelSelector: `${key}=${value}` });
    for (const { metadata } of claims) {
      if (refused.has(metadata.name)) continue;
      const made = await client.create(VOLUME_SNAPSHOTS, {
        metadata: {
          name: `snapshot-${uid.slice(0, 8)}-${metadata.name}`,
          namespace,
          finalizers: [FINALIZER],
          ownerReferences: [
            {
              apiVersion: 'groupsnapshot.storage.k8s.io/v1beta2',
              kind: 'VolumeGroupSnapshot',
              name,
              uid,
            },
          ],
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
    await client.patch(
      VOLUME_GROUP_SNAPSHOTS,
      group.metadata,
      { status: { boundVolumeGroupSnapshotContentName: content.metadata.name } },
      { subresource: 'status' },
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
    expect(await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace })).toEqual([]);
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
    expect(await client.list(VOLUME_GROUP_SNAPSHOTS, {})).toEqual([]);
    expect(await client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, {})).toEqual([]);
    // A process that starts anew finds what is there.
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
    await expect
      .poll(async () =>
        (await snapshots('partly')).map(({ spec }) => spec.source.persistentVolumeClaimName),
      )
      .toEqual(['a']);
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
    expect(await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace: 'killed' })).toEqual([]);
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
    const stubborn = clientWith(client, {
      delete: (resource, ref, options) =>
        ref.name === 'aaa'
          ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
          : client.delete(resource, ref, options),
    });
    const actions = openActions({ client: stubborn, logger }).pvcBackup();
    await execute('retained-next', backupFor('b-retained'), ['a'], actions);
    const left = await client.list(VOLUME_GROUP_SNAPSHOTS, { namespace: 'retained' });
    expect(left.map(({ metadata }) => metadata.name)).toEqual(['aaa']);
    const content = await client.get(VOLUME_GROUP_SNAPSHOT_CONTENTS, {
      name: `groupsnapcontent-${made[1]?.metadata.uid ?? ''}`,
    });
    expect(content.spec.deletionPolicy).toBe('Delete');
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
