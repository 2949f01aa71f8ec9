import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { gunzipSync, gzipSync } from 'node:zlib';
import { afterEach, describe, expect, it } from 'vitest';
import { z } from 'zod';
import {
  BackupArchive,
  EncryptingBucket,
  type NewBackup,
  RestoreArchive,
  ScratchFile,
  signingBy,
  signingKey,
  signWith,
  TarballWriter,
  WriteOnceBucket,
} from '../../../src/archive/index.ts';
import { ManualClock, parseGoTime } from '../../../src/base/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const scratch = tempDirectory('encryption');
const files: ScratchFile[] = [];
afterEach(async () => {
  await Promise.all(files.splice(0).map((file) => file.close()));
});

const SECRET = 'a secret that nobody may read';
const TARBALL = 'backups/b1/b1.tar.gz';

async function newBackup(name: string, uid = `uid-${name}`): Promise<NewBackup> {
  const clock = new ManualClock(parseGoTime('2026-11-29T00:00:00Z'));
  await using tarball = await TarballWriter.create(scratch, clock);
  const text = JSON.stringify({ data: SECRET, more: randomBytes(200_000).toString('hex') });
  await tarball.add('resources/secrets/namespaces/a/b.json', Buffer.from(text));
  const contents = await tarball.finish();
  const log = await ScratchFile.of(scratch, [gzipSync(SECRET)]);
  files.push(contents, log);
  return {
    metadata: {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      spec: {},
      metadata: { name, namespace: 'velero', uid },
      status: { phase: 'Completed' },
    },
    contents,
    log,
    itemOperations: [],
    volumeInfos: [],
    resourceList: { a: [SECRET] },
    results: {},
    podVolumeBackups: [],
    volumeSnapshots: [],
  };
}

const signing = (current: string, earlierKeys: readonly string[] = []) =>
  signingBy({ current, others: [], earlierKeys });

/** The objects as a server with this password sees them. */
async function seenBy(
  raw: MemoryBucket,
  password: string,
  { encrypts = true, earlierKeys = [] as readonly string[] } = {},
): Promise<EncryptingBucket> {
  const keys = await signing(password, earlierKeys);
  const bucket = new EncryptingBucket(raw, { keys, encrypts });
  signWith(bucket, { signing: keys, isRequired: false });
  return bucket;
}

async function stored(...names: string[]): Promise<MemoryBucket> {
  const raw = new MemoryBucket();
  const archive = new BackupArchive(await seenBy(raw, 'secret'));
  for (const name of names) await archive.put(name, await newBackup(name));
  return raw;
}

const secretOf = async (bucket: EncryptingBucket, name = 'b1'): Promise<string | undefined> => {
  const opened = await new BackupArchive(bucket).open(name);
  await using contents = await opened.openContents({ directory: scratch });
  const place = { group: '', resource: 'secrets', namespace: 'a', name: 'b' };
  const [directory] = [...contents.directories()];
  const bytes = await contents.load({ ...directory, ...place } as never);
  return (JSON.parse(String(bytes)) as { data?: string }).data;
};
const bytesOf = (raw: MemoryBucket, key: string): Buffer => raw.objects.get(key) ?? Buffer.alloc(0);

describe('an encrypted backup', () => {
  it('has nothing of its objects in plain text, and is read like any other', async () => {
    const raw = await stored('b1');
    for (const [key, bytes] of raw.objects) {
      const isPlain = /velero-backup\.json$|longshore-checksums\.json$/.test(key);
      expect(bytes.subarray(0, 8).toString() === 'LSCRYPT1', key).toBe(!isPlain);
      expect(bytes.includes(SECRET), key).toBe(false);
    }
    const bucket = await seenBy(raw, 'secret');
    const archive = new BackupArchive(bucket);
    expect(await secretOf(bucket)).toBe(SECRET);
    const opened = await archive.open('b1');
    expect(opened.signature).toBe('signed');
    expect(await opened.resourceList()).toEqual({ a: [SECRET] });
    const log = Buffer.concat(await Array.fromAsync(archive.readLog('b1')));
    expect(log.toString()).toBe(SECRET);
    await archive.setLogTail('b1', 'more', { directory: scratch });
    expect(bytesOf(raw, 'backups/b1/b1-logs.gz').subarray(0, 8).toString()).toBe('LSCRYPT1');
  });

  it('is read by a location that does not encrypt any more, and after a change of the password', async () => {
    const raw = await stored('b1');
    expect(await secretOf(await seenBy(raw, 'secret', { encrypts: false }))).toBe(SECRET);
    const earlierKeys = [(await signingKey('secret')).toString('hex')];
    expect(await secretOf(await seenBy(raw, 'new', { earlierKeys }))).toBe(SECRET);
    expect(await secretOf(await seenBy(raw, 'static-passw0rd', { earlierKeys }))).toBe(SECRET);
    await expect(secretOf(await seenBy(raw, 'new'))).rejects.toMatchObject({
      code: 'NO_ARCHIVE_KEY',
    });
  });

  it('is written with no password that everybody knows', async () => {
    const archive = new BackupArchive(await seenBy(new MemoryBucket(), 'static-passw0rd'));
    await expect(archive.put('b1', await newBackup('b1'))).rejects.toMatchObject({
      code: 'CANNOT_ENCRYPT',
    });
  });

  it('is written once in a location with object lock', async () => {
    const raw = new MemoryBucket();
    const bucket = new WriteOnceBucket(await seenBy(raw, 'secret'));
    await new BackupArchive(bucket).put('b1', await newBackup('b1'));
    expect(bytesOf(raw, TARBALL).subarray(0, 8).toString()).toBe('LSCRYPT1');
    expect(await secretOf(await seenBy(raw, 'secret'))).toBe(SECRET);
  });

  it('lies beside plain backups in one location', async () => {
    const raw = await stored('b1');
    const plain = await seenBy(raw, 'secret', { encrypts: false });
    await new BackupArchive(plain).put('b2', await newBackup('b2'));
    expect(bytesOf(raw, 'backups/b2/b2.tar.gz').subarray(0, 2)).toEqual(Buffer.of(0x1f, 0x8b));
    const bucket = await seenBy(raw, 'secret');
    expect([await secretOf(bucket, 'b1'), await secretOf(bucket, 'b2')]).toEqual([SECRET, SECRET]);
  });

  it('has encrypted files of restores, too', async () => {
    const raw = new MemoryBucket();
    const archive = new RestoreArchive(await seenBy(raw, 'secret'));
    await archive.claim({ name: 'r1', uid: 'u' });
    await archive.put('r1', { results: { errors: { velero: [SECRET] } } });
    await archive.putAfterRun('r1', { text: SECRET });
    for (const [key, bytes] of raw.objects) {
      const isPlain = key.endsWith('longshore-owner.json');
      expect(bytes.subarray(0, 8).toString() === 'LSCRYPT1', key).toBe(!isPlain);
    }
    expect(await archive.results('r1')).toMatchObject({ errors: { velero: [SECRET] } });
  });

  it('gets no URL that hands its files out', async () => {
    const bucket = await seenBy(await stored('b1'), 'secret');
    await expect(bucket.signedUrl(TARBALL, 1000)).rejects.toMatchObject({
      code: 'UNSUPPORTED_URL',
    });
  });

  it('gets a URL for a file that is missing, as any other backup', async () => {
    class SigningBucket extends MemoryBucket {
      override signedUrl(): Promise<never> {
        return Promise.resolve('https://bucket.example') as Promise<never>;
      }
    }
    const bucket = await seenBy(new SigningBucket(), 'secret');
    expect(await bucket.signedUrl('backups/b1/b1-logs.gz', 1000)).toBe('https://bucket.example');
  });

  const PIECE = (64 << 10) + 16;
  const HEAD = 8 + 8 + 16 + 1 + 'uid-b1'.length;
  const attacks: readonly (readonly [string, (bytes: Buffer, other: Buffer) => Buffer])[] = [
    ['a changed byte', (bytes) => Buffer.from(bytes.map((b, at) => (at === 1000 ? b ^ 1 : b)))],
    ['a changed header', (bytes) => Buffer.from(bytes.map((b, at) => (at === HEAD - 1 ? b ^ 1 : b)))], // prettier-ignore
    ['its end cut off between two pieces', (bytes) => bytes.subarray(0, HEAD + 2 * PIECE)],
    ['its end cut off', (bytes) => bytes.subarray(0, bytes.length - 5)],
    ['its header alone', (bytes) => bytes.subarray(0, HEAD)],
    ['a part of its header', (bytes) => bytes.subarray(0, 20)],
    ['more at its end', (bytes) => Buffer.concat([bytes, Buffer.alloc(40)])],
    [
      'two pieces swapped',
      (bytes) =>
        Buffer.concat([
          bytes.subarray(0, HEAD),
          bytes.subarray(HEAD + PIECE, HEAD + 2 * PIECE),
          bytes.subarray(HEAD, HEAD + PIECE),
          bytes.subarray(HEAD + 2 * PIECE),
        ]),
    ],
    ['the file of another backup', (_, other) => other],
  ];
  it.each(attacks)('is damaged with %s', async (_what, attack) => {
    const raw = await stored('b1', 'b2');
    const before = bytesOf(raw, TARBALL);
    expect(before.length).toBeGreaterThan(HEAD + 3 * PIECE);
    raw.objects.set(TARBALL, attack(before, bytesOf(raw, 'backups/b2/b2.tar.gz')));
    // The encryption finds it, not only the checksums.
    raw.objects.delete('backups/b1/longshore-checksums.json');
    await expect(secretOf(await seenBy(raw, 'secret'))).rejects.toMatchObject({
      code: 'DAMAGED_ARCHIVE',
    });
  });

  // The UID in the header is the same, so only the authenticated place tells the files apart.
  it('is damaged with another file of the same backup', async () => {
    const raw = await stored('b1');
    raw.objects.set(TARBALL, bytesOf(raw, 'backups/b1/b1-logs.gz'));
    const bucket = await seenBy(raw, 'secret');
    await expect(Array.fromAsync(bucket.get(TARBALL))).rejects.toMatchObject({
      code: 'DAMAGED_ARCHIVE',
    });
  });

  it('is damaged with a file of an earlier backup of its name', async () => {
    const raw = await stored('b1');
    const old = bytesOf(raw, TARBALL);
    const archive = new BackupArchive(await seenBy(raw, 'secret'));
    await archive.delete('b1');
    await archive.put('b1', await newBackup('b1', 'another'));
    raw.objects.set(TARBALL, old);
    raw.objects.delete('backups/b1/longshore-checksums.json');
    await expect(secretOf(await seenBy(raw, 'secret'))).rejects.toThrow('another backup');
  });

  it.each([0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 200_000])(
    'keeps a file of %s bytes, however it is cut',
    async (length) => {
      const bytes = randomBytes(length);
      const bucket = await seenBy(new MemoryBucket(), 'secret');
      const pieces: Buffer[] = [];
      for (let at = 0; at < length; at += 7777) pieces.push(bytes.subarray(at, at + 7777));
      await bucket.put(TARBALL, pieces);
      expect(Buffer.concat(await Array.fromAsync(bucket.get(TARBALL)))).toEqual(bytes);
    },
  );
});

describe('files of a plain location that a server believes after a restart', () => {
  const KEY = 'backups/b1/b1-itemoperations.json.gz';
  const ANY = z.looseObject({});
  const OPERATIONS = [{ spec: { operationID: 'op-1' } }];
  const plain = { encrypts: false };
  const storedOperations = async (
    name = 'b1',
    password = 'secret',
  ): Promise<{ raw: MemoryBucket; bytes: Buffer }> => {
    const raw = new MemoryBucket();
    const bucket = await seenBy(raw, password, plain);
    await new BackupArchive(bucket).update(name, { itemOperations: OPERATIONS });
    return { raw, bytes: bytesOf(raw, `backups/${name}/${name}-itemoperations.json.gz`) };
  };
  const loaded = async (raw: MemoryBucket, isSealed: boolean, password = 'secret') =>
    new BackupArchive(await seenBy(raw, password, plain)).loadItemOperations('b1', ANY, {
      isSealed,
    });

  it('operations are a gzip file with a stamp, which Velero skips', async () => {
    const { raw, bytes } = await storedOperations();
    expect(JSON.parse(gunzipSync(bytes).toString())).toEqual(OPERATIONS);
    const { stdout, status } = spawnSync('gzip', ['-dc'], { input: bytes });
    expect([status, JSON.parse(stdout.toString())]).toEqual([0, OPERATIONS]);
    expect(await loaded(raw, true)).toEqual(OPERATIONS);
    const stamp = /LS/.exec(bytes.toString('latin1'));
    expect(stamp).not.toBeNull();
  });

  const forged: Record<string, (bytes: Buffer) => Promise<Buffer> | Buffer> = {
    'without a stamp': () => gzipSync('[]'),
    'with other bytes before the stamp': (bytes) => Buffer.concat([gzipSync('[]'), bytes.subarray(-66)]), // prettier-ignore
    'with more bytes before it': (bytes) => Buffer.concat([gzipSync('[]'), bytes]),
    'of another backup': async () => (await storedOperations('b2')).bytes,
    'of another password': async () => (await storedOperations('b1', 'of a stranger')).bytes,
    'cut off': (bytes) => bytes.subarray(0, -1),
  };
  it.each(Object.keys(forged))('operations are refused %s', async (how) => {
    const { raw, bytes } = await storedOperations();
    raw.objects.set(KEY, (await forged[how]?.(bytes)) ?? bytes);
    await expect(loaded(raw, true)).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
  });

  it('operations of Velero and of earlier versions are read if the run did not begin sealed', async () => {
    const { raw } = await storedOperations();
    raw.objects.set(KEY, gzipSync(JSON.stringify(OPERATIONS)));
    expect(await loaded(raw, false)).toEqual(OPERATIONS);
    const { raw: stamped } = await storedOperations();
    expect(await loaded(stamped, false, 'of a stranger')).toEqual(OPERATIONS);
  });

  it('operations are stamped anew when they are published in a location with object lock', async () => {
    const raw = new MemoryBucket();
    const bucket = new WriteOnceBucket(await seenBy(raw, 'secret', plain));
    const backup = { ...(await newBackup('b1')), itemOperations: OPERATIONS };
    await new BackupArchive(bucket).put('b1', backup);
    expect(bytesOf(raw, KEY).length).toBeGreaterThan(66);
    expect(await loaded(raw, true)).toEqual(OPERATIONS);
  });

  it('what a restore leaves to its end is encrypted, and a plain file is refused', async () => {
    const raw = new MemoryBucket();
    const archive = new RestoreArchive(await seenBy(raw, 'secret', plain));
    await archive.putAfterRun('r1', { text: SECRET });
    const [key = ''] = raw.objects.keys();
    expect(bytesOf(raw, key).toString('latin1', 0, 8)).toBe('LSCRYPT1');
    const load = () => archive.loadAfterRun('r1', ANY, { isSealed: true, bytesMax: 1000 });
    expect(await load()).toEqual({ text: SECRET });
    raw.objects.set(key, gzipSync('{}'));
    await expect(load()).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
    expect(await archive.loadAfterRun('r1', ANY, { bytesMax: 1000 })).toEqual({});
  });
});
