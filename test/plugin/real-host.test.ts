import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BACKUPS, DATA_UPLOADS, type KubeObject, VOLUME_SNAPSHOTS } from '../../src/kube/index.ts';
import { TestCluster } from '../support/dev-cluster.ts';
import { sharedPackage } from '../support/package.ts';
import { backupOf, pvcOf, restoreOf, stored } from '../support/plugin-items.ts';
import { hasVeleroHost, VeleroHost } from '../support/velero-host.ts';

const PVC_BACKUP = 'longshore.io/csi-pvc-backupper';
const FLAGS = ['--log-level', 'debug', '--uploader-type=kopia', '--a-flag-of-tomorrow', 'x'];
const APP = 'app';

interface Identifier {
  readonly Command: string;
  readonly Kind: string;
  readonly Name: string;
}
interface Executed {
  readonly item: KubeObject;
  readonly operationID: string;
  readonly itemsToUpdate: unknown;
}

/** Velero v1.18.3's own plugin client loads the file that the build makes. */
describe.skipIf(!hasVeleroHost())("Velero's own plugin client", () => {
  let folder: string;
  let test: TestCluster;
  let host: VeleroHost;
  let discovered: Identifier[];

  const start = (flags = FLAGS): VeleroHost =>
    new VeleroHost(folder, flags, { KUBECONFIG: test.kubeconfig, TMPDIR: folder });

  beforeAll(async () => {
    folder = fs.mkdtempSync(join(tmpdir(), 'longshore-plugins-'));
    const file = join(folder, 'velero-plugin-longshore');
    fs.copyFileSync(join(sharedPackage(), 'dist/velero-plugin-longshore'), file);
    test = await TestCluster.start({ nodes: ['node-1'] });
    await test.makeNamespace(APP);
    host = start();
    const { result, error } = await host.discovered();
    expect(error).toBeUndefined();
    discovered = result as Identifier[];
  });
  afterAll(async () => {
    await host[Symbol.asyncDispose]();
    await test[Symbol.asyncDispose]();
    fs.rmSync(folder, { recursive: true, force: true });
  });

  const sockets = (): string[] =>
    fs.readdirSync(folder).filter((name) => name.startsWith('plugin'));

  it('finds every action, under names that are not its own', () => {
    const command = join(folder, 'velero-plugin-longshore');
    expect(new Set(discovered.map(({ Command }) => Command))).toEqual(new Set([command]));
    expect(discovered.map(({ Kind, Name }) => `${Kind} ${Name}`)).toEqual([
      'BackupItemActionV2 longshore.io/csi-pvc-backupper',
      'BackupItemActionV2 longshore.io/csi-volumesnapshot-backupper',
      'BackupItemActionV2 longshore.io/csi-volumesnapshotclass-backupper',
      'BackupItemActionV2 longshore.io/csi-volumesnapshotcontent-backupper',
      'BackupItemActionV2 longshore.io/pod-volume-backup',
      'RestoreItemActionV2 longshore.io/csi-pvc-restorer',
      'RestoreItemActionV2 longshore.io/csi-volumesnapshot-restorer',
      'RestoreItemActionV2 longshore.io/csi-volumesnapshotclass-restorer',
      'RestoreItemActionV2 longshore.io/csi-volumesnapshotcontent-restorer',
      'RestoreItemActionV2 longshore.io/dataupload',
      'DeleteItemAction longshore.io/dataupload-delete',
      'DeleteItemAction longshore.io/group-snapshot-delete',
      'ItemBlockAction longshore.io/pvc',
    ]);
  });

  it('finds nothing but the deletions, and operations of our server, where its own actions do the rest', async () => {
    for (const flags of [['--features=Other,EnableCSI'], ['--features', 'EnableCSI']]) {
      await using withCsi = start([...FLAGS, ...flags]);
      const { result } = await withCsi.discovered();
      expect((result as Identifier[]).map(({ Name }) => Name)).toEqual([
        'longshore.io/pod-volume-backup',
        'longshore.io/dataupload-delete',
        'longshore.io/group-snapshot-delete',
      ]);
    }
  });

  it('asks every action what it applies to', async () => {
    const kinds: Record<string, string> = {
      BackupItemActionV2: 'backup',
      RestoreItemActionV2: 'restore',
      DeleteItemAction: 'delete',
      ItemBlockAction: 'block',
    };
    for (const { Kind, Name } of discovered) {
      const { result, error } = await host.ask(`${kinds[Kind] ?? ''}.appliesTo`, { name: Name });
      expect(error).toBeUndefined();
      expect((result as { IncludedResources: string[] }).IncludedResources).toHaveLength(1);
    }
  });

  it('backs a PVC up, follows it, cancels it, with a new process for each of its managers', async () => {
    await test.makeVolume(APP, 'data');
    const pvc = await pvcOf(test.client, APP, 'data');
    const backup = backupOf('b1', { datamover: 'longshore' });
    const { metadata } = await test.client.create(BACKUPS, {
      metadata: { name: 'b1', namespace: 'velero' },
      spec: backup.spec,
      status: backup.status,
    });
    backup.metadata.uid = metadata.uid;
    const related = await host.ask('block.execute', {
      name: 'longshore.io/pvc',
      item: pvc,
      backup,
    });
    expect(related.result).toMatchObject([{ Resource: 'persistentvolumes' }]);

    const executed = await host.ask('backup.execute', { name: PVC_BACKUP, item: pvc, backup });
    expect(executed.error).toBeUndefined();
    const { item, operationID, itemsToUpdate } = executed.result as Executed;
    expect(item.metadata.annotations).toMatchObject({
      'velero.io/data-upload-name': expect.stringMatching(/^velero\/b1-/) as string,
    });
    expect(operationID).toMatch(/^du-/);
    expect(itemsToUpdate).toMatchObject([{ Group: 'velero.io', Resource: 'datauploads' }]);
    const [before] = host.plugins();
    await host.ask('cleanup');
    expect(host.plugins()).toEqual([]);

    const asked = { name: PVC_BACKUP, operationID, backup };
    const pending = await host.ask('backup.progress', asked);
    expect(pending.result).toMatchObject({ Completed: false, Started: '0001-01-01T00:00:00Z' });
    expect(host.plugins()).not.toContain(before);
    const [upload] = await test.client.list(DATA_UPLOADS, { namespace: 'velero' });
    const ref = { namespace: 'velero', name: upload?.metadata.name ?? '' };
    const status = { phase: 'InProgress', progress: { bytesDone: 6e9, totalBytes: 7e9 } };
    await test.client.patch(DATA_UPLOADS, ref, { status });
    expect((await host.ask('backup.progress', asked)).result).toMatchObject({
      NCompleted: 6e9,
      NTotal: 7e9,
      OperationUnits: 'Bytes',
      Description: 'InProgress',
    });
    const canceled = host.ask('backup.cancel', asked);
    await expect
      .poll(async () => (await test.client.get(DATA_UPLOADS, ref)).spec.cancel)
      .toBe(true);
    await test.client.patch(DATA_UPLOADS, ref, { status: { phase: 'Canceled' } });
    expect(await canceled).toEqual({});
    expect((await host.ask('backup.progress', asked)).result).toMatchObject({
      Completed: true,
      Err: 'DataUpload is canceled',
    });

    const done: KubeObject = stored({
      ...upload,
      status: { phase: 'Completed', snapshotID: 'k1' },
    } as never);
    const deleted = await host.ask('delete.execute', {
      name: 'longshore.io/dataupload-delete',
      item: done,
      backup,
    });
    expect(deleted).toEqual({});

    const restore = restoreOf('r1', 'b1', { namespaceMapping: { [APP]: 'other' } });
    const results = { name: 'longshore.io/dataupload', item: done, itemFromBackup: done, restore };
    expect((await host.ask('restore.execute', results)).result).toMatchObject({
      skipRestore: true,
    });
    const request = { name: 'longshore.io/csi-pvc-restorer', restore };
    const restored = await host.ask('restore.execute', {
      ...request,
      item: stored(item),
      itemFromBackup: stored(item),
    });
    expect(restored.error).toBeUndefined();
    const { operationID: download } = restored.result as Executed;
    expect(download).toMatch(/^dd-/);
    expect((await host.ask('restore.ready', request)).result).toBe(true);
    const progress = await host.ask('restore.progress', { ...request, operationID: download });
    expect(progress.result).toMatchObject({ Completed: false });
  });

  it('gets errors as errors, and a killed process back', async () => {
    const backup = backupOf('b2');
    const bad = await host.ask('backup.progress', { name: PVC_BACKUP, operationID: 'x', backup });
    // As of every plugin: the client leaves the text to gRPC.
    const unknown = 'rpc error: code = Unknown desc = ';
    expect(bad.error).toBe(`${unknown}operation ID x is invalid`);
    const none = await host.ask('backup.progress', { name: PVC_BACKUP, operationID: '', backup });
    expect(none.error).toBe(`${unknown}operation ID  is invalid`);
    const unasked = await host.ask('backup.progress', {
      name: 'longshore.io/csi-volumesnapshotclass-backupper',
      operationID: 'x',
      backup,
    });
    expect(unasked.error).toBe(`${unknown}Plugin does not support asynchronous operations`);
    const noItem = await host.ask('backup.execute', {
      name: PVC_BACKUP,
      item: { kind: 'x' },
      backup,
    });
    expect(noItem.error).toContain('is no Kubernetes object');
    const panicked = await host.ask('backup.execute', {
      name: PVC_BACKUP,
      item: { kind: 'PersistentVolumeClaim', metadata: { name: 'x', namespace: APP } },
      backup,
    });
    expect(panicked.error).toMatch(/plugin panicked: .*stack trace: .*velero-plugin-longshore:/s);
    // Node cleans nothing up then, nor would Go.
    for (const pid of host.plugins()) process.kill(pid, 'SIGKILL');
    await expect.poll(() => host.plugins(), { timeout: 10_000 }).toEqual([]);
    for (const left of sockets()) fs.rmSync(join(folder, left));
    // The host looks whether it runs before it asks, and may be a moment late.
    const again = () => host.ask('backup.appliesTo', { name: PVC_BACKUP });
    await expect.poll(async () => (await again()).error, { timeout: 30_000 }).toBeUndefined();
    expect(host.plugins()).toHaveLength(1);
  });

  it('reads the log of a plugin as its own, an error as an error', async () => {
    await test.makeVolume(APP, 'logged');
    const pvc = await pvcOf(test.client, APP, 'logged');
    // No namespace of that name: the upload cannot be made.
    const backup = backupOf('b3');
    backup.metadata.namespace = 'nowhere';
    const { error } = await host.ask('backup.execute', { name: PVC_BACKUP, item: pvc, backup });
    expect(error).toBeUndefined();
    // The lines come by a pipe of their own, and may be later than the answer.
    const lines = (): unknown[] =>
      host.log.filter(({ pluginName }) => pluginName === 'velero-plugin-longshore');
    await expect
      .poll(lines, { timeout: 10_000 })
      .toContainEqual(expect.objectContaining({ level: 'info', msg: 'VolumeSnapshot created' }));
    await expect.poll(lines, { timeout: 10_000 }).toContainEqual(
      expect.objectContaining({
        level: 'error',
        msg: 'the DataUpload could not be made: the volume is not in this backup',
        PVC: 'app/logged',
      }),
    );
    const labelSelector = `velero.io/backup-uid=${backup.metadata.uid}`;
    await expect
      .poll(() => test.client.list(VOLUME_SNAPSHOTS, { namespace: APP, labelSelector }))
      .toEqual([]);
  });

  it('leaves no process and no socket behind, also when it is killed', async () => {
    await host.ask('cleanup');
    expect(host.plugins()).toEqual([]);
    expect(sockets()).toEqual([]);
    const killed = start();
    await killed.discovered();
    await killed.ask('backup.appliesTo', { name: PVC_BACKUP });
    const [plugin = 0] = killed.plugins();
    await killed.kill();
    await expect.poll(() => fs.existsSync(`/proc/${plugin}/exe`), { timeout: 20_000 }).toBe(false);
    expect(sockets()).toEqual([]);
  });

  it('does not start beside a file that is no plugin, and names it', async () => {
    const file = join(folder, 'z-no-plugin');
    fs.writeFileSync(file, '#!/bin/sh\necho hello\n', { mode: 0o755 });
    const refused = start();
    expect((await refused.discovered()).error).toBeDefined();
    fs.rmSync(file);
  });
});
