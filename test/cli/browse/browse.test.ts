import { execFile, execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DEV_PASSWORD } from '../../../src/cli/demo/dev-environment.ts';
import { BACKUPS, DATA_UPLOADS } from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { imageOf } from '../../device-files/image.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { sharedPackage } from '../../support/package.ts';

const run = promisify(execFile);
const work = tempDirectory('browse');
const LONG = `${'long-'.repeat(30)}ä`;

describe('longshore browse', () => {
  let cluster: TestCluster;
  let source: string;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    await cluster.makeNamespace('app');
    source = await cluster.makeVolume('app', 'data');
    fs.mkdirSync(join(source, 'etc/deep'), { recursive: true });
    fs.writeFileSync(join(source, 'etc/hosts'), '127.0.0.1 localhost\n', { mode: 0o640 });
    fs.writeFileSync(join(source, 'etc/deep/empty'), '');
    fs.writeFileSync(join(source, 'etc/deep', LONG), Buffer.alloc(3_000_000, 'x'));
    fs.symlinkSync('../hosts', join(source, 'etc/deep/link'));
    fs.symlinkSync('ö'.repeat(80), join(source, 'etc/deep/far'));
    execFileSync('mkfifo', [join(source, 'etc/pipe')]);
    fs.lutimesSync(join(source, 'etc/hosts'), 1_700_000_000.123, 1_700_000_000.123);
    const snapshot = await cluster.makeSnapshot('app', 'data');
    const agent = cluster.startAgent('node-1');
    await cluster.createUpload('moved', { namespace: 'app', pvc: 'data', snapshot });
    await cluster.waitUpload('moved');
    await agent.stop();
    const upload = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name: 'moved' });
    await cluster.client.create(BACKUPS, {
      metadata: { namespace: NAMESPACE, name: 'nightly' },
      spec: { storageLocation: 'default' },
      status: { phase: 'Completed' },
    });
    fs.writeFileSync(join(work, 'disk'), imageOf('journal-1'));
    const repository = join(cluster.cluster.storageDirectory, 'kopia/app');
    const words = ['snapshot', 'create', join(work, 'disk'), '--block', '--json'];
    const { stdout: made } = await run(BIN, [...words, '--repo', repository], {
      env: { ...process.env, LONGSHORE_PASSWORD: DEV_PASSWORD },
    });
    const metadata = { name: 'nightly', namespace: NAMESPACE, uid: 'u' };
    put(
      'velero-backup.json',
      JSON.stringify({
        apiVersion: 'velero.io/v1',
        kind: 'Backup',
        metadata,
        spec: {},
        status: { phase: 'Completed' },
      }),
    );
    const moved = { uploaderType: 'kopia', snapshotHandle: upload.status?.snapshotID, size: 5 };
    const infos = [
      {
        pvcName: 'data',
        pvcNamespace: 'app',
        backupMethod: 'CSISnapshot',
        snapshotDataMoved: true,
        snapshotDataMovementInfo: moved,
      },
      {
        pvcName: 'kept',
        pvcNamespace: 'app',
        backupMethod: 'CSISnapshot',
        csiSnapshotInfo: { size: 7 },
      },
      {
        pvcName: 'disk',
        pvcNamespace: 'app',
        backupMethod: 'CSISnapshot',
        snapshotDataMoved: true,
        snapshotDataMovementInfo: {
          ...moved,
          snapshotHandle: (JSON.parse(made) as { id: string }).id,
        },
      },
      { pvcName: 'twice', pvcNamespace: 'app', skipped: true, skippedReason: 'a policy says so' },
      { pvcName: 'twice', pvcNamespace: 'other', skipped: true },
      {
        pvcName: 'gone',
        pvcNamespace: 'app',
        backupMethod: 'PodVolumeBackup',
        pvbInfo: { podNamespace: 'app', uploaderType: 'kopia', snapshotHandle: 'a'.repeat(32) },
      },
    ];
    put('nightly-volumeinfo.json.gz', gzipSync(JSON.stringify(infos)));
    put('nightly.tar.gz', gzipSync(''));
  }, 120_000);
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    fs.rmSync(work, { recursive: true, force: true });
  });

  function put(file: string, bytes: string | Buffer): void {
    const folder = join(cluster.cluster.storageDirectory, 'backups/nightly');
    fs.mkdirSync(folder, { recursive: true });
    fs.writeFileSync(join(folder, file), bytes);
  }
  const BIN = join(sharedPackage(), 'bin/longshore');
  const wordsOf = (...parameters: string[]): string[] => [
    ...['browse', 'nightly', ...parameters],
    ...['--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE],
  ];
  const browse = (...parameters: string[]) => run(BIN, wordsOf(...parameters));
  async function refused(...parameters: string[]): Promise<string> {
    const error: unknown = await browse(...parameters).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    return (error as { stderr?: string } | undefined)?.stderr ?? '';
  }

  it('lists the volumes of a backup, and says into which nobody can look', async () => {
    const { stdout } = await browse();
    expect(stdout).toMatch(/app\/data +data movement +5 B +can be browsed/);
    expect(stdout).toMatch(/app\/kept +CSI snapshot +7 B +its snapshot stays in the storage/);
    expect(stdout).toMatch(/app\/twice +not backed up +it was skipped: a policy says so/);
    const { stdout: json } = await browse('-o', 'json');
    expect((JSON.parse(json) as { name: string }[]).map(({ name }) => name)).toEqual([
      ...['app/data', 'app/disk', 'app/gone', 'app/kept', 'app/twice', 'other/twice'],
    ]);
  });

  it('lists directories, and writes a file', async () => {
    expect((await browse('app/data')).stdout).toMatch(/^drwx.* etc\/\n$/);
    const { stdout } = await browse('data', '/etc', '-r', '-o', 'json');
    const entries = JSON.parse(stdout) as { path: string; type: string }[];
    expect(entries.map(({ path }) => path)).toEqual(expect.arrayContaining(['hosts', 'deep/link']));
    expect((await browse('data', 'etc/hosts', '--cat')).stdout).toBe('127.0.0.1 localhost\n');
    expect((await browse('data', 'etc/hosts')).stdout).toMatch(/^-rw-r----- +20 /);
  });

  it('writes a directory as an archive that tar unpacks to the same', async () => {
    const child = spawn(BIN, wordsOf('data', '/etc', '--tar'), {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const parts: Buffer[] = [];
    let said = '';
    child.stdout.on('data', (part: Buffer) => parts.push(part));
    child.stderr.on('data', (part: Buffer) => (said += part.toString()));
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(0);
    const target = join(work, 'unpacked');
    fs.mkdirSync(target);
    fs.writeFileSync(join(work, 'etc.tar'), Buffer.concat(parts));
    execFileSync('tar', ['-xpf', join(work, 'etc.tar'), '-C', target]);
    const stateOf = (root: string): string[] =>
      (fs.readdirSync(root, { recursive: true }) as string[])
        .filter((name) => name !== 'pipe')
        .sort()
        .map((name) => {
          const path = join(root, name);
          const { mode, uid, gid, mtimeMs, size } = fs.lstatSync(path);
          const isLink = fs.lstatSync(path).isSymbolicLink();
          const content = isLink
            ? fs.readlinkSync(path)
            : fs.statSync(path).isFile()
              ? fs.readFileSync(path, 'hex')
              : '';
          return JSON.stringify([
            name,
            mode,
            uid,
            gid,
            mtimeMs,
            isLink || size,
            content.slice(0, 99),
          ]);
        });
    expect(stateOf(target)).toEqual(stateOf(join(source, 'etc')));
    expect(said).toBe(
      'longshore: pipe is neither a file, a directory nor a symbolic link, and is left out\n',
    );
    const one = await run(BIN, wordsOf('data', '/etc/hosts', '--tar'), { encoding: 'buffer' });
    fs.writeFileSync(join(work, 'hosts.tar'), one.stdout);
    expect(execFileSync('tar', ['-xOf', join(work, 'hosts.tar'), 'hosts']).toString()).toBe(
      '127.0.0.1 localhost\n',
    );
  });

  it('shows the files of a raw volume, and gives the device', async () => {
    const { stdout, stderr } = await browse('disk');
    expect(stdout).toMatch(
      /^drwx.* a\/\ndrwx.* lost\+found\/\n-rw.* 4096 .* escaped\n-rw.* 4096 .* new\n$/,
    );
    expect(stderr).toBe(
      'longshore: volume app/disk: it was in use when the snapshot was taken: files that were being written may be incomplete\n',
    );
    expect((await browse('disk', 'new', '--cat')).stdout).toBe('N'.repeat(4096));
    const device = await run(BIN, wordsOf('disk', '--cat'), {
      encoding: 'buffer',
      maxBuffer: 64 << 20,
    });
    expect(device.stdout.equals(imageOf('journal-1'))).toBe(true);
  });

  it.each([
    [['nope'], 'backup nightly has no volume "nope"; "longshore browse nightly" lists'],
    [['nowhere/data'], 'backup nightly has no volume "nowhere/data"'],
    [['app/data', '/etc/nope'], 'there is no /etc/nope in volume app/data'],
    [['twice'], 'there are 2 volumes "twice": app/twice, other/twice'],
    [['kept'], 'nobody can look into volume app/kept: its snapshot stays in the storage'],
    [['data', '/etc/nope'], 'there is no /etc/nope in volume app/data'],
    [['data', '/etc', '--cat'], 'app/data:/etc is a directory: use --tar'],
    [['gone'], 'there is neither a snapshot nor an object'],
    [['--tar'], '--tar needs a volume of the backup'],
    [['data', '--tar', '--cat'], '--cat and --tar contradict each other'],
  ])('%j is refused in words', async (parameters, text) => {
    expect(await refused(...parameters)).toContain(text);
  });

  it('knows no backup that is not there', async () => {
    const words = wordsOf().map((word) => (word === 'nightly' ? 'other' : word));
    await expect(run(BIN, words)).rejects.toThrow('there is no Backup velero/other');
  });
});
