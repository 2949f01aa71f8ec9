import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { signingKey } from '../../src/archive/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DELETE_BACKUP_REQUESTS,
  DOWNLOAD_REQUESTS,
  EVENTS,
  type KubeObject,
  NAMESPACES,
  SECRETS,
} from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { OwnServer } from '../support/own-server.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const PROGRAM = join(import.meta.dirname, '../../bin/longshore');
const namespace = 'velero';
const PASSWORD = { namespace, name: 'velero-repo-credentials' };
const PATIENT = { timeout: 60_000, interval: 200 };
const base64 = (text: string): string => Buffer.from(text).toString('base64');

describe.skipIf(!hasRealApi())('a location that encrypts, with a real server', () => {
  const directory = tempDirectory('encrypted-location');
  const bucket = join(directory, 'bucket');
  let api: RealApi;
  let server: OwnServer | undefined;

  beforeAll(async () => {
    api = await startRealApi(30_100, { hasVeleroCrds: true });
    const { client } = api;
    for (const name of [namespace, 'app']) await client.create(NAMESPACES, { metadata: { name } });
    const hidden = { metadata: { namespace: 'app', name: 'hidden' }, data: { a: 'in plain text' } };
    await client.create(CONFIG_MAPS, hidden);
    fs.mkdirSync(bucket);
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: {
        namespace,
        name: 'default',
        annotations: { 'longshore.io/encrypt-archive': 'true' },
      },
      spec: {
        provider: 'velero.io/fs',
        objectStorage: { bucket: 'b' },
        default: true,
        config: { fspath: bucket },
      },
    });
    await client.create(SECRETS, {
      metadata: PASSWORD,
      data: { 'repository-password': base64('static-passw0rd') },
    });
    server = OwnServer.start({
      program: PROGRAM,
      parameters: ['server', '--namespace', namespace, '--metrics-address', '127.0.0.1:0'],
      env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: directory, TMPDIR: directory },
      log: join(directory, 'server.log'),
    });
  }, 240_000);
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  }, 60_000);

  const longshore = async (...words: string[]): Promise<string> => {
    const env = { ...process.env, KUBECONFIG: api.kubeconfig, HOME: directory };
    return (await promisify(execFile)(PROGRAM, [...words, '-n', namespace], { env })).stdout;
  };
  /** Replaces all data of the Secret, like a tool that manages it. */
  const applyPassword = async (password: string): Promise<void> => {
    const { metadata } = await api.client.get(SECRETS, PASSWORD);
    const data = { 'repository-password': base64(password) };
    await api.client.replace(SECRETS, { metadata, data });
  };
  const backup = async (name: string): Promise<KubeObject & { readonly status?: object }> => {
    // An unknown kind causes a warning, which describe reads from an encrypted file.
    const spec = { includedNamespaces: ['app'], excludedResources: ['strangers'] };
    await api.client.create(BACKUPS, { metadata: { namespace, name }, spec });
    const now = () => api.client.get(BACKUPS, { namespace, name });
    await expect
      .poll(async () => ((await now()) as { status?: { phase?: string } }).status?.phase, PATIENT)
      .toMatch(/^(Completed|FailedValidation|Failed|PartiallyFailed)$/);
    return now();
  };

  it('refuses a backup with the password that everybody knows', async () => {
    const { status } = await backup('refused');
    expect(status).toMatchObject({ phase: 'FailedValidation' });
    expect(JSON.stringify(status)).toContain('nothing is encrypted with static-passw0rd');
  }, 120_000);

  it('has backups that Longshore alone shows, rehearses and restores', async () => {
    await applyPassword('a secret');
    const { status, metadata } = await backup('b1');
    expect(status).toMatchObject({ phase: 'Completed' });
    expect(metadata.annotations).toMatchObject({
      'longshore.io/sealed-journal': 'true',
      'longshore.io/signed': 'true',
    });
    const tarball = fs.readFileSync(join(bucket, 'backups/b1/b1.tar.gz'));
    expect(tarball.toString('latin1', 0, 8)).toBe('LSCRYPT1');
    expect(await longshore('backup', 'describe', 'b1', '--details')).toMatch(
      /Warnings:\n.*strangers/,
    );
    expect(await longshore('backup', 'logs', 'b1')).toContain('Starting backup');
    const copy = ['restore', 'create', '--from-backup', 'b1', '--namespace-mappings', 'app:copy'];
    expect(await longshore(...copy, '--dry-run')).toContain('hidden');
    await longshore(...copy, '--wait');
    const restored = await api.client.get(CONFIG_MAPS, { namespace: 'copy', name: 'hidden' });
    expect(restored.data).toEqual({ a: 'in plain text' });
  }, 180_000);

  it('tells by an Event why a file cannot be downloaded', async () => {
    await api.client.create(DOWNLOAD_REQUESTS, {
      metadata: { namespace, name: 'd1' },
      spec: { target: { kind: 'BackupLog', name: 'b1' } },
    });
    const events = async (): Promise<string> =>
      (await api.client.list(EVENTS, { namespace })).map(({ message }) => message).join('\n');
    await expect.poll(events, PATIENT).toContain('is encrypted, and only Longshore can read it');
  }, 90_000);

  it('shows and deletes a backup whose password a tool has replaced', async () => {
    await applyPassword('another');
    expect((await backup('b2')).status).toMatchObject({ phase: 'Completed' });
    const { data } = await api.client.get(SECRETS, { namespace, name: 'longshore-archive-keys' });
    const keys = await Promise.all(['a secret', 'another'].map(signingKey));
    const lines = keys.map((key) => `${key.toString('hex')}\n`).join('');
    expect(Buffer.from(data?.keys ?? '', 'base64').toString()).toBe(lines);
    expect(await longshore('backup', 'describe', 'b1', '--details')).toMatch(
      /Warnings:\n.*strangers/,
    );
    await longshore('backup', 'delete', 'b1', '--confirm', '--wait');
    await expect
      .poll(() => fs.existsSync(join(bucket, 'backups/b1/b1.tar.gz')), PATIENT)
      .toBe(false);
    expect(await api.client.find(BACKUPS, { namespace, name: 'b1' })).toBeUndefined();
    expect(await api.client.list(DELETE_BACKUP_REQUESTS, { namespace })).toEqual([]);
  }, 180_000);
});
