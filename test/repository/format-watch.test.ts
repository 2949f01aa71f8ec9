import { afterEach, beforeEach, expect, it } from 'vitest';
import {
  goJson,
  HOUR_NS,
  MINUTE_NS,
  OffsetClock,
  Secret,
  systemClock,
} from '../../src/base/index.ts';
import { blobId } from '../../src/blob/index.ts';
import { createFormat, openRepository, type Repository } from '../../src/repository/index.ts';
import {
  FORMAT_BLOB,
  loadFormat,
  openInner,
  parseFormatBlob,
  serializeFormatBlob,
  toBase64,
} from '../../src/repository/format/format-blob.ts';
import { sealFormat } from '../../src/repository/format/keys.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { noise } from '../support/noise.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, recordingLogger } from '../support/repositories.ts';

const LOCKED = { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS } as const;
const password = new Secret(PASSWORD);
let clock: OffsetClock;
let storage: MemoryStorage;
let repository: Repository;
let formatKey: Uint8Array;
const logger = recordingLogger();

beforeEach(async () => {
  clock = new OffsetClock(systemClock, 0n);
  storage = new MemoryStorage({ clock, hasObjectLock: true });
  await createFormat(storage, password, DEFAULT_FORMAT);
  ({ formatKey } = await loadFormat({ storage, password, clock, warn: () => undefined }));
  repository = await openRepository({ storage, password, client: CLIENT, clock, logger });
});
afterEach(() => repository.close());

async function write(what: string): Promise<void> {
  await repository.contents.write(noise(what, 1000), { prefix: '' });
  await repository.contents.flush();
}

/** Changes the parameters as Kopia's upgrade does. */
async function change(more: Record<string, unknown>): Promise<void> {
  const { blob, uniqueId, sealed } = parseFormatBlob(await storage.getBlob(FORMAT_BLOB));
  const inner = JSON.parse(Buffer.from(openInner(formatKey, uniqueId, sealed)).toString()) as {
    format: object;
  };
  const changed = JSON.stringify({ ...inner, format: { ...inner.format, ...more } });
  const bytes = sealFormat(formatKey, uniqueId, Buffer.from(changed));
  storage.set(FORMAT_BLOB, serializeFormatBlob({ ...blob, encryptedBlockFormat: toBase64(bytes) }));
}

const upgradeLock = (advanceNoticeDuration: number): object => ({
  ownerID: 'somebody',
  creationTime: new Date(Number(clock.nowNs() / 1_000_000n)).toISOString(),
  advanceNoticeDuration,
  ioDrainTimeout: 15 * 60e9,
  maxPermittedClockDrift: 5 * 60e9,
});

it('a write sees the lock of an upgrade after 15 minutes at the latest, and puts nothing', async () => {
  await write('before');
  await change({ upgradeLock: upgradeLock(0) });
  clock.offsetNs += 14n * MINUTE_NS;
  await write('in time');
  clock.offsetNs += 2n * MINUTE_NS;
  const blobs = storage.blobs.size;
  for (const what of ['late', 'later']) {
    await expect(write(what)).rejects.toMatchObject({ code: 'REPOSITORY_LOCKED' });
  }
  expect(storage.blobs.size).toBe(blobs);
  await expect(storage.getBlob(FORMAT_BLOB)).resolves.toBeDefined();
});

it('an upgrade that was announced stops a write as soon as writers must have ended', async () => {
  await change({ upgradeLock: upgradeLock(2 * 3600e9) });
  clock.offsetNs += HOUR_NS;
  await write('before it begins');
  clock.offsetNs += 30n * MINUTE_NS;
  await expect(write('late')).rejects.toMatchObject({ code: 'REPOSITORY_LOCKED' });
  await change({ upgradeLock: undefined });
  // The session has failed, but the storage takes puts again.
  await repository.storage.putBlob(blobId('p9'), [Buffer.of(1)]);
});

it('an upgrade that is over is told from one that never was', async () => {
  await change({ version: 2 });
  clock.offsetNs += 16n * MINUTE_NS;
  await expect(write('late')).rejects.toMatchObject({ code: 'REPOSITORY_UPGRADED' });
});

it('a retention that is switched on or off holds for the next put', async () => {
  const ofNewBlobs = async (what: string): Promise<unknown[]> => {
    const before = new Set(storage.blobs.keys());
    await write(what);
    const added = [...storage.blobs].filter(([id]) => !before.has(id));
    expect(added.length).toBeGreaterThan(1);
    return added.map(([, { retention }]) => retention);
  };
  const set = async (text: string): Promise<void> => {
    const { uniqueId } = parseFormatBlob(await storage.getBlob(FORMAT_BLOB));
    storage.set('kopia.blobcfg', sealFormat(formatKey, uniqueId, Buffer.from(text)));
    clock.offsetNs += 16n * MINUTE_NS;
  };
  expect(new Set(await ofNewBlobs('unlocked'))).toEqual(new Set([undefined]));
  await set(goJson({ retentionMode: LOCKED.mode, retentionPeriod: LOCKED.periodNs }));
  expect(new Set(await ofNewBlobs('locked'))).toEqual(new Set([LOCKED]));
  await repository.storage.putBlob(blobId('_log_1'), [Buffer.of(1)]);
  expect(storage.blobs.get('_log_1')?.retention).toBeUndefined();
  await set('{}');
  expect(new Set(await ofNewBlobs('unlocked again'))).toEqual(new Set([undefined]));
});

it('the format is read once in 15 minutes, however many writes there are', async () => {
  clock.offsetNs += 16n * MINUTE_NS;
  const reads = (): number => storage.wholeReads.filter(({ id }) => id === FORMAT_BLOB).length;
  const before = reads();
  await Promise.all(['a', 'b', 'c'].map((id) => repository.storage.putBlob(blobId(id), [])));
  await write('more');
  expect(reads() - before).toBe(1);
});

it('a password that is changed meanwhile ends no backup', async () => {
  storage.set(FORMAT_BLOB, await otherPassword());
  clock.offsetNs += 16n * MINUTE_NS;
  await write('late');
  expect(logger.messages.join()).toMatch(/the password of the repository was changed/);
});

/** The same repository under another password. */
async function otherPassword(): Promise<Uint8Array> {
  const { blob } = parseFormatBlob(await storage.getBlob(FORMAT_BLOB));
  return serializeFormatBlob({ ...blob, encryptedBlockFormat: toBase64(noise('other', 300)) });
}
