import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  EncryptingBucket,
  ScratchFile,
  signingBy,
  signingKey,
  signWith,
  TarballWriter,
} from '../../../src/archive/index.ts';
import { openBucket } from '../../../src/blob/index.ts';
import { exportBackup } from '../../../src/cli/backups/export.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
  SECRETS,
} from '../../../src/kube/index.ts';
import { tempDirectory } from '../../support/kopia.ts';

const directory = tempDirectory('export');
const kubeconfig = join(directory, 'kubeconfig');
const namespace = 'velero';
const PROGRAM = join(import.meta.dirname, '../../../bin/longshore');
const PASSWORD = 'a secret';

describe('an encrypted backup for others', () => {
  let server: ApiServer;
  let client: KubeClient;

  beforeAll(async () => {
    server = await ApiServer.start();
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: namespace } });
    const data = { 'repository-password': Buffer.from(PASSWORD).toString('base64') };
    await client.create(SECRETS, {
      metadata: { namespace, name: 'velero-repo-credentials' },
      data,
    });
    const annotations = { 'longshore.io/encrypt-archive': 'true' };
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace, name: 'default', annotations },
      spec: { provider: 'velero.io/fs', config: { fspath: join(directory, 'bucket') } },
    });
    const backup = await client.create(BACKUPS, {
      metadata: { namespace, name: 'b1' },
      spec: { storageLocation: 'default' },
      status: { phase: 'Completed', startTimestamp: '2026-11-29T00:00:00Z' },
    });
    await store(backup);
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  async function store(backup: object, name = 'b1', password = PASSWORD): Promise<void> {
    const keys = await signingBy({ current: password, others: [], earlierKeys: [] });
    fs.mkdirSync(join(directory, 'bucket'), { recursive: true });
    const raw = await openBucket(`file://${join(directory, 'bucket')}/`);
    await using bucket = new EncryptingBucket(raw, { keys, encrypts: true });
    signWith(bucket, { signing: keys, isRequired: false });
    await using tarball = await TarballWriter.begin(directory);
    await tarball.add('resources/secrets/namespaces/a/b.json', Buffer.from('{"data":"hidden"}'));
    await using contents = await tarball.finish();
    await using log = await ScratchFile.of(directory, [Buffer.from('log')]);
    await new BackupArchive(bucket).put(name, {
      metadata: { apiVersion: 'velero.io/v1', kind: 'Backup', ...backup },
      contents,
      log,
      itemOperations: [],
      volumeInfos: [],
      results: {},
      resourceList: {},
      podVolumeBackups: [],
      volumeSnapshots: [],
    });
  }

  it('is written as plain files under their keys, and no file is overwritten', async () => {
    const place = join(directory, 'bucket/backups/b1');
    expect(fs.readFileSync(join(place, 'b1.tar.gz')).toString('latin1', 0, 8)).toBe('LSCRYPT1');
    const target = join(directory, 'plain');
    await exportBackup('b1', { kubeconfig, namespace, directory: target });
    const files = fs.readdirSync(join(target, 'backups/b1'));
    expect(files.sort()).toEqual(fs.readdirSync(place).sort());
    const tarball = fs.readFileSync(join(target, 'backups/b1/b1.tar.gz'));
    expect(gunzipSync(tarball).includes('{"data":"hidden"}')).toBe(true);
    // The signature covers the plain files: it is right there, too.
    const keys = await signingBy({ current: PASSWORD, others: [], earlierKeys: [] });
    await using plain = await openBucket(`file://${target}/`);
    signWith(plain, { signing: keys, isRequired: true });
    expect((await new BackupArchive(plain).open('b1')).signature).toBe('signed');
    await expect(
      exportBackup('b1', { kubeconfig, namespace, directory: target }),
    ).rejects.toMatchObject({ code: 'EEXIST' });
  });

  it('is refused if a plain file took the place of an encrypted one', async () => {
    const tarball = join(directory, 'bucket/backups/b1/b1.tar.gz');
    const before = fs.readFileSync(tarball);
    fs.writeFileSync(tarball, 'put by somebody else');
    const target = join(directory, 'forged');
    const asked = exportBackup('b1', { kubeconfig, namespace, directory: target });
    await expect(asked).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
    expect(fs.readdirSync(join(target, 'backups/b1'))).not.toContain('b1.tar.gz');
    fs.writeFileSync(tarball, before);
  });

  it('is opened by the keys that another cluster adds to its Secret', async () => {
    const run = promisify(execFile);
    const cluster = ['--kubeconfig', kubeconfig, '--namespace', namespace];
    const printed = await run(PROGRAM, ['repository', 'archive-keys', ...cluster]);
    const own = (await signingKey(PASSWORD)).toString('hex');
    expect(printed.stdout.trim().split('\n')).toEqual([own]);
    const add = async (input: string): Promise<string> => {
      const adding = run(PROGRAM, ['repository', 'add-archive-keys', ...cluster]);
      adding.child.stdin?.end(input);
      return (await adding).stdout;
    };
    const other = (await signingKey('another')).toString('hex');
    expect(await add(`${other}\n`)).toContain('1 keys are new');
    expect(await add(`${other}\n`)).toContain('0 keys are new');
    const ref = { namespace, name: 'longshore-archive-keys' };
    const secret = await client.get(SECRETS, ref);
    const held = Buffer.from(secret.data?.keys ?? '', 'base64');
    expect(held.toString()).toBe(`${other}\n`);
    await expect(add('no key')).rejects.toThrow('64 hexadecimal digits');
  }, 60_000);

  it('is opened by its passwords alone, also by an earlier one, when the cluster is gone', async () => {
    const stored = await client.get(BACKUPS, { namespace, name: 'b1' });
    const after = { ...stored, metadata: { ...stored.metadata, name: 'b2', uid: 'u2' } };
    await store(after, 'b2', 'the second one');
    const files = [PASSWORD, 'the second one'].map((password, at) => {
      const file = join(directory, `password-${at}`);
      fs.writeFileSync(file, `${password}\n`);
      return ['--password-file', file];
    });
    const run = promisify(execFile);
    const gone = { env: { ...process.env, KUBECONFIG: '/nowhere' } };
    const printed = await run(PROGRAM, ['repository', 'archive-keys', ...files.flat()], gone);
    const keys = await Promise.all([PASSWORD, 'the second one'].map(signingKey));
    expect(printed.stdout).toBe(`${keys.map((key) => key.toString('hex')).join('\n')}\n`);
    const keysFile = join(directory, 'keys');
    fs.writeFileSync(keysFile, printed.stdout);
    const bucket = `file://${join(directory, 'bucket')}/`;
    for (const [how, opens] of [
      ['keys', ['--keys-file', keysFile]],
      ['passwords', files.flat()],
    ] as const) {
      for (const name of ['b1', 'b2']) {
        const target = join(directory, `gone-${how}`);
        const words = ['backup', 'export', name, '--directory', target, '--bucket', bucket];
        await run(PROGRAM, [...words, ...opens], gone);
        const tarball = fs.readFileSync(join(target, `backups/${name}/${name}.tar.gz`));
        expect(gunzipSync(tarball).includes('{"data":"hidden"}')).toBe(true);
      }
    }
    const words = ['backup', 'export', 'b1', '--directory', join(directory, 'none')];
    const one = files[1] ?? [];
    await expect(run(PROGRAM, [...words, '--bucket', bucket, ...one], gone)).rejects.toThrow(
      'is encrypted with a repository password that is not here',
    );
    await expect(run(PROGRAM, [...words, ...one], gone)).rejects.toThrow('need --bucket');
  }, 120_000);
});
