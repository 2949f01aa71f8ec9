import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import {
  type KubeClient,
  NAMESPACES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshotContent,
  waitFor,
  waitGone,
} from '../../../src/kube/index.ts';
import { DeletionFailures } from '../../../src/server/deletion/deletion-failures.ts';
import { HeldData } from '../../../src/server/deletion/snapshot-references.ts';
import { deleteKept } from '../../../src/server/deletion/kept-snapshots.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';
import { withCalls } from '../../support/with-calls.ts';
import { hasRealCsi, RealCsi, SNAPSHOT_CLASS } from '../../support/real-csi.ts';
import { content } from './support/world.ts';

const NAME = 'kept';

/** Uses the real snapshot controller and csi-snapshotter. */
describe.skipIf(!hasRealApi() || !hasRealCsi())('a snapshot that the storage keeps', () => {
  let api: RealApi;
  let csi: RealCsi;
  let client: KubeClient;

  beforeAll(async () => {
    api = await startRealApi(29_500);
    ({ client } = api);
    csi = await RealCsi.start(api);
    await client.create(NAMESPACES, { metadata: { name: 'app' } });
    await csi.makeVolume('app', 'data');
  }, 120_000);
  afterAll(async () => {
    await (csi as RealCsi | undefined)?.[Symbol.asyncDispose]();
    await (api as RealApi | undefined)?.[Symbol.asyncDispose]();
  }, 60_000);

  /** Makes a snapshot without an object in the cluster. */
  async function keep(): Promise<string> {
    const ref = { namespace: 'app', name: NAME };
    const { metadata } = await client.create(VOLUME_SNAPSHOTS, {
      metadata: ref,
      spec: {
        source: { persistentVolumeClaimName: 'data' },
        volumeSnapshotClassName: SNAPSHOT_CLASS,
      },
    });
    const content = { name: `snapcontent-${metadata.uid}` };
    const look = (now: VolumeSnapshotContent | undefined): string | undefined =>
      now?.status?.readyToUse === true ? now.status.snapshotHandle : undefined;
    const wait = { timeoutMs: 60_000 };
    const handle = await waitFor(client, VOLUME_SNAPSHOT_CONTENTS, content, look, wait);
    const retain = { spec: { deletionPolicy: 'Retain' } };
    await client.patch(VOLUME_SNAPSHOT_CONTENTS, content, retain);
    await client.delete(VOLUME_SNAPSHOTS, ref);
    await waitGone(client, VOLUME_SNAPSHOTS, ref, wait);
    await client.delete(VOLUME_SNAPSHOT_CONTENTS, content);
    await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, content, wait);
    expect(csi.snapshots()).toEqual([handle]);
    return handle;
  }

  async function removed(handle: string, deletionMs = 60_000, by = client): Promise<string[]> {
    const { signal } = new AbortController();
    const attempts = new DeletionFailures({
      logger: silentLogger,
      backup: 'b1',
      signal,
      patienceMs: 1000,
    });
    const kept = { driver: 'dir.csi.test', handle, annotations: {}, volumeMode: undefined };
    await deleteKept([kept], {
      client: by,
      attempts,
      logger: silentLogger,
      signal,
      deletionMs,
      backup: { metadata: { name: 'b1', uid: handle } } as never,
      assertLeading: () => undefined,
    });
    return attempts.take();
  }

  it('goes with the content that is made for it, and so does one that the driver does not know', async () => {
    const handle = await keep();
    expect(await removed(handle)).toEqual([]);
    expect(csi.snapshots()).toEqual([]);
    expect(await removed('unknown')).toEqual([]);
    expect(await client.list(VOLUME_SNAPSHOT_CONTENTS)).toEqual([]);
  }, 120_000);

  it('is gone where the content of an earlier attempt goes in this very moment', async () => {
    const create = () => Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'it is there'));
    expect(await removed('gone', 60_000, withCalls(client, { create }))).toEqual([]);
  });

  it('goes, too, where its sidecar comes back after its deletion was asked for', async () => {
    const handle = await keep();
    await csi.end('csi-snapshotter');
    expect(await removed(handle, 500)).toEqual([
      expect.stringMatching(/it is still in the storage/),
    ]);
    csi.begin('csi-snapshotter');
    const contents = () => client.list(VOLUME_SNAPSHOT_CONTENTS);
    await expect.poll(contents, { timeout: 60_000 }).toEqual([]);
    expect(csi.snapshots()).toEqual([]);
  }, 120_000);
});

it('finds kept snapshots of this very backup only, and old ones that have no UID', () => {
  const name = { 'velero.io/backup-name': 'b1' };
  const labelsOf: Record<string, object> = {
    own: { ...name, 'velero.io/backup-uid': 'u1' },
    old: name,
    'of another installation': { ...name, 'velero.io/backup-uid': 'u2' },
    'of a user': {},
    'of another backup': { 'velero.io/backup-name': 'b2' },
    'of a restore': { ...name, 'velero.io/restore-name': 'r1' },
  };
  const held = new HeldData();
  for (const [handle, labels] of Object.entries(labelsOf)) {
    const item = content(handle, labels, handle) as unknown as VolumeSnapshotContent;
    held.addContent(item, { name: 'b1', uid: 'u1', namespace: 'velero' });
  }
  expect(held.kept.map(({ handle }) => handle)).toEqual(['own', 'old']);
});
