import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import type { BlobStorage } from '../../../src/blob/index.ts';
import type { BackupStorageLocation } from '../../../src/kube/index.ts';
import { loadLocationFiles } from '../../../src/repository-access/index.ts';
import { parseBackupStorageLocation } from '../../../src/config/index.ts';
import {
  assertValidStore,
  CHECK_MS,
  LocationChecks,
} from '../../../src/server/locations/location-checks.ts';
import { planSingleDefault } from '../../../src/server/locations/location-controller.ts';
import { openLocation } from '../../../src/server/locations/location-stores.ts';
import { tempDirectory } from '../../support/kopia.ts';

const signal = new AbortController().signal;

function locationOf(name: string, spec: object = {}, createdAt = 0): BackupStorageLocation {
  return {
    metadata: { name, namespace: 'velero', creationTimestamp: new Date(createdAt).toISOString() },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' }, ...spec },
  } as never;
}

function storeOf(folders: AsyncIterable<string> | Iterable<string>): BlobStorage {
  return { listFolders: () => folders, close: () => Promise.resolve() } as never;
}

describe('what lies at the top of a location', () => {
  it.each([
    [[], undefined],
    [['backups', 'restores', 'restic', 'metadata', 'plugins', 'kopia'], undefined],
    [['backups', 'photos'], 'Backup store contains invalid top-level directories: [photos]'],
    [['a', 'b', 'c'], 'Backup store contains invalid top-level directories: [a b c]'],
    [
      ['a', 'b', 'kopia', 'c', 'd'],
      'Backup store contains 4 invalid top-level directories: [a b c ...]',
    ],
  ])('%j', async (folders, message) => {
    const found = assertValidStore(storeOf(folders), signal);
    if (message === undefined) await found;
    else await expect(found).rejects.toMatchObject({ code: 'FOREIGN_FOLDERS', message });
  });
});

describe('a location with a retention', () => {
  const locks = (hasObjectLock: boolean, isLockable?: boolean): Promise<void> =>
    assertValidStore(
      {
        ...storeOf([]),
        displayName: 's3://b/',
        hasObjectLock,
        isLockable: () => Promise.resolve(isLockable),
      },
      signal,
      { wantsLocks: true },
    );
  it('is refused where nothing can be locked, with the reason', async () => {
    await expect(locks(true, false)).rejects.toMatchObject({
      code: 'NO_OBJECT_LOCK',
      message:
        'nothing can be locked in s3://b/, as annotation longshore.io/retention asks for: its bucket has no object lock. Use another bucket, or take the annotation off',
    });
    await expect(locks(false)).rejects.toThrow(/it knows no locks/);
  });
  it('is taken where objects can be locked, and where nobody may ask', async () => {
    await locks(true, true);
    await locks(true, undefined);
    await assertValidStore({ ...storeOf([]), hasObjectLock: false }, signal);
  });
  it('is looked at by its annotation', async () => {
    const checks = new LocationChecks({
      client: {} as never,
      namespace: 'velero',
      directory: tempDirectory('locks'),
      defaultCredentials: () => undefined,
      openStorage: () =>
        Promise.resolve({ ...storeOf([]), displayName: 'x', hasObjectLock: false } as never),
    });
    const location = locationOf('l', { credential: undefined });
    await checks.check('velero/l', location, signal);
    const annotations = { 'longshore.io/retention': '48h' };
    const locked = { ...location, metadata: { ...location.metadata, annotations } };
    await expect(checks.check('velero/l', locked, signal)).rejects.toMatchObject({
      code: 'NO_OBJECT_LOCK',
    });
  });
});

describe('the default location', () => {
  const kept = (...locations: BackupStorageLocation[]) => {
    const plan = planSingleDefault(locations);
    return plan && [plan.kept, ...plan.others].map(({ metadata }) => metadata.name);
  };
  const isDefault = { default: true };
  it('is left alone where it is the only one', () => {
    expect(kept(locationOf('a'), locationOf('b', isDefault))).toBeUndefined();
    expect(kept()).toBeUndefined();
  });
  it('is the one that was created last, of those of one second the first by name', () => {
    expect(kept(locationOf('a', isDefault, 2000), locationOf('b', isDefault, 5000))).toEqual([
      ...['b', 'a'],
    ]);
    expect(kept(locationOf('b', isDefault), locationOf('a', isDefault))).toEqual(['a', 'b']);
  });
  it('is none that is being deleted', () => {
    const going = locationOf('a', isDefault, 9000);
    going.metadata.deletionTimestamp = new Date(0).toISOString();
    expect(kept(going, locationOf('b', isDefault))).toBeUndefined();
  });
});

describe('files of locations', () => {
  const options = (secrets: Record<string, Record<string, string>>, directory: string) => ({
    client: {
      get: (_: unknown, { name }: { name: string }) =>
        secrets[name]
          ? Promise.resolve({ data: secrets[name] })
          : Promise.reject(new CodedError('KUBE_NOT_FOUND', `secrets "${name}" not found`)),
    } as never,
    namespace: 'velero',
    directory,
    signal,
    defaultCredentials: () => undefined,
  });
  const base64 = (text: string): string => Buffer.from(text).toString('base64');
  const filesOf = (spec: object, given: ReturnType<typeof options>) =>
    loadLocationFiles(
      given,
      parseBackupStorageLocation({ ...locationOf('l', spec), kind: 'BackupStorageLocation' }),
    );

  it('are of one Secret each, however its name and key are put together', async () => {
    const given = options(
      { 'a-b': { c: base64('one') }, a: { 'b-c': base64('two') } },
      tempDirectory('files'),
    );
    const files = await Promise.all(
      [
        { name: 'a-b', key: 'c' },
        { name: 'a', key: 'b-c' },
      ].map((credential) => filesOf({ credential }, given)),
    );
    const texts = files.map(({ credentialsFile = '' }) => fs.readFileSync(credentialsFile, 'utf8'));
    expect(texts).toEqual(['one', 'two']);
    for (const { credentialsFile = '' } of files) {
      expect(fs.statSync(credentialsFile).mode & 0o777).toBe(0o600);
    }
  });
  it('are written anew when the Secret changes, and not before', async () => {
    const secrets = { s: { k: base64('one') } };
    const given = options(secrets, tempDirectory('files'));
    const spec = { credential: { name: 's', key: 'k' } };
    const { credentialsFile = '' } = await filesOf(spec, given);
    const before = fs.statSync(credentialsFile).ino;
    await filesOf(spec, given);
    expect(fs.statSync(credentialsFile).ino).toBe(before);
    secrets.s.k = base64('two');
    await filesOf(spec, given);
    expect(fs.readFileSync(credentialsFile, 'utf8')).toBe('two');
    expect(fs.readdirSync(join(credentialsFile, '..'))).toEqual(['s_k']);
  });
  it('keep what the failure of a Secret means', async () => {
    const given = options({}, tempDirectory('files'));
    await expect(filesOf({ credential: { name: 's', key: 'k' } }, given)).rejects.toMatchObject({
      code: 'KUBE_NOT_FOUND',
      message: 'unable to get credentials: secrets "s" not found',
    });
  });
});

describe('checks of locations', () => {
  afterEach(() => {
    vi.useRealTimers();
  });
  const checksWith = (open: (bucket: string) => BlobStorage): LocationChecks =>
    new LocationChecks({
      client: undefined as never,
      namespace: 'velero',
      directory: '/nowhere',
      defaultCredentials: () => undefined,
      openStorage: (location) => Promise.resolve(open(new URL(location).host)),
    });
  const never = {
    [Symbol.asyncIterator]: () => ({ next: () => new Promise<never>(() => undefined) }),
  };

  it('end where nothing else ends, and none is begun beside one that still hangs', async () => {
    vi.useFakeTimers();
    let opened = 0;
    const checks = checksWith(() => {
      opened++;
      return storeOf(never);
    });
    const first = checks.check('k', locationOf('l'), signal).catch((error: unknown) => error);
    await vi.advanceTimersByTimeAsync(CHECK_MS);
    expect(await first).toMatchObject({
      code: 'LOCATION_SILENT',
      message: 'no answer within 30 s',
    });
    const second = checks.check('k', locationOf('l'), signal).catch((error: unknown) => error);
    await vi.advanceTimersByTimeAsync(1);
    expect(await second).toMatchObject({
      message: 'an earlier check still waits for an answer',
    });
    expect(opened).toBe(1);
  });
  it('begin while forty others hang', async () => {
    vi.useFakeTimers();
    const checks = checksWith((bucket) => storeOf(bucket === 'b' ? never : ['backups']));
    for (let i = 0; i < 40; i++) {
      checks.check(`k${i}`, locationOf(`l${i}`), signal).catch(() => undefined);
    }
    const well = locationOf('well', { objectStorage: { bucket: 'well' } });
    let isDone = false;
    void checks.check('well', well, signal).then(() => (isDone = true));
    await vi.advanceTimersByTimeAsync(2100);
    expect(isDone).toBe(true);
  });
  it('end with the leadership', async () => {
    const abort = new AbortController();
    const checks = checksWith(() => storeOf(never));
    const check = checks.check('k', locationOf('l'), abort.signal);
    abort.abort(new Error('not the leader'));
    await expect(check).rejects.toThrow('not the leader');
  });
  it('ask again a service that is busy for a moment, and tell in its own words that it stays so', async () => {
    const busy = (): never => {
      throw new CodedError('STORAGE_BUSY', 'slow down', { retry: 'backoff' });
    };
    for (const [refusals, tries] of [
      [2, 3],
      [Infinity, 3],
    ] as const) {
      let opened = 0;
      const checks = checksWith(() => (++opened <= refusals ? busy() : storeOf(['backups'])));
      const check = checks.check('k', locationOf('l'), signal);
      if (refusals === Infinity) await expect(check).rejects.toThrow(/^slow down$/);
      else await check;
      expect(opened).toBe(tries);
    }
    let opened = 0;
    const checks = checksWith(() => {
      opened++;
      throw new CodedError('STORAGE_DENIED', 'no', { retry: 'never' });
    });
    await expect(checks.check('k', locationOf('l'), signal)).rejects.toThrow('no');
    expect(opened).toBe(1);
  });
  it('close what they opened, also where it is not valid', async () => {
    let closed = 0;
    const checks = checksWith(() => ({
      ...storeOf(['photos']),
      close: () => {
        closed++;
        return Promise.resolve();
      },
    }));
    await expect(checks.check('k', locationOf('l'), signal)).rejects.toThrow('[photos]');
    expect(closed).toBe(1);
  });
});

describe('a location whose objects are encrypted with a key of a Secret', () => {
  const opened = async (config: object, secret: Buffer): Promise<string> => {
    const options = {
      client: {
        get: (_: unknown, { name }: { name: string }) =>
          Promise.resolve({ data: { k: secret.toString('base64') }, metadata: { name } }),
      } as never,
      namespace: 'velero',
      directory: tempDirectory('files'),
      defaultCredentials: () => undefined,
      openStorage: (location: string) => Promise.reject(new Error(location)),
    };
    const error: unknown = await openLocation(locationOf('l', { config }), options, signal).catch(
      (reason: unknown) => reason,
    );
    return (error as Error).message;
  };
  const config = { customerKeyEncryptionSecret: 's/k' };

  it('is opened with it', async () => {
    const key = Buffer.alloc(32, 0xf7);
    const url = new URL(await opened(config, key));
    const file = url.searchParams.get('sseCustomerKeyFile') ?? '';
    expect(fs.readFileSync(file)).toEqual(key);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
  });
  it('is opened with what a file begins with, as Velero does', async () => {
    const file = join(tempDirectory('key'), 'key');
    // The output of `openssl rand -base64 32`. Velero uses the text as the key, undecoded.
    const text = `${Buffer.alloc(32, 0xf7).toString('base64')}\n`;
    fs.writeFileSync(file, text);
    const url = new URL(await opened({ customerKeyEncryptionFile: file }, Buffer.alloc(0)));
    const used = url.searchParams.get('sseCustomerKeyFile') ?? '';
    expect(fs.readFileSync(used, 'utf8')).toBe(text.slice(0, 32));
    fs.writeFileSync(file, 'short');
    expect(await opened({ customerKeyEncryptionFile: file }, Buffer.alloc(0))).toBe(
      `contents of customerKeyEncryptionFile (${file}) are not exactly 32 bytes`,
    );
    expect(await opened({ customerKeyEncryptionFile: `${file}.gone` }, Buffer.alloc(0))).toContain(
      'could not read customerKeyEncryptionFile: ENOENT',
    );
  });
  it("is refused where it has none that is one, in Velero's words", async () => {
    expect(await opened(config, Buffer.alloc(44, 'a'))).toBe(
      'customer key from secret s/k must be exactly 32 bytes, got 44 bytes',
    );
    expect(await opened({ customerKeyEncryptionSecret: 's' }, Buffer.alloc(32))).toBe(
      'invalid secret reference format: s, expected secretName/key',
    );
    expect(await opened({ ...config, kmsKeyId: 'id' }, Buffer.alloc(32))).toBe(
      'you can only use one of: kmsKeyId, customerKeyEncryptionFile, or customerKeyEncryptionSecret',
    );
  });
});

it('what is wrong with a location is told before its Secrets are asked for', async () => {
  const options = {
    client: undefined as never,
    namespace: 'velero',
    directory: '/nowhere',
    defaultCredentials: () => undefined,
    openStorage: () => Promise.reject(new Error('it is not opened')),
  };
  const credential = { name: 's', key: 'k' };
  const messageFor = (spec: object): Promise<unknown> =>
    openLocation(locationOf('l', { credential, ...spec }), options, signal).catch(
      (error: unknown) => (error as CodedError).message,
    );
  expect(await messageFor({ objectStorage: undefined })).toBe(
    'backup storage location does not use object storage',
  );
  expect(await messageFor({ provider: '' })).toBe('object storage provider name must not be empty');
  expect(await messageFor({ provider: 'acme' })).toContain('invalid storage provider "acme"');
  expect(await messageFor({ config: { publicUrl: 'https://a/b' } })).toBe(
    'publicUrl must not have a path: https://a/b',
  );
});
