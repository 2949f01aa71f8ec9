import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CodedError, isCode, Secret, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobStorage, faulty, openStorage } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { writeOnce } from '../../src/blob/wrappers/write-once.ts';
import {
  BLOBCFG_BLOB,
  changePassword,
  createFormat,
  FORMAT_BLOB,
  loadFormat,
  loadFormatToChange,
} from '../../src/repository/index.ts';
import { deriveFormatKey, SCRYPT, sealFormat } from '../../src/repository/format/keys.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { PutLog } from '../support/put-log.ts';
import { createTest, PASSWORD, DEFAULT_FORMAT } from '../support/repositories.ts';

const work = tempDirectory('password');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const OLD = new Secret(PASSWORD);
const NEW = new Secret('the next one');
const RETENTION = { mode: 'GOVERNANCE', periodNs: 86_400_000_000_000n } as const;

async function createLocked(): Promise<MemoryStorage> {
  const storage = new MemoryStorage({ hasObjectLock: true });
  await createFormat(storage, OLD, DEFAULT_FORMAT);
  const { uniqueID } = JSON.parse(storage.blobs.get(FORMAT_BLOB)?.bytes.toString() ?? '') as {
    uniqueID: string;
  };
  const uniqueId = Buffer.from(uniqueID, 'base64');
  const key = await deriveFormatKey(OLD, SCRYPT, uniqueId);
  const config = '{"retentionMode":"GOVERNANCE","retentionPeriod":86400000000000}';
  storage.set(BLOBCFG_BLOB, sealFormat(key, uniqueId, Buffer.from(config)));
  return storage;
}

async function createOpen(): Promise<MemoryStorage> {
  const storage = new MemoryStorage();
  await createFormat(storage, OLD, DEFAULT_FORMAT);
  return storage;
}

const load = (storage: BlobStorage, password: Secret): ReturnType<typeof loadFormat> =>
  loadFormat({ storage, password, clock: systemClock, warn: () => undefined });

/** `master key, retention`, or the code of the error. */
async function outcome(storage: BlobStorage, password: Secret): Promise<string> {
  try {
    const { parameters, retention } = await load(storage, password);
    return `${Buffer.from(parameters.masterKey).toString('hex')} ${retention?.mode ?? 'none'}`;
  } catch (error) {
    if (isCode(error, 'WRONG_PASSWORD', 'DAMAGED_BLOB', 'NOT_A_REPOSITORY')) return error.code;
    throw error;
  }
}

/**
 * Changes the password like the command: with the old and the new password, because either may be
 * in force.
 */
async function change(storage: BlobStorage, passwords: [Secret, Secret]): Promise<void> {
  const format = await loadFormatToChange(
    { storage, clock: systemClock, warn: () => undefined },
    passwords,
  );
  // Runs that are killed here are dead at once.
  await changePassword(storage, format, passwords[1], { settle: () => Promise.resolve() });
}

class Killed extends Error {}

/** Dies at the n-th put or delete, before or after it takes effect; nothing works from then on. */
function dyingAt(inner: BlobStorage, event: number, deathWhen: 'before' | 'after'): BlobStorage {
  let count = 0;
  let isDead = false;
  return faulty(inner, ({ operation, when }) => {
    if (isDead) throw new Killed();
    if (operation !== 'put' && operation !== 'delete') return;
    if (when === deathWhen && count++ === event) {
      isDead = true;
      throw new Killed();
    }
  });
}

type Tear = (old: Buffer | undefined, next: Buffer) => Buffer | undefined;
/** The state that a killed put may leave in a store without atomic puts. */
const TEARS: Record<string, Tear> = {
  'nothing, the old one was deleted first': () => undefined,
  'an empty blob': () => Buffer.alloc(0),
  'the first bytes': (_old, next) => next.subarray(0, 10),
  'a half': (_old, next) => next.subarray(0, next.length / 2),
  'all but the last byte': (_old, next) => next.subarray(0, -1),
  'zeros behind a half': (_old, next) =>
    Buffer.concat([next.subarray(0, next.length / 2), Buffer.alloc(next.length / 2)]),
  'the old bytes behind a half of the new': (old, next) =>
    Buffer.concat([
      next.subarray(0, next.length * 0.8),
      (old ?? Buffer.alloc(0)).subarray(next.length * 0.8),
    ]),
};

class TearingStorage extends ForwardingStorage {
  readonly #memory: MemoryStorage;
  readonly #event: number;
  readonly #tear: Tear;
  #count = 0;

  constructor(memory: MemoryStorage, event: number, tear: Tear) {
    super(memory);
    this.#memory = memory;
    this.#event = event;
    this.#tear = tear;
  }

  override async putBlob(
    ...[id, data, options]: Parameters<BlobStorage['putBlob']>
  ): Promise<void> {
    if (this.#count++ !== this.#event) return super.putBlob(id, data, options);
    const left = this.#tear(this.#memory.blobs.get(id)?.bytes, Buffer.concat(data));
    if (left) this.#memory.set(id, left);
    else this.#memory.blobs.delete(id);
    throw new Killed();
  }
}

/** Deriving the key takes its time: one storage for all tests. */
const once = (create: () => Promise<MemoryStorage>): (() => Promise<MemoryStorage>) => {
  let made: Promise<MemoryStorage> | undefined;
  return async () => (await (made ??= create())).clone();
};

const STORES = { 'without object lock': once(createOpen), 'with object lock': once(createLocked) };

describe.each(Object.entries(STORES))('a password change in a storage %s', (_name, create) => {
  it('that is killed at any write leaves a repository that one of the passwords opens; a second run finishes', async () => {
    const fresh = await create();
    const whole = await outcome(fresh, OLD);
    let [event, hasKilled] = [0, true];
    for (; hasKilled; event++) {
      for (const when of ['before', 'after'] as const) {
        const storage = fresh.clone();
        const dying = dyingAt(storage, event, when);
        hasKilled = await change(dying, [OLD, NEW]).then(
          () => false,
          () => true,
        );
        const states = [await outcome(storage, OLD), await outcome(storage, NEW)];
        const place = `${when} write ${event}: ${states.join(', ')}`;
        expect(states, place).toContain(whole);
        expect(states, place).not.toContain('DAMAGED_BLOB');
        await change(storage, [OLD, NEW]);
        expect(await outcome(storage, NEW), place).toBe(whole);
        expect(await outcome(storage, OLD), place).toBe('WRONG_PASSWORD');
        expect([...storage.blobs.keys()].sort(), place).toEqual([BLOBCFG_BLOB, FORMAT_BLOB]);
      }
    }
    expect(event).toBeGreaterThan(4);
  });

  it('that is killed may go back to the old password, too', async () => {
    const fresh = await create();
    const whole = await outcome(fresh, OLD);
    for (let event = 0; event < 6; event++) {
      const storage = fresh.clone();
      await change(dyingAt(storage, event, 'before'), [OLD, NEW]).catch(() => undefined);
      await change(storage, [NEW, OLD]);
      expect(await outcome(storage, OLD), `write ${event}`).toBe(whole);
      expect(await outcome(storage, NEW), `write ${event}`).toBe('WRONG_PASSWORD');
    }
  });

  it.each(Object.entries(TEARS))(
    'that is killed within a put that leaves %s can go on',
    async (_tear, tear) => {
      const fresh = await create();
      const whole = await outcome(fresh, OLD);
      for (let event = 0; event < 3; event++) {
        const storage = fresh.clone();
        await expect(
          change(new TearingStorage(storage, event, tear), [OLD, NEW]),
        ).rejects.toThrow();
        const states = [await outcome(storage, OLD), await outcome(storage, NEW)];
        expect(states, `put ${event}: ${states.join(', ')}`).toContain(whole);
        await change(storage, [OLD, NEW]);
        expect(await outcome(storage, NEW), `put ${event}`).toBe(whole);
        expect(await outcome(storage, OLD), `put ${event}`).toBe('WRONG_PASSWORD');
      }
    },
  );

  it('that is killed twice, each time within a put, can go on', async () => {
    const fresh = await create();
    const whole = await outcome(fresh, OLD);
    const halves = [TEARS['an empty blob'], TEARS['the old bytes behind a half of the new']];
    for (const tear of halves as Tear[]) {
      for (let first = 1; first < 3; first++) {
        for (let second = 0; second < 5; second++) {
          const storage = fresh.clone();
          for (const event of [first, second]) {
            const dying = new TearingStorage(storage, event, tear);
            await change(dying, [OLD, NEW]).catch(() => undefined);
          }
          await change(storage, [OLD, NEW]);
          expect(await outcome(storage, NEW), `puts ${first}, ${second}`).toBe(whole);
          expect(await outcome(storage, OLD), `puts ${first}, ${second}`).toBe('WRONG_PASSWORD');
        }
      }
    }
  });

  it('is seen whole by readers that come meanwhile', async () => {
    const storage = await create();
    const whole = await outcome(storage, OLD);
    let changed = false;
    const changing = change(storage, [OLD, NEW]).finally(() => (changed = true));
    const seen = new Set<string>();
    while (!changed) {
      const states = await Promise.all([outcome(storage, OLD), outcome(storage, NEW)]);
      for (const state of states) seen.add(state);
    }
    await changing;
    expect([...seen].sort()).toEqual(expect.not.arrayContaining(['DAMAGED_BLOB']));
    expect(seen).toContain(whole);
  });

  it('is seen whole by a reader that is stopped between any two of its requests', async () => {
    const fresh = await create();
    const whole = await outcome(fresh, OLD);
    for (let write = 0; write < 7; write++) {
      const storage = fresh.clone();
      let isStopped = true;
      /** Between the reader's two requests the change takes this many writes. */
      const reader = faulty(storage, async ({ operation, id }) => {
        if (operation !== 'get' || id !== BLOBCFG_BLOB || !isStopped) return;
        isStopped = false;
        await change(dyingAt(storage, write, 'before'), [OLD, NEW]).catch(() => undefined);
      });
      expect([whole, 'WRONG_PASSWORD'], `write ${write}`).toContain(await outcome(reader, OLD));
    }
  });
});

const { 'without object lock': open, 'with object lock': locked } = STORES;

it('keeps object lock on both format blobs', async () => {
  const storage = await locked();
  await change(storage, [OLD, NEW]);
  expect(storage.blobs.get(FORMAT_BLOB)?.retention).toEqual(RETENTION);
  expect(storage.blobs.get(BLOBCFG_BLOB)?.retention).toEqual(RETENTION);
});

it('names what to do when the storage fails on the way', async () => {
  const storage = await open();
  const failing = faulty(storage, ({ operation, id, when }) => {
    if (operation === 'put' && id === BLOBCFG_BLOB && when === 'before') {
      throw new CodedError('STORAGE_FULL', 'no space left');
    }
  });
  await expect(change(failing, [OLD, NEW])).rejects.toMatchObject({
    code: 'PASSWORD_CHANGE_UNFINISHED',
    message: expect.stringMatching(/no space left.*run the same command again/) as string,
  });
  expect(await outcome(storage, NEW)).not.toContain('_');
});

it('does not accept the old password from a copy that a killed change left', async () => {
  const storage = await open();
  await change(dyingAt(storage, 4, 'before'), [OLD, NEW]).catch(() => undefined);
  expect([...storage.blobs.keys()].join(' ')).toContain('kopia.longshore-password-change');
  expect(await outcome(storage, OLD)).toBe('WRONG_PASSWORD');
});

describe('directories', () => {
  it('a change that is killed at any write leaves what one password opens, also the real Kopia', async () => {
    const repo = join(work, 'base');
    await createTest(repo);
    const opened = (state: string): string[] =>
      [OLD, NEW].flatMap((password) => {
        try {
          new Kopia(password.reveal()).connect(state);
          return [password.reveal()];
        } catch {
          return [];
        }
      });
    for (let event = 0; event < 7; event++) {
      const state = join(work, `state-${event}`);
      fs.cpSync(repo, state, { recursive: true });
      await using storage = await openStorage(state);
      await change(dyingAt(storage, event, 'before'), [OLD, NEW]).catch(() => undefined);
      if (hasKopia) expect(opened(state), `write ${event}`).toHaveLength(1);
      const states = [await outcome(storage, OLD), await outcome(storage, NEW)];
      expect(states).toContain('WRONG_PASSWORD');
      expect(states.filter((text) => text.endsWith('none'))).toHaveLength(1);
      await change(storage, [OLD, NEW]);
      if (hasKopia) expect(opened(state), `write ${event}, finished`).toEqual([NEW.reveal()]);
      await expect(storage.getMetadata(blobId(BLOBCFG_BLOB))).resolves.toBeDefined();
    }
  });
});

describe('the password of a repository in a location that is written once', () => {
  it('is not changed, and nothing is put', async () => {
    const memory = await STORES['with object lock']();
    const log = new PutLog(memory);
    await expect(change(writeOnce(log), [OLD, NEW])).rejects.toMatchObject({
      code: 'LOCATION_WRITE_ONCE',
      message: expect.stringContaining('nothing was changed') as string,
    });
    expect(log.puts).toEqual([]);
    expect(await outcome(memory, OLD)).toContain('GOVERNANCE');
  });

  it('is what a change that was begun before makes it: the next run finishes that', async () => {
    const memory = await STORES['with object lock']();
    let isKilled = false;
    for (let event = 0; !isKilled; event++) {
      memory.blobs.clear();
      for (const [id, blob] of (await STORES['with object lock']()).blobs)
        memory.blobs.set(id, blob);
      await change(dyingAt(memory, event, 'after'), [OLD, NEW]).catch(() => undefined);
      // The new one counts, and the settings are still those of the old one.
      isKilled = (await outcome(memory, NEW)) !== 'WRONG_PASSWORD';
    }
    expect(memory.blobs.size).toBeGreaterThan(2);
    await change(writeOnce(memory), [OLD, NEW]);
    expect([...memory.blobs.keys()].sort()).toEqual([BLOBCFG_BLOB, FORMAT_BLOB]);
    expect(await outcome(memory, NEW)).toContain('GOVERNANCE');
  });
});
