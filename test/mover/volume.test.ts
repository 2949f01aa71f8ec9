import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { backupVolume, restoreVolume, volumeSource } from '../../src/mover/index.ts';
import type { Progress } from '../../src/mover/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { getDefinedPolicy, listSnapshots } from '../../src/snapshot/index.ts';
import { createTest, openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const root = fs.mkdtempSync(join(tmpdir(), 'longshore-mover-test-'));
const source = volumeSource('app', 'data');

describe('a volume', () => {
  let repository: Repository;
  const volume = join(root, 'volume');
  beforeAll(async () => {
    await createTest(join(root, 'repo'));
    repository = await openTest(join(root, 'repo'), { threads: true });
    makeTree(volume, 'mover');
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(root, { recursive: true, force: true });
  });

  const options = (progress: Progress[] = []) => ({
    repository,
    path: volume,
    isBlock: false,
    logger: silentLogger,
    signal: new AbortController().signal,
    config: {},
    onProgress: (now: Progress) => void progress.push(now),
    progressIntervalMs: 10,
    stallMs: 60_000,
  });
  const upload = { sourceNamespace: 'app', sourcePvc: 'data', operationId: 'du-1' };

  it('is recorded as Velero records it: source, tags, pin, policy; progress ends at the total', async () => {
    const seen: Progress[] = [];
    const result = await backupVolume({ ...options(seen), ...upload });
    const [snapshot] = await listSnapshots(repository, { source });
    expect(snapshot).toMatchObject({
      id: result.snapshotId,
      description: 'Kopia Uploader',
      pins: ['velero-pin'],
      source: {
        host: 'default',
        userName: 'default',
        path: 'snapshot-data-upload-download/kopia/app/data',
      },
      tags: {
        'snapshot-requester': 'snapshot-data-upload-download',
        'snapshot-uploader': 'kopia',
        'velero.io/async-operation-id': 'du-1',
      },
    });
    const policy = await getDefinedPolicy(repository, source);
    expect(policy?.policy).toMatchObject({
      retention: { keepLatest: 2 ** 31 - 1, keepAnnual: 2 ** 31 - 1 },
      compression: { compressorName: 'none' },
      scheduling: { manual: true },
      errorHandling: { ignoreUnknownTypes: true },
    });
    expect(seen.map(({ doneBytes }) => doneBytes)).toEqual(
      seen.map(({ doneBytes }) => doneBytes).toSorted((a, b) => a - b),
    );
    expect(seen.at(-1)).toEqual({ totalBytes: result.totalBytes, doneBytes: result.totalBytes });

    const target = join(root, 'restored');
    fs.mkdirSync(target);
    const restored = await restoreVolume({
      ...options(),
      path: target,
      snapshotId: result.snapshotId,
    });
    expect(restored.totalBytes).toBe(result.totalBytes);
    expect(spawnSync('diff', ['-r', '--no-dereference', volume, target]).status).toBe(0);
  });

  it('that is canceled leaves part of a snapshot with no pin, and says that it was', async () => {
    const abort = new AbortController();
    abort.abort(new Error('enough'));
    const canceled = backupVolume({
      ...options(),
      ...upload,
      sourcePvc: 'canceled',
      signal: abort.signal,
    });
    await expect(canceled).rejects.toThrow(/canceled|enough/);
    for (const snapshot of await listSnapshots(repository, {
      source: volumeSource('app', 'canceled'),
    })) {
      expect(snapshot.incomplete).toBeTruthy();
      expect(snapshot.pins ?? []).toEqual([]);
    }
  });

  it('that is not there, or of the other mode, is an error that says so', async () => {
    await expect(backupVolume({ ...options(), ...upload, path: '/nowhere' })).rejects.toThrow(
      /the volume is not there: \/nowhere/,
    );
    await expect(backupVolume({ ...options(), ...upload, isBlock: true })).rejects.toThrow(
      /is not a block device/,
    );
  });

  it.each([
    ['ParallelFilesUpload', 'many', /"many", not a whole number/],
    ['WriteSparseFiles', 'perhaps', /"perhaps", not true or false/],
  ])('with setting %s=%s is refused', async (key, value, message) => {
    const config = { [key]: value };
    const task = key.startsWith('P')
      ? backupVolume({ ...options(), ...upload, config })
      : restoreVolume({ ...options(), config, snapshotId: '0'.repeat(32) });
    await expect(task).rejects.toThrow(message);
  });

  it('whose mover makes no progress is given up', async () => {
    const stuck = backupVolume({ ...options(), ...upload, sourcePvc: 'stuck', stallMs: 1 });
    await expect(stuck).rejects.toThrow(/no byte was read or stored for \d+ s/);
  });
});

const isRoot = process.getuid?.() === 0;
it.skipIf(!isRoot && process.env.REQUIRE_PEERS !== '1')(
  'one file that cannot be read fails the backup, and no snapshot looks whole',
  () => {
    const folder = fs.mkdtempSync(join(tmpdir(), 'longshore-unreadable-'));
    try {
      fs.mkdirSync(join(folder, 'volume'));
      fs.writeFileSync(join(folder, 'volume/open'), 'text');
      fs.writeFileSync(join(folder, 'volume/closed'), 'secret', { mode: 0o000 });
      fs.chmodSync(folder, 0o755);
      fs.mkdirSync(join(folder, 'repo'));
      fs.chownSync(join(folder, 'repo'), 65_534, 65_534);
      // Root reads everything: the backup runs as somebody else.
      const script = new URL('./backup-as-nobody.ts', import.meta.url).pathname;
      const { stdout } = spawnSync(process.execPath, [script, folder], {
        uid: 65_534,
        gid: 65_534,
        encoding: 'utf8',
      });
      const { message, code, snapshots } = JSON.parse(stdout) as {
        message: string;
        code: string;
        snapshots: number;
      };
      expect(code).toBe('VOLUME_INCOMPLETE');
      expect(message).toMatch(/Error when processing closed: .*permission denied/i);
      expect(snapshots).toBe(0);
    } finally {
      fs.rmSync(folder, { recursive: true, force: true });
    }
  },
);
