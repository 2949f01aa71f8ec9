import { describe, expect, it } from 'vitest';
import { isCode, ManualClock, Secret, systemClock } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  BLOBCFG_BLOB,
  changePassword,
  FORMAT_BLOB,
  loadFormat,
} from '../../src/repository/index.ts';
import { RECOVERY_COPY_PREFIX } from '../../src/repository/format/recovery-copy.ts';
import type { MemoryStorage } from '../support/memory-storage.ts';
import {
  change,
  create,
  HOUR_NS,
  Killed,
  kopiaOpens,
  opener,
  optionsOf,
  REFUSALS,
  STORES,
  textOf,
} from './password-runs.ts';

describe('a password change beside another one', () => {
  const open = STORES['with conditional puts'];
  const codeOf = (changing: Promise<void>): Promise<string> =>
    changing.then(
      () => 'ok',
      (error: unknown) => (isCode(error, ...REFUSALS) ? error.code : String(error)),
    );

  /** Does something else at the moment when a run has put (or deleted) a blob. */
  function meanwhile(
    inner: MemoryStorage,
    [operation, id]: ['put' | 'delete', string],
    task: () => Promise<void>,
    when: 'before' | 'after' = 'after',
  ): BlobStorage {
    let isFirst = true;
    return faulty(inner, async (request) => {
      if (!isFirst || request.operation !== operation || request.when !== when) return;
      if (!request.id.startsWith(id)) return;
      isFirst = false;
      await task();
    });
  }

  it.each([
    ['put', RECOVERY_COPY_PREFIX],
    ['delete', BLOBCFG_BLOB],
    ['put', FORMAT_BLOB],
  ] as const)('is refused after its %s of %s, and changes nothing', async (operation, id) => {
    const storage = await create(open);
    const seen: unknown[] = [];
    const first = meanwhile(storage, [operation, id], async () => {
      const before = new Map(storage.blobs);
      const passwords = [new Secret('a'), new Secret('c')] as const;
      const format = await loadFormat({ ...optionsOf(storage), password: passwords[0] });
      seen.push(await codeOf(changePassword(storage, format, passwords[1])));
      expect(storage.blobs).toEqual(before);
    });
    if (id === FORMAT_BLOB) {
      // The password `a` is no longer in force there: this run loaded before.
      const format = await loadFormat({ ...optionsOf(storage), password: new Secret('a') });
      const late = meanwhile(storage, [operation, id], async () => {
        seen.push(await codeOf(changePassword(storage, format, new Secret('c'))));
      });
      await change(late, ['a', 'b']);
    } else await change(first, ['a', 'b']);
    expect(seen).toEqual(['PASSWORD_CHANGE_RACED']);
    expect(await opener(storage, id)).toBe('b');
    expect([...storage.blobs.keys()].sort()).toEqual([BLOBCFG_BLOB, FORMAT_BLOB]);
  });

  it('is refused for an hour after that was killed, unless it has the same passwords', async () => {
    const clock = new ManualClock(systemClock.nowNs());
    const killed = await create(open, clock);
    const dying = faulty(killed, ({ operation, id }) => {
      if (operation === 'delete' && id === BLOBCFG_BLOB) throw new Killed();
    });
    await expect(change(dying, ['a', 'b'])).rejects.toMatchObject({
      code: 'PASSWORD_CHANGE_UNFINISHED',
    });
    for (const [afterNs, command, end] of [
      [0n, ['a', 'c'], 'PASSWORD_CHANGE_RACED'],
      [HOUR_NS - 1n, ['a', 'c'], 'PASSWORD_CHANGE_RACED'],
      [HOUR_NS, ['a', 'c'], 'ok'],
      [0n, ['a', 'b'], 'ok'],
      [0n, ['b', 'a'], 'ok'],
    ] as const) {
      const storage = killed.clone(new ManualClock(clock.nowNs() + afterNs));
      const place = `${textOf(command)} after ${afterNs} ns`;
      expect(await codeOf(change(storage, command)), place).toBe(end);
      expect(await opener(storage, place)).toBe(end === 'ok' ? command[1] : 'a');
    }
  });

  it('waits for a run with the same passwords that may not be killed after all', async () => {
    const storage = await create(open);
    const dying = faulty(storage, ({ operation, id }) => {
      if (operation === 'delete' && id === BLOBCFG_BLOB) throw new Killed();
    });
    await change(dying, ['a', 'b']).catch(() => undefined);
    const copies = [...storage.blobs].filter(([id]) => id.startsWith(RECOVERY_COPY_PREFIX));
    // The first run ends while the second run waits.
    const finish = async (): Promise<void> => {
      await change(storage, ['a', 'b']);
      expect(copies).toHaveLength(1);
    };
    expect(await codeOf(change(storage, ['a', 'b'], finish))).toBe('PASSWORD_CHANGE_RACED');
    expect(await opener(storage, 'after the wait')).toBe('b');
  });

  it.each([
    ['put', FORMAT_BLOB, 'before'],
    ['delete', BLOBCFG_BLOB, 'before'],
    ['put', BLOBCFG_BLOB, 'before'],
  ] as const)(
    'that stood still before its %s of %s, for so long that it seemed killed, leaves what can be read',
    async (operation, id, when) => {
      const storage = await create(open);
      const ends: string[] = [];
      const slow = meanwhile(
        storage,
        [operation, id],
        async () => {
          ends.push(await codeOf(change(storage, ['b', 'a'])));
        },
        when,
      );
      ends.push(await codeOf(change(slow, ['a', 'b'])));
      const password = await opener(storage, ends.join(', '));
      expect(ends[0]).toBe('ok');
      // Only once it had looked whether it still may, its password comes into force last.
      const isLast = operation === 'put' && id === FORMAT_BLOB;
      expect([ends[1], password]).toEqual(isLast ? ['ok', 'b'] : ['PASSWORD_CHANGE_RACED', 'a']);
      await change(storage, [password, 'e']);
      expect(await opener(storage, 'the next change')).toBe('e');
      expect(await kopiaOpens(storage, 'e')).toBe(true);
    },
  );

  it.each(Object.entries(STORES))(
    'that another program won leaves what its password opens, in a storage %s',
    async (_name, options) => {
      const storage = await create(options);
      const other = storage.clone();
      await change(other, ['a', 'd']);
      const raced = meanwhile(storage, ['put', FORMAT_BLOB], () => {
        for (const id of [FORMAT_BLOB, BLOBCFG_BLOB]) {
          storage.set(id, other.blobs.get(id)?.bytes ?? Buffer.alloc(0));
        }
        return Promise.resolve();
      });
      await expect(change(raced, ['a', 'b'])).rejects.toMatchObject({
        code: 'PASSWORD_CHANGE_RACED',
        message: expect.stringContaining('may not be in force') as string,
      });
      expect(await opener(storage, 'after the race')).toBe('d');
      expect(await kopiaOpens(storage, 'd')).toBe(true);
      await change(storage, ['d', 'e']);
      expect(await opener(storage, 'the next change')).toBe('e');
      expect(await kopiaOpens(storage, 'e')).toBe(true);
      expect([...storage.blobs.keys()].sort()).toEqual([BLOBCFG_BLOB, FORMAT_BLOB]);
    },
  );

  it('that another program won at the very end leaves what its password opens', async () => {
    const storage = await create(open);
    const other = storage.clone();
    await change(other, ['a', 'd']);
    const raced = meanwhile(storage, ['put', BLOBCFG_BLOB], () => {
      storage.set(FORMAT_BLOB, other.blobs.get(FORMAT_BLOB)?.bytes ?? Buffer.alloc(0));
      return Promise.resolve();
    });
    expect(await codeOf(change(raced, ['a', 'b']))).toBe('PASSWORD_CHANGE_RACED');
    expect(await opener(storage, 'after the race')).toBe('d');
    await change(storage, ['d', 'e']);
    expect(await kopiaOpens(storage, await opener(storage, 'the next change'))).toBe(true);
  });

  it('takes its copy away when it could not begin', async () => {
    const storage = await create(open);
    const failing = meanwhile(storage, ['put', RECOVERY_COPY_PREFIX], () =>
      Promise.reject(new Error('the answer was lost')),
    );
    await expect(change(failing, ['a', 'b'])).rejects.toThrow('the answer was lost');
    expect([...storage.blobs.keys()].sort()).toEqual([BLOBCFG_BLOB, FORMAT_BLOB]);
    expect(await opener(storage, 'as before')).toBe('a');
  });
});
