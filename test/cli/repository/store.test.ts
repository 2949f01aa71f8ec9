import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStorage } from '../../../src/blob/index.ts';
import { type Fault, type RequestKind, startFaultProxy } from '../../support/fault-proxy.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { hasStore, type ObjectStore, startStore } from '../../support/object-stores.ts';
import { packagedProgram } from '../../support/package.ts';
import { makeTree } from '../../support/trees.ts';

const work = tempDirectory('cli-store');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();

interface Result {
  code: number | null;
  out: string;
  err: string;
}

/** Not `spawnSync`: the proxy of a test lives in this process. */
async function run(parameters: string[], env: NodeJS.ProcessEnv = {}): Promise<Result> {
  const child = spawn(BIN, parameters, {
    env: {
      ...process.env,
      LONGSHORE_PASSWORD: 'secret',
      NO_COLOR: '1',
      XDG_CACHE_HOME: work,
      ...env,
    },
  });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data: Buffer) => (out += data.toString()));
  child.stderr.on('data', (data: Buffer) => (err += data.toString()));
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { code, out, err };
}

describe('store check', () => {
  it('on a directory: a line each, and nothing left behind', async () => {
    const path = join(work, 'directory');
    fs.mkdirSync(path);
    const { code, out } = await run(['store', 'check', path]);
    expect(out.split('\n').map((line) => line.slice(0, 25).trim())).toEqual([
      'ok     list',
      'ok     put',
      'ok     get',
      'ok     range',
      'ok     metadata',
      'ok     clock',
      'ok     list new blobs',
      'ok     overwrite',
      'ok     put if absent',
      'ok     delete',
      'all checks passed',
      '',
    ]);
    expect(code).toBe(0);
    const files = fs.readdirSync(path, { recursive: true, withFileTypes: true });
    expect(files.filter((entry) => entry.isFile())).toEqual([]);
  });

  it.each([
    [['store', 'check', '/nowhere/at/all'], 1, /FAILED open .*no repository at/],
    [['store', 'check', 's3://bucket/?color=red'], 2, /is not a setting of s3:\/\/ locations/],
    [['store', 'check', 's3://b/?endpoint=http://127.0.0.1:1'], 1, /nothing is listening there/],
    [
      ['store', 'check', 's3://b/?endpoint=http://no-such-host.invalid'],
      1,
      /check the endpoint and DNS/,
    ],
  ])('%j: exit code %i', async (parameters, expected, message) => {
    const env = { AWS_ACCESS_KEY_ID: 'a', AWS_SECRET_ACCESS_KEY: 'b' };
    const { code, out, err } = await run(parameters, env);
    expect(code).toBe(expected);
    expect(out + err).toMatch(message);
  });
});

describe('access modes', () => {
  it('are those that a repository was created with, also for later commands', async () => {
    const path = join(work, 'modes');
    const source = join(work, 'modes-source');
    fs.mkdirSync(source);
    fs.writeFileSync(join(source, 'a'), 'x');
    const create = ['repository', 'create', '--repo', path, '--file-mode', '0660'];
    expect((await run([...create, '--dir-mode', '2770'])).code).toBe(0);
    expect((await run(['snapshot', 'create', source, '--repo', path, '--quiet'])).code).toBe(0);
    const entries = fs.readdirSync(path, { recursive: true, withFileTypes: true });
    expect(entries.length).toBeGreaterThan(5);
    for (const entry of entries) {
      const mode = fs.statSync(join(entry.parentPath, entry.name)).mode & 0o7777;
      expect(mode, entry.name).toBe(entry.isDirectory() ? 0o2770 : 0o660);
    }
  });

  it.each([
    [['--file-mode', '0777'], /--file-mode must be an octal mode/],
    [['--file-mode', 'rw-r'], /--file-mode must be an octal mode/],
    [['--dir-mode', '0750'], /--dir-mode needs --file-mode/],
    [['--repo', 's3://b/', '--file-mode', '0640'], /are for repositories in a directory/],
  ])('%j is refused', async (flags, message) => {
    const { code, err } = await run(['repository', 'create', '--repo', '/nowhere', ...flags]);
    expect(code).toBe(2);
    expect(err).toMatch(message);
  });
});

describe('store location', () => {
  it('prints where Velero keeps the repository of a namespace', async () => {
    const file = join(work, 'bsl.yaml');
    fs.writeFileSync(
      file,
      'apiVersion: velero.io/v1\nkind: BackupStorageLocation\nmetadata: {name: default, namespace: velero}\nspec:\n  provider: aws\n  objectStorage: {bucket: b, prefix: p}\n  config: {region: eu-west-1}\n',
    );
    const parameters = ['store', 'location', file, '--volume-namespace', 'app'];
    const { code, out } = await run([...parameters, '--credentials-file', '/run/cloud']);
    expect(out).toBe('s3://b/p/kopia/app/?region=eu-west-1&credentialsFile=%2Frun%2Fcloud\n');
    expect(code).toBe(0);
    fs.writeFileSync(file, 'kind: Pod');
    expect((await run(parameters)).err).toMatch(/not a BackupStorageLocation/);
    const missing = ['store', 'location', '/nope', '--volume-namespace', 'app'];
    expect((await run(missing)).err).toMatch(/cannot read \/nope/);
  });
});

describe.skipIf(!hasStore('minio'))('on a real S3 server', () => {
  let store: ObjectStore;
  let prefix = 0;
  const nextPrefix = (): string => `cli-${prefix++}`;
  beforeAll(async () => {
    store = await startStore('minio');
  });
  afterAll(() => store[Symbol.asyncDispose]());

  it.each([
    ['wrong key', { AWS_ACCESS_KEY_ID: 'wrong' }, /does not know this access key/],
    ['wrong secret', { AWS_SECRET_ACCESS_KEY: 'wrong' }, /secret key does not belong/],
    [
      'no credentials',
      { AWS_ACCESS_KEY_ID: '', HOME: '/nonexistent' },
      /no credentials were found/,
    ],
  ])('%s', async (_, env, message) => {
    const { code, out } = await run(['store', 'check', store.location(nextPrefix())], {
      ...store.environment,
      ...env,
    });
    expect(out).toMatch(message);
    expect(out).toMatch(/1 of 1 failed/);
    expect(code).toBe(1);
  });

  it('no such bucket', async () => {
    const location = store.location(nextPrefix()).replace('backups', 'nobody-made-it');
    const { code, out } = await run(['store', 'check', location], store.environment);
    expect(out).toMatch(/FAILED list .*there is no such bucket/);
    expect(code).toBe(1);
  });

  it.each<[string, (kind: RequestKind) => Fault | undefined, string[], RegExp]>([
    [
      'a list that is denied where gets are allowed',
      (kind) => (kind === 'list' ? 'denied' : undefined),
      ['list', 'list new blobs', 'delete'],
      /needed: s3:ListBucket on the bucket/,
    ],
    [
      'read-only credentials',
      (kind) => (kind === 'put' || kind === 'delete' ? 'denied' : undefined),
      ['put'],
      /needed: s3:PutObject/,
    ],
    [
      'deletes that are denied',
      (kind) => (kind === 'delete' ? 'denied' : undefined),
      ['delete'],
      /needed: s3:DeleteObject/,
    ],
  ])('%s', async (_, plan, failing, message) => {
    await using proxy = await startFaultProxy(store.endpoint, plan);
    const location = store.location(nextPrefix(), { endpoint: proxy.endpoint });
    const { code, out } = await run(['store', 'check', location, '--json'], store.environment);
    type Document = { ok: boolean; results: { name: string; ok: boolean }[] };
    const document = JSON.parse(out) as Document;
    const failed = document.results.filter(({ ok }) => !ok).map(({ name }) => name);
    expect(failed).toEqual(failing);
    expect(out).toMatch(message);
    expect(code).toBe(1);
  });

  it('a put whose answer is lost leaves nothing behind', async () => {
    const plan = (kind: RequestKind): Fault | undefined =>
      kind === 'put' ? 'lost-answer' : undefined;
    await using proxy = await startFaultProxy(store.endpoint, plan);
    const prefix = nextPrefix();
    const location = store.location(prefix, { endpoint: proxy.endpoint });
    const { code, out } = await run(['store', 'check', location], store.environment);
    expect(out).toMatch(/FAILED put/);
    expect(code).toBe(1);
    const { environment } = store;
    await using storage = await openStorage(store.location(prefix), { environment });
    expect(await Array.fromAsync(storage.listBlobs(''))).toEqual([]);
  });

  it('every command takes the location; rates, cache and memory are kept', async () => {
    const location = store.location(nextPrefix());
    const repo = ['--repo', location];
    const tree = join(work, 'tree');
    makeTree(tree, 'cli on s3');
    const ok = async (...parameters: string[]): Promise<string> => {
      const result = await run([...parameters, ...repo], store.environment);
      expect(result.err).toBe('');
      expect(result.code).toBe(0);
      return result.out;
    };
    await ok('repository', 'create');
    const again = await run(['repository', 'create', ...repo], store.environment);
    expect(again.code).toBe(1);
    const created = await ok('snapshot', 'create', tree, '--json', '--upload-limit', '2MiB');
    const { id } = JSON.parse(created) as { id: string };
    expect(await ok('snapshot', 'list')).toContain(id);
    const target = join(work, 'restored');
    await ok('snapshot', 'restore', id, target, '--cache-size', '0', '--requests-limit', '200');
    assertSameTree(tree, target);
    await ok('repository', 'verify', '--read-all');
    await ok('policy', 'set', '(global)', '--keep-latest', '3');
    await ok('repository', 'maintain', '--mode', 'full');
    expect(await ok('repository', 'status')).toContain('s3://backups/');
    const caches = fs.readdirSync(join(work, 'longshore'));
    expect(caches.length).toBeGreaterThan(0);
    await using storage = await openStorage(location, { environment: store.environment });
    expect(await Array.fromAsync(storage.listBlobs('longshore-check'))).toEqual([]);
  });

  it.each([
    [['--upload-limit', 'fast'], /--upload-limit "fast" is not a rate/],
    [['--requests-limit', '0'], /--requests-limit "0" is not a number above 0/],
    [['--stall-timeout', 'soon'], /--stall-timeout "soon" is not a duration/],
    [['--cache-size', 'big'], /--cache-size "big" is not a size/],
  ])('%j is refused', async (flags, message) => {
    const parameters = ['snapshot', 'list', '--repo', store.location('x'), ...flags];
    const { code, err } = await run(parameters, store.environment);
    expect(err).toMatch(message);
    expect(code).toBe(2);
  });
});
