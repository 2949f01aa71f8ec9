import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type BackupVolumeInfo,
  locationProblem,
  RestoreArchive,
  type RestoreVolumeInfo,
  type Results,
  TarballWriter,
} from '../../src/archive/index.ts';
import { openBucket } from '../../src/blob/index.ts';
import { goldenJson } from '../support/golden-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';
import { hasPeers, peer } from '../support/real-api.ts';

interface Read {
  readonly exists: boolean;
  readonly metadata: { metadata: object; spec: object; status: object };
  readonly itemOperations: object[];
  readonly volumeInfos: object[];
  readonly volumeSnapshots: object[];
  readonly version: string;
  readonly items: Record<string, Record<string, string[]>>;
}

/** Velero's own packages (persistence, archive) read what we wrote. */
describe.skipIf(!hasPeers('archive-client'))("Velero's own code", () => {
  const ask = async (root: string, ...parameters: string[]): Promise<unknown> => {
    const { stdout } = await promisify(execFile)(peer('archive-client'), [root, ...parameters]);
    return JSON.parse(stdout);
  };

  it('reads a backup of ours, finds it in the list, and deletes all of it', async () => {
    const root = tempDirectory('bucket');
    const bucket = await openBucket(root);
    const archive = new BackupArchive(bucket);
    await using writer = await TarballWriter.begin(tempDirectory('scratch'));
    const pod = { groupResource: 'pods', version: 'v1', isPreferred: true, namespace: 'app' };
    // Names that are longer make Velero's extractor fail: `.json` is added, and a file's name has
    // 255 bytes.
    const long = 'n'.repeat(250);
    for (const name of ['writer', long]) await writer.addItem({ ...pod, name }, Buffer.from('{}'));
    const node = { groupResource: 'nodes', version: 'v1', isPreferred: true, namespace: '' };
    await writer.addItem({ ...node, name: 'n1' }, Buffer.from('{}'));
    await using contents = await writer.finish();
    const of = (file: string): unknown => goldenJson(`bucket-full1/${file}`);
    const snapshot = {
      spec: {
        backupName: 'full1',
        backupUID: 'u',
        location: 'default',
        persistentVolumeName: 'pv',
        providerVolumeID: 'vol-1',
        volumeType: 'gp3',
        volumeAZ: 'a',
        volumeIOPS: 100,
      },
      status: { providerSnapshotID: 'snap-1', phase: 'Completed' },
    };
    await archive.put('full1', {
      contents,
      metadata: of('velero-backup.json') as object,
      itemOperations: of('full1-itemoperations.json') as object[],
      volumeInfos: of('full1-volumeinfo.json') as BackupVolumeInfo[],
      results: { errors: {}, warnings: {} },
      resourceList: { 'v1/Pod': ['app/writer'] },
      podVolumeBackups: [],
      volumeSnapshots: [snapshot],
    });
    const read = (await ask(root, 'read', 'full1')) as Read;
    expect(read.exists).toBe(true);
    expect(read.metadata).toMatchObject({
      metadata: { name: 'full1', uid: '2a88b762-89ca-4e27-be08-d85e769d2952' },
      status: { phase: 'Completed' },
    });
    expect(read.itemOperations).toEqual(of('full1-itemoperations.json'));
    expect(read.volumeInfos).toEqual(of('full1-volumeinfo.json'));
    expect(read.volumeSnapshots).toEqual([snapshot]);
    expect(read.version).toBe('1.1.0\n');
    expect(read.items).toEqual({ pods: { app: [long, 'writer'] }, nodes: { '': ['n1'] } });
    expect(await ask(root, 'list')).toEqual({ backups: ['full1'] });
    expect(await ask(root, 'valid')).toEqual({});
    expect(fs.readdirSync(join(root, 'backups/full1'))).toContain('longshore-checksums.json');
    await ask(root, 'delete', 'full1');
    expect(await Array.fromAsync(bucket.list(''))).toEqual([]);
  });

  it('reads a restore of ours', async () => {
    const root = tempDirectory('bucket');
    const restores = new RestoreArchive(await openBucket(root));
    const of = (file: string): unknown => goldenJson(`bucket-restore-2-completed/${file}`);
    await restores.put('r3', {
      itemOperations: of('restore-r3-itemoperations.json') as object[],
      results: of('restore-r3-results.json') as Results,
      resourceList: of('restore-r3-resource-list.json') as Record<string, string[]>,
      volumeInfos: of('r3-volumeinfo.json') as RestoreVolumeInfo[],
    });
    expect(await ask(root, 'restore', 'r3')).toEqual({
      itemOperations: of('restore-r3-itemoperations.json'),
      results: of('restore-r3-results.json'),
      resourceList: of('restore-r3-resource-list.json'),
    });
  });

  it('says that a folder is foreign, as we do', async () => {
    const root = tempDirectory('bucket');
    const bucket = await openBucket(root);
    await bucket.put('photos/x', [Buffer.from('x')]);
    const problem = await locationProblem(bucket);
    await expect(ask(root, 'valid')).rejects.toThrow(problem ?? 'no problem');
  });
});
