import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import {
  type Backup,
  BACKUPS,
  DATA_UPLOADS,
  type DataUpload,
  type KubeClient,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
} from '../../../../src/kube/index.ts';
import { openActions } from '../../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf } from '../../../support/plugin-items.ts';
import { withCalls } from '../../../support/with-calls.ts';

const [VICTIM, TENANT, OTHER_SERVER] = ['victim', 'aaa-tenant', 'other-velero'];
const signal = new AbortController().signal;
let test: TestCluster;

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  for (const name of [VICTIM, TENANT, OTHER_SERVER]) await test.makeNamespace(name);
});
afterAll(() => test[Symbol.asyncDispose]());
beforeEach(async () => {
  for (const { metadata } of await test.client.list(VOLUME_SNAPSHOTS)) {
    await test.client.delete(VOLUME_SNAPSHOTS, metadata);
  }
  await expect.poll(() => test.client.list(VOLUME_SNAPSHOTS)).toEqual([]);
});

const storedBackup = async (
  name: string,
  phase: string,
  namespace = NAMESPACE,
): Promise<Backup> => {
  const { spec } = backupOf(name);
  const object = { metadata: { name, namespace }, spec, status: { phase } };
  return (await test.client.create(BACKUPS, object)) as Backup;
};

const left = (
  namespace: string,
  name: string,
  uid: string,
  place: string | undefined,
  {
    isMoved = true,
    annotations = {},
    source = { persistentVolumeClaimName: 'none' },
  }: { isMoved?: boolean; annotations?: Record<string, string>; source?: object } = {},
): Promise<unknown> =>
  test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name,
      namespace,
      labels: { 'velero.io/backup-uid': uid, 'longshore.io/moved': String(isMoved) },
      annotations: {
        ...annotations,
        ...(place !== undefined && { 'longshore.io/for-backup': place }),
      },
    },
    spec: { source },
  });

const remaining = async (): Promise<string[]> =>
  (await test.client.list(VOLUME_SNAPSHOTS))
    .filter(({ metadata }) => !metadata.deletionTimestamp)
    .map(({ metadata }) => `${metadata.namespace ?? ''}/${metadata.name}`);

const actionOf = (client: KubeClient) => openActions({ client, logger: silentLogger }).pvcBackup();

/** The first call of a process, with a PVC whose snapshot is kept. */
async function sweep(name: string, client = test.client, host = signal): Promise<void> {
  await test.makeVolume(TENANT, name);
  const backup = backupOf(name, { snapshotMoveData: false });
  const pvc = await pvcOf(test.client, TENANT, name);
  await actionOf(client).execute(pvc, backup, { signal: host });
}

it('a snapshot that says something else does not decide about others of the same backup', async () => {
  const busy = await storedBackup('busy', 'InProgress');
  const uploading = await storedBackup('uploading', 'WaitingForPluginOperations');
  const upload: Partial<DataUpload['spec']> = {
    sourceNamespace: VICTIM,
    csiSnapshot: { volumeSnapshot: 'waits', storageClass: '' },
    sourcePVC: 'none',
    backupStorageLocation: 'default',
    operationTimeout: '1m0s',
    snapshotType: 'CSI',
  };
  await test.client.create(DATA_UPLOADS, {
    metadata: {
      name: 'waits',
      namespace: NAMESPACE,
      labels: { 'velero.io/backup-uid': uploading.metadata.uid },
    },
    spec: upload,
  } as never);
  for (const [i, place] of [`${TENANT}/nothing`, `${NAMESPACE}/nothing`, undefined].entries()) {
    await left(TENANT, `a-${i}`, busy.metadata.uid, place);
    await left(TENANT, `b-${i}`, uploading.metadata.uid, place);
  }
  await left(VICTIM, 'taken', busy.metadata.uid, `${NAMESPACE}/busy`);
  await left(VICTIM, 'waits', uploading.metadata.uid, `${NAMESPACE}/uploading`);
  await left(VICTIM, 'over', uploading.metadata.uid, `${NAMESPACE}/uploading`);
  await sweep('b-tenant');
  const names = (await remaining()).filter((each) => !each.includes('/velero-'));
  // Snapshots that name this server are its own, and have neither a backup nor an upload.
  expect(names.sort()).toEqual(
    ['a-0', 'a-2', 'b-0', 'b-2']
      .map((name) => `${TENANT}/${name}`)
      .concat(`${VICTIM}/taken`, `${VICTIM}/waits`),
  );
});

it('leaves the snapshots of another server alone, whatever became of their backup', async () => {
  const over = await storedBackup('over', 'Failed', OTHER_SERVER);
  await left(VICTIM, 'of-over', over.metadata.uid, `${OTHER_SERVER}/over`);
  await left(VICTIM, 'of-gone', 'gone', `${OTHER_SERVER}/gone`);
  await left(VICTIM, 'of-ours', 'gone', `${NAMESPACE}/gone`);
  const places: (string | undefined)[] = [];
  const client = withCalls(test.client, {
    list: (resource, options) => {
      if (resource.plural === DATA_UPLOADS.plural) places.push(options?.namespace);
      return test.client.list(resource, options);
    },
  });
  await sweep('b-server', client);
  expect(await remaining()).toEqual(
    expect.arrayContaining([`${VICTIM}/of-over`, `${VICTIM}/of-gone`]) as string[],
  );
  expect(await remaining()).not.toContain(`${VICTIM}/of-ours`);
  expect(new Set(places)).toEqual(new Set([NAMESPACE]));
});

it('goes on with other backups when one of them cannot be looked up', async () => {
  for (const name of ['aaa', 'bbb', 'ccc'])
    await left(VICTIM, name, `${name}-uid`, `${NAMESPACE}/${name}`);
  const client = withCalls(test.client, {
    get: (resource, ref, options) =>
      ref.name === 'aaa'
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
        : test.client.get(resource, ref, options),
  });
  await sweep('b-throws', client);
  expect((await remaining()).filter((each) => each.startsWith(VICTIM))).toEqual([`${VICTIM}/aaa`]);
});

it('removes a few at a time, and no more of them when the host is gone', async () => {
  const count = 20;
  for (let i = 0; i < count; i++) await left(VICTIM, `many-${i}`, 'gone', `${NAMESPACE}/gone`);
  const host = new AbortController();
  let deleting = 0;
  let most = 0;
  let total = 0;
  const client = withCalls(test.client, {
    delete: async (resource, ref, options) => {
      total++;
      most = Math.max(most, ++deleting);
      // As long as it takes for others to begin.
      await new Promise((resolve) => setTimeout(resolve, 50));
      if (total > 4) host.abort(new Error('the host is gone'));
      return test.client.delete(resource, ref, options).finally(() => deleting--);
    },
  });
  await expect(sweep('b-many', client, host.signal)).rejects.toThrow('the host is gone');
  expect(most).toBe(4);
  expect(total).toBeLessThan(12);
  expect((await remaining()).length).toBe(count - total);
});

it('an operation is asked for its progress without waiting for the sweep, which outlives the call', async () => {
  const backup = await storedBackup('b-asked', 'InProgress');
  await test.makeVolume(VICTIM, 'asked');
  const pvc = await pvcOf(test.client, VICTIM, 'asked');
  const { operationId = '' } = await actionOf(test.client).execute(pvc, backup, { signal });
  await left(VICTIM, 'left', 'gone', `${NAMESPACE}/gone`);
  const release = Promise.withResolvers<undefined>();
  const client = withCalls(test.client, {
    list: async (resource, options) => {
      if (resource.plural === VOLUME_SNAPSHOTS.plural) await release.promise;
      options?.signal?.throwIfAborted();
      return test.client.list(resource, options);
    },
  });
  const host = new AbortController();
  const asked = actionOf(client).progress(operationId, backup, { signal: host.signal });
  expect(await asked).toMatchObject({ completed: false });
  host.abort(new Error('the answer is with the host'));
  release.resolve(undefined);
  await expect.poll(remaining).not.toContain(`${VICTIM}/left`);
});

it('removes snapshots that were to be kept and are in no backup, and no other of them', async () => {
  const handle = { 'velero.io/csi-volumesnapshot-handle': 'h' };
  const kept = { isMoved: false };
  const stored = { isMoved: false, annotations: handle };
  const restored = { isMoved: false, source: { volumeSnapshotContentName: 'none' } };
  const backups = {
    taking: 'InProgress',
    done: 'Completed',
    failed: 'Failed',
    waiting: 'WaitingForPluginOperations',
  };
  for (const [name, phase] of Object.entries(backups)) {
    const { metadata } = await storedBackup(`kept-${name}`, phase);
    const place = `${NAMESPACE}/kept-${name}`;
    await left(VICTIM, `${name}-unmarked`, metadata.uid, place, kept);
    await left(VICTIM, `${name}-marked`, metadata.uid, place, stored);
  }
  const gone = `${NAMESPACE}/kept-gone`;
  await left(VICTIM, 'gone-unmarked', 'gone', gone, kept);
  // Its backup may be here under another UID, since it was synced from the storage.
  await left(VICTIM, 'gone-marked', 'gone', gone, stored);
  await left(VICTIM, 'gone-restored', 'gone', gone, restored);
  await sweep('b-kept');
  const names = (await remaining()).filter((each) => each.startsWith(VICTIM)).sort();
  expect(names.map((name) => name.slice(VICTIM.length + 1))).toEqual([
    'done-marked',
    'gone-marked',
    'gone-restored',
    'taking-marked',
    'taking-unmarked',
    'waiting-marked',
  ]);
});

it('keeps a restored snapshot and what the storage has of it, whatever its labels say', async () => {
  const restored = { source: { volumeSnapshotContentName: 'restored' } };
  await test.client.create(VOLUME_SNAPSHOT_CONTENTS, {
    metadata: { name: 'restored' },
    spec: {
      driver: 'other.example',
      deletionPolicy: 'Retain',
      source: { snapshotHandle: 'of-a-stored-backup' },
      volumeSnapshotRef: { namespace: TENANT, name: 'restored' },
    },
  });
  await left(TENANT, 'restored', 'gone', `${NAMESPACE}/gone`, restored);
  await sweep('b-restored');
  expect(await remaining()).toContain(`${TENANT}/restored`);
  const content = await test.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: 'restored' });
  expect(content.spec.deletionPolicy).toBe('Retain');
});

it('leaves the policy of a content alone that names a handle and is of no group', async () => {
  await test.makeVolume(VICTIM, 'handle');
  const pvc = await pvcOf(test.client, VICTIM, 'handle');
  const policies: unknown[] = [];
  let status: object = {};
  const client = withCalls(test.client, {
    create: (resource, object, options) =>
      resource.plural === DATA_UPLOADS.plural
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
        : test.client.create(resource, object, options),
    patch: (resource, ref, patch, options) => {
      if (resource.plural === VOLUME_SNAPSHOT_CONTENTS.plural) policies.push(patch);
      return test.client.patch(resource, ref, patch, options);
    },
    find: async (resource, ref, options) => {
      const found = await test.client.find(resource, ref, options);
      if (!found || resource.plural !== VOLUME_SNAPSHOT_CONTENTS.plural) return found;
      const spec = { ...(found as { spec?: object }).spec, deletionPolicy: 'Retain' };
      const source = { snapshotHandle: 'h' };
      return {
        ...found,
        spec: { ...spec, source },
        status: { ...(found as { status?: object }).status, ...status },
      };
    },
  });
  await actionOf(client).execute(pvc, backupOf('b-handle'), { signal });
  expect(policies).toEqual([]);
  status = { volumeGroupSnapshotHandle: 'g' };
  await actionOf(client).execute(pvc, backupOf('b-handle-group'), { signal });
  expect(policies).toHaveLength(1);
});

it('judges a snapshot by what it says after the phase of its backup is known', async () => {
  const { metadata } = await storedBackup('race', 'WaitingForPluginOperations');
  const handle = { 'velero.io/csi-volumesnapshot-handle': 'h' };
  const patch = (name: string): Promise<unknown> =>
    test.client.patch(
      VOLUME_SNAPSHOTS,
      { namespace: VICTIM, name },
      { metadata: { annotations: handle } },
    );
  for (const name of ['race-early', 'race-late', 'race-left'])
    await left(VICTIM, name, metadata.uid, `${NAMESPACE}/race`, { isMoved: false });
  const client = withCalls(test.client, {
    get: async (resource, ref, options) => {
      if (resource.plural === BACKUPS.plural && ref.name === 'race') await patch('race-early');
      return test.client.get(resource, ref, options);
    },
    delete: async (resource, ref, options) => {
      if (ref.name === 'race-late') await patch('race-late');
      return test.client.delete(resource, ref, options);
    },
  });
  await sweep('b-race', client);
  const names = (await remaining()).filter((each) => each.startsWith(`${VICTIM}/race`));
  expect(names.sort()).toEqual([`${VICTIM}/race-early`, `${VICTIM}/race-late`]);
});

describe('a content that was kept', () => {
  const handle = { 'velero.io/csi-volumesnapshot-handle': 'h' };
  const NOTE = 'longshore.io/retained-until';
  const ago = (seconds: number): string => String(Math.floor(Date.now() / 1000) - seconds);

  /** A snapshot that was to be kept, and its content. */
  async function bound(
    name: string,
    uid: string,
    { place = `${NAMESPACE}/gone`, policy = 'Retain', note = '', marks = {} } = {},
  ): Promise<void> {
    const { metadata } = (await left(VICTIM, name, uid, place, {
      isMoved: false,
      annotations: marks,
    })) as VolumeSnapshot;
    const content = await test.client.create(VOLUME_SNAPSHOT_CONTENTS, {
      metadata: { name: `content-${name}`, ...(note !== '' && { labels: { [NOTE]: note } }) },
      spec: {
        driver: 'other.example',
        deletionPolicy: policy,
        source: { volumeHandle: name },
        volumeSnapshotRef: { namespace: VICTIM, name, uid: metadata.uid },
      },
    });
    const status = { boundVolumeSnapshotContentName: content.metadata.name };
    await test.client.patch(VOLUME_SNAPSHOTS, metadata, { status }, { subresource: 'status' });
  }
  const policyOf = async (name: string): Promise<[string, string | undefined]> => {
    const ref = { name: `content-${name}` };
    const { metadata, spec } = await test.client.get(VOLUME_SNAPSHOT_CONTENTS, ref);
    return [spec.deletionPolicy, metadata.labels?.[NOTE]];
  };
  const KEPT = ['Retain', undefined];

  it('is kept again when its snapshot got its marks before it could be deleted', async () => {
    const { metadata } = await storedBackup('marked', 'WaitingForPluginOperations');
    await bound('marked-late', metadata.uid, { place: `${NAMESPACE}/marked` });
    const seen: unknown[] = [];
    const client = withCalls(test.client, {
      delete: async (resource, ref, options) => {
        if (ref.name === 'marked-late') {
          seen.push(await policyOf('marked-late'));
          const marks = { metadata: { annotations: handle } };
          await test.client.patch(VOLUME_SNAPSHOTS, { namespace: VICTIM, name: ref.name }, marks);
        }
        return test.client.delete(resource, ref, options);
      },
    });
    await sweep('b-marked', client);
    expect(seen).toEqual([['Delete', expect.stringMatching(/^\d{10}$/) as string]]);
    expect(await remaining()).toContain(`${VICTIM}/marked-late`);
    expect(await policyOf('marked-late')).toEqual(KEPT);
  });

  it('is kept again by a later sweep when the process was killed, and no other one is', async () => {
    const { metadata } = await storedBackup('noted', 'Completed');
    const place = `${NAMESPACE}/noted`;
    const released = { place, policy: 'Delete', marks: handle };
    await bound('noted-old', metadata.uid, { ...released, note: ago(3600) });
    // Noted by a clock that was wrong.
    await bound('noted-ahead', metadata.uid, { ...released, note: ago(-3600) });
    await bound('noted-now', metadata.uid, { ...released, note: ago(10) });
    await bound('noted-by-user', metadata.uid, released);
    await bound('noted-retained', metadata.uid, { ...released, policy: 'Retain', note: ago(3600) });
    await bound('noted-other', 'gone', {
      ...released,
      place: `${OTHER_SERVER}/gone`,
      note: ago(3600),
    });
    // Still left over: its deletion failed, and fails again.
    await bound('noted-left', metadata.uid, { place, policy: 'Delete', note: ago(3600) });
    const client = withCalls(test.client, {
      delete: (resource, ref, options) =>
        ref.name === 'noted-left'
          ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
          : test.client.delete(resource, ref, options),
    });
    await sweep('b-noted', client);
    for (const name of ['noted-old', 'noted-ahead', 'noted-retained'])
      expect([name, ...(await policyOf(name))]).toEqual([name, ...KEPT]);
    for (const name of ['noted-now', 'noted-by-user', 'noted-other', 'noted-left'])
      expect([name, (await policyOf(name))[0]]).toEqual([name, 'Delete']);
  });

  it('loses the note in a restore', async () => {
    const content = {
      apiVersion: 'snapshot.storage.k8s.io/v1',
      kind: 'VolumeSnapshotContent',
      metadata: { name: 'c', labels: { [NOTE]: ago(3600), other: 'stays' } },
      spec: { driver: 'd', source: {}, volumeSnapshotRef: { namespace: VICTIM, name: 'v' } },
      status: { snapshotHandle: 'h' },
    } as never;
    const action = openActions({ client: test.client, logger: silentLogger }).contentRestore();
    const input = { item: content, itemFromBackup: content, restore: restoreOf('r', 'b') };
    const { item } = await action.execute(input, { signal });
    expect(item?.metadata.labels).toEqual({ other: 'stays' });
  });
});

it('marks the very content for deletion that it has looked at, and again when others changed it meanwhile', async () => {
  await test.makeVolume(VICTIM, 'conflict');
  const pvc = await pvcOf(test.client, VICTIM, 'conflict');
  const patches: unknown[] = [];
  const client = withCalls(test.client, {
    create: (resource, object, options) =>
      resource.plural === DATA_UPLOADS.plural
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
        : test.client.create(resource, object, options),
    patch: (resource, ref, patch, options) => {
      if (resource.plural === VOLUME_SNAPSHOT_CONTENTS.plural) {
        patches.push(patch);
        if (patches.length === 1)
          return Promise.reject(new CodedError('KUBE_CONFLICT', 'changed meanwhile'));
      }
      return test.client.patch(resource, ref, patch, options);
    },
  });
  // As if the storage kept the snapshots, because of the class.
  const contents = await test.client.list(VOLUME_SNAPSHOT_CONTENTS);
  const retaining = withCalls(client, {
    find: async (resource, ref, options) => {
      const found = await test.client.find(resource, ref, options);
      if (!found || resource.plural !== VOLUME_SNAPSHOT_CONTENTS.plural) return found;
      return { ...found, spec: { ...(found as { spec?: object }).spec, deletionPolicy: 'Retain' } };
    },
  });
  await actionOf(retaining).execute(pvc, backupOf('b-conflict'), { signal });
  expect(patches).toHaveLength(2);
  for (const patch of patches) {
    expect(patch).toMatchObject({
      metadata: { resourceVersion: expect.any(String) as string },
      spec: { deletionPolicy: 'Delete' },
    });
  }
  await expect
    .poll(async () => (await test.client.list(VOLUME_SNAPSHOT_CONTENTS)).length)
    .toBe(contents.length);
});
