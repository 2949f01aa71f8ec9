import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { Secret, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobStorage, faulty, openStorage } from '../../src/blob/index.ts';
import { createFormat, FORMAT_BLOB, loadFormat } from '../../src/repository/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { DEFAULT_FORMAT, sameSalt } from '../support/repositories.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

const work = tempDirectory('create');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BLOBCFG_BLOB = blobId('kopia.blobcfg');
const PASSWORDS = [new Secret('first'), new Secret('second')] as const;

const opens = (storage: BlobStorage, password: Secret): Promise<boolean> =>
  loadFormat({ storage, password, clock: systemClock, warn: () => undefined }).then(
    () => true,
    () => false,
  );

const STORES: Record<string, () => Promise<BlobStorage>> = {
  'with put-if-absent': () => Promise.resolve(new MemoryStorage()),
  'that refuses the condition': () =>
    Promise.resolve(new MemoryStorage({ conditionalPut: 'refuses' })),
  'that ignores the condition': () =>
    Promise.resolve(new MemoryStorage({ conditionalPut: 'ignores' })),
  'in a directory': () => openStorage(fs.mkdtempSync(join(work, 'repo-')), { create: true }),
};

/**
 * Over when a creator has put visible blobs and waits for others, or when the creator has ended.
 */
class Turn {
  readonly #over = Promise.withResolvers<undefined>();
  readonly over = this.#over.promise;

  isOver(): void {
    this.#over.resolve(undefined);
  }
}

describe.each(Object.entries(STORES))('two creators at once in a storage %s', (_name, open) => {
  // The second creator starts this many requests after the first.
  it.each([0, 2, 3, 5])('one at most is told that it succeeded, %i requests apart', async (gap) => {
    await using storage = await open();
    let requests = 0;
    let letGo = (): void => undefined;
    const gate = new Promise<void>((resolve) => (letGo = resolve));
    const counted = faulty(storage, ({ when }) => {
      if (when === 'before' && requests++ === gap) letGo();
    });
    /** Has looked at the empty storage and waits before its first put. */
    let isFirstPut = true;
    const late = faulty(storage, async ({ operation, when }) => {
      if (operation === 'put' && when === 'after') latePut();
      if (operation !== 'put' || when !== 'before' || !isFirstPut) return;
      isFirstPut = false;
      await gate;
    });
    let latePut = (): void => undefined;
    const isPut = new Promise<void>((resolve) => (latePut = resolve));
    const [first, second] = [new Turn(), new Turn()];
    // Lasts as long as the product's pause: the other creator derives its key and puts meanwhile.
    const pause = async (): Promise<void> => {
      second.isOver();
      await first.over;
    };
    /** Long enough for the late one. */
    const settle = async (): Promise<void> => {
      letGo();
      await isPut;
      first.isOver();
      await second.over;
    };
    const create = (
      through: BlobStorage,
      password: Secret,
      wait: () => Promise<void>,
    ): Promise<void> =>
      createFormat(through, password, DEFAULT_FORMAT, sameSalt(password.reveal()), wait);
    const results = await Promise.allSettled([
      create(counted, PASSWORDS[0], settle).finally(() => {
        letGo();
        first.isOver();
      }),
      create(late, PASSWORDS[1], pause).finally(() => {
        latePut();
        second.isOver();
      }),
    ]);
    const succeeded = results.map(({ status }) => status === 'fulfilled');
    for (const result of results) {
      if (result.status === 'rejected') {
        expect(result.reason).toMatchObject({ code: 'REPOSITORY_EXISTS' });
      }
    }
    for (const [i, password] of PASSWORDS.entries()) {
      if (succeeded[i] === true) expect(await opens(storage, password)).toBe(true);
    }
    expect(succeeded.filter(Boolean).length).toBeLessThanOrEqual(1);
    if (_name === 'with put-if-absent' || _name === 'in a directory') {
      expect(succeeded.filter(Boolean)).toHaveLength(1);
      expect(await storage.getMetadata(FORMAT_BLOB)).toBeDefined();
    }
  });
});

describe.each(Object.entries(STORES))('a creator that is killed in a storage %s', (_name, open) => {
  it.each([1, 2, 3])(
    'after %i puts leaves a place where a repository can be made',
    async (lives) => {
      await using storage = await open();
      let left = lives;
      const dying = faulty(storage, ({ operation, when }) => {
        if (operation === 'put' && when === 'after') left--;
        if (left <= 0) throw new Error('killed');
      });
      const create = (through: BlobStorage): Promise<void> =>
        createFormat(through, PASSWORDS[0], DEFAULT_FORMAT, sameSalt('first'), () =>
          Promise.resolve(),
        );
      await create(dying).catch(() => undefined);
      if (await opens(storage, PASSWORDS[0])) return;
      await expect(create(storage)).rejects.toMatchObject({
        code: 'REPOSITORY_UNFINISHED',
        message: expect.stringContaining(`delete ${BLOBCFG_BLOB}`) as string,
      });
      await storage.deleteBlob(BLOBCFG_BLOB);
      await create(storage);
      expect(await opens(storage, PASSWORDS[0])).toBe(true);
    },
  );
});

describe('a creator whose first put comes when the other one is long done', () => {
  async function createLate(
    conditionalPut: 'refuses' | 'ignores',
    version: 2 | 3,
  ): Promise<{ storage: BlobStorage; before: Uint8Array }> {
    const storage = new MemoryStorage({ conditionalPut });
    const isHeld = Promise.withResolvers<undefined>();
    const gate = Promise.withResolvers<undefined>();
    const late = faulty(storage, async ({ operation, when }) => {
      if (operation !== 'put' || when !== 'before') return;
      isHeld.resolve(undefined);
      await gate.promise;
    });
    const format = { ...DEFAULT_FORMAT, version };
    const settle = (): Promise<void> => Promise.resolve();
    const second = createFormat(late, PASSWORDS[1], format, sameSalt('second'), settle);
    second.catch(() => undefined);
    await isHeld.promise;
    await createFormat(storage, PASSWORDS[0], format, sameSalt('first'), settle);
    const before = await storage.getBlob(FORMAT_BLOB);
    gate.resolve(undefined);
    await expect(second).rejects.toMatchObject({ code: 'REPOSITORY_EXISTS' });
    return { storage, before };
  }

  it.each([2, 3] as const)(
    'changes nothing where there is no condition, format %d',
    async (version) => {
      const { storage } = await createLate('refuses', version);
      expect(await opens(storage, PASSWORDS[0])).toBe(true);
    },
  );

  it.each([2, 3] as const)(
    'leaves the keys where the condition is ignored, format %d',
    async (version) => {
      const { storage, before } = await createLate('ignores', version);
      expect(await storage.getBlob(FORMAT_BLOB)).toEqual(before);
      // In format 3 the error says that blobcfg is missing, and how to create it again.
      expect(await opens(storage, PASSWORDS[0])).toBe(version === 2);
      await expect(storage.getMetadata(BLOBCFG_BLOB)).rejects.toMatchObject({
        code: 'BLOB_NOT_FOUND',
      });
    },
  );
});
