import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../src/base/index.ts';
import type { ExposerOptions } from '../../src/exposer/index.ts';
import { SnapshotHandover } from '../../src/exposer/snapshot-handover.ts';
import {
  BEING_CREATED,
  BEING_DELETED,
  type DataUpload,
  type KubeClient,
  NAMESPACES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  waitFor,
  waitGone,
} from '../../src/kube/index.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';
import { hasRealCsi, type Part, RealCsi, SNAPSHOT_CLASS } from '../support/real-csi.ts';
import { withCalls } from '../support/with-calls.ts';
import { anUpload } from '../support/builders.ts';

const PARTS = ['snapshot-controller', 'csi-snapshotter'] as const;

/** Under the real snapshot controller and csi-snapshotter. */
describe.skipIf(!hasRealApi() || !hasRealCsi())('a snapshot that is taken over', () => {
  let api: RealApi;
  let csi: RealCsi;
  let client: KubeClient;

  beforeAll(async () => {
    api = await startRealApi(29_400);
    ({ client } = api);
    csi = await RealCsi.start(api);
    for (const name of ['app', 'velero']) await client.create(NAMESPACES, { metadata: { name } });
    await csi.makeVolume('app', 'data');
  }, 120_000);
  afterEach(() => {
    for (const part of PARTS) csi.begin(part);
  });
  afterAll(async () => {
    await (csi as RealCsi | undefined)?.[Symbol.asyncDispose]();
    await (api as RealApi | undefined)?.[Symbol.asyncDispose]();
  }, 60_000);

  const uploadOf = (name: string): DataUpload =>
    anUpload({
      metadata: { name, namespace: 'velero', uid: `uid-of-${name}` },
      spec: { sourceNamespace: 'app', csiSnapshot: { volumeSnapshot: name, storageClass: 'dir' } },
    });
  async function readySnapshot(name: string): Promise<VolumeSnapshot> {
    const ref = { namespace: 'app', name };
    if (await client.find(VOLUME_SNAPSHOTS, ref)) return client.get(VOLUME_SNAPSHOTS, ref);
    await client.create(VOLUME_SNAPSHOTS, {
      metadata: ref,
      spec: {
        source: { persistentVolumeClaimName: 'data' },
        volumeSnapshotClassName: SNAPSHOT_CLASS,
      },
    });
    const look = (now: VolumeSnapshot | undefined): VolumeSnapshot | undefined =>
      now?.status?.readyToUse === true ? now : undefined;
    return waitFor(client, VOLUME_SNAPSHOTS, ref, look, { timeoutMs: 60_000 });
  }
  const handoverBy = (by: KubeClient): SnapshotHandover =>
    new SnapshotHandover({
      client: by,
      namespace: 'velero',
      logger: silentLogger,
      prepareTimeoutMs: 60_000,
    } as unknown as ExposerOptions);

  /**
   * Breaks the hand-over off while our objects are created. Deletes this part before the hand-over
   * can see it.
   */
  async function breakOff(name: string, gone: Part): Promise<DataUpload> {
    await readySnapshot(name);
    const upload = uploadOf(name);
    const canceled = new AbortController();
    const create: KubeClient['create'] = async (resource, object, options) => {
      if (resource.plural === VOLUME_SNAPSHOTS.plural) await csi.end(gone);
      const made = await client.create(resource, object, options);
      if (resource.plural === VOLUME_SNAPSHOT_CONTENTS.plural) canceled.abort();
      return made;
    };
    const context = { operationTimeoutMs: 60_000, signal: canceled.signal };
    await expect(
      handoverBy(withCalls(client, { create })).takeOver(upload, context),
    ).rejects.toThrow();
    return upload;
  }

  const left = async (): Promise<unknown> => ({
    objects: [
      ...(await client.list(VOLUME_SNAPSHOTS)),
      ...(await client.list(VOLUME_SNAPSHOT_CONTENTS)),
    ].map(({ metadata: { name, finalizers, annotations, deletionTimestamp } }) => ({
      name,
      finalizers,
      annotations,
      deletionTimestamp,
    })),
    storage: csi.snapshots(),
  });
  const nothing = { objects: [], storage: [] };

  it('goes from the storage, too, before its controller has seen our objects', async () => {
    const upload = await breakOff('unseen', 'snapshot-controller');
    await handoverBy(client).cleanUp(upload);
    csi.begin('snapshot-controller');
    await expect.poll(left, { timeout: 30_000 }).toEqual(nothing);
  }, 120_000);

  it('is not held by what its controllers have noted on the content that it had', async () => {
    const { status } = await readySnapshot('noted');
    const source = { name: status?.boundVolumeSnapshotContentName ?? '' };
    const notes = Object.fromEntries([BEING_CREATED, BEING_DELETED].map((each) => [each, 'yes']));
    const secret = { 'snapshot.storage.kubernetes.io/deletion-secret-name': 's' };
    await csi.end('csi-snapshotter');
    const annotations = { ...notes, ...secret };
    await client.patch(VOLUME_SNAPSHOT_CONTENTS, source, { metadata: { annotations } });
    const upload = await breakOff('noted', 'snapshot-controller');
    const ours = await client.get(VOLUME_SNAPSHOT_CONTENTS, { name: 'noted' });
    expect(ours.metadata.annotations).toMatchObject(secret);
    for (const each of Object.keys(notes)) {
      expect(ours.metadata.annotations).not.toHaveProperty([each]);
    }
    const none = { [Object.keys(secret)[0] ?? '']: null };
    for (const ref of [source, ours.metadata]) {
      await client.patch(VOLUME_SNAPSHOT_CONTENTS, ref, { metadata: { annotations: none } });
    }
    for (const part of PARTS) csi.begin(part);
    const order: string[] = [];
    const remove: KubeClient['delete'] = (resource, ref, options) => {
      if (ref.namespace === 'app' || ref.name === source.name) order.push(resource.plural);
      return client.delete(resource, ref, options);
    };
    await handoverBy(withCalls(client, { delete: remove })).cleanUp(upload);
    expect(order).toEqual([VOLUME_SNAPSHOTS.plural, VOLUME_SNAPSHOT_CONTENTS.plural]);
    await expect.poll(left, { timeout: 30_000 }).toEqual(nothing);
  }, 120_000);

  it('may go by itself while it is cleaned up, and is tried again where the API server refuses', async () => {
    const upload = await breakOff('going', 'snapshot-controller');
    const ref = { name: 'going' };
    const mark: KubeClient['patch'] = (resource, of, patch, options) =>
      resource.plural === VOLUME_SNAPSHOT_CONTENTS.plural
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'))
        : client.patch(resource, of, patch, options);
    const refused = handoverBy(withCalls(client, { patch: mark })).cleanUp(upload);
    await expect(refused).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
    const patch: KubeClient['patch'] = async (resource, of, change, options) => {
      const done = await client.patch(resource, of, change, options);
      await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, ref, { timeoutMs: 60_000 });
      return client.patch(resource, of, change, options).then(() => done);
    };
    // The sidecar deletes it as soon as it has its mark.
    await client.delete(VOLUME_SNAPSHOT_CONTENTS, ref);
    await handoverBy(withCalls(client, { patch })).cleanUp(upload);
    csi.begin('snapshot-controller');
    await expect.poll(left, { timeout: 30_000 }).toEqual(nothing);
  }, 120_000);

  it('goes from the storage, too, before its sidecar has seen our content', async () => {
    const upload = await breakOff('untold', 'csi-snapshotter');
    const ref = { namespace: 'velero', name: 'untold' };
    const bound = async () => {
      const { status } = await client.get(VOLUME_SNAPSHOTS, ref);
      return status?.boundVolumeSnapshotContentName;
    };
    await expect.poll(bound, { timeout: 30_000 }).toBe('untold');
    const cleaned = handoverBy(client).cleanUp(upload);
    const asked = async () => {
      const { metadata } = await client.get(VOLUME_SNAPSHOT_CONTENTS, { name: 'untold' });
      return metadata.deletionTimestamp;
    };
    await expect.poll(asked, { timeout: 60_000 }).toBeDefined();
    csi.begin('csi-snapshotter');
    await cleaned;
    await expect.poll(left, { timeout: 30_000 }).toEqual(nothing);
  }, 120_000);
});
