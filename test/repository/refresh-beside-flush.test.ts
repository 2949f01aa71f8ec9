import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  type ContentId,
  createFormat,
  openRepository,
  type Repository,
} from '../../src/repository/index.ts';
import { contentIdOf } from '../../src/repository/index/content-id.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

const PASSWORD = new Secret('test password');
/**
 * So many that their index is a buffer of its own, whose memory is given back when it is merged.
 */
const ENTRIES = 20_000;

async function newStorage(): Promise<MemoryStorage> {
  const storage = new MemoryStorage();
  await createFormat(storage, PASSWORD, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 3,
  });
  return storage;
}

const openOf = (storage: BlobStorage, indexMemoryBytes?: number): Promise<Repository> =>
  openRepository({
    storage,
    password: PASSWORD,
    client: { username: 'tester', hostname: 'testhost' },
    ...(indexMemoryBytes !== undefined && { indexMemoryBytes }),
  });

/**
 * A storage that holds the calls named by `isHeld` until they are released. `begun` resolves when
 * the first call waits.
 */
function holding(
  inner: BlobStorage,
  isHeld: (operation: string, id: string) => boolean,
): { storage: BlobStorage; begun: Promise<undefined>; release: () => void } {
  const gate = Promise.withResolvers<undefined>();
  const begun = Promise.withResolvers<undefined>();
  const storage = faulty(inner, async ({ operation, id, when }) => {
    if (when !== 'before' || !isHeld(operation, id)) return;
    begun.resolve(undefined);
    await gate.promise;
  });
  return {
    storage,
    begun: begun.promise,
    release: () => {
      gate.resolve(undefined);
    },
  };
}

it.each([1, 12])(
  'an index that is read anew while %s flushes end knows what they wrote',
  async (flushes) => {
    const inner = await newStorage();
    let isHeld = false;
    const { storage, begun, release } = holding(
      inner,
      (operation, id) => isHeld && operation === 'get' && id.startsWith('xn'),
    );
    await using repository = await openOf(storage, 4 << 20);
    const { contents } = repository;
    const first = await contents.write(Buffer.from('first'), { prefix: '' });
    await contents.flush();
    const known = contents.findOrThrow(first.contentId);
    isHeld = true;
    const refreshed = contents.refresh();
    await begun;
    const written: ContentId[] = [];
    for (let flush = 0; flush < flushes; flush++) {
      for (let i = 0; i < ENTRIES; i++) {
        const contentId = contentIdOf('', randomBytes(16));
        if (i === 0) written.push(contentId);
        contents.session.addEntry({ ...known, contentId });
      }
      await contents.flush();
    }
    isHeld = false;
    release();
    await refreshed;
    expect(written.filter((id) => !contents.has(id))).toEqual([]);
    expect(contents.contentCount).toBe(1 + flushes * ENTRIES);
  },
);

it.each(['list', 'get'])(
  'an abort ends the reading anew while a %s hangs, and what the storage answers later changes nothing',
  async (hanging) => {
    const inner = await newStorage();
    let isHeld = false;
    const { storage, begun, release } = holding(
      inner,
      (operation, id) => isHeld && operation === hanging && id.startsWith('x'),
    );
    await using repository = await openOf(storage);
    const { contents } = repository;
    const mine = await contents.write(Buffer.from('mine'), { prefix: '' });
    await contents.flush();
    await using other = await openOf(inner);
    const theirs = await other.contents.write(Buffer.from('theirs'), { prefix: '' });
    await other.contents.flush();
    isHeld = true;
    const controller = new AbortController();
    const refreshed = contents.refresh({ signal: controller.signal });
    await begun;
    controller.abort(new Error('canceled'));
    await expect(refreshed).rejects.toThrow('canceled');
    isHeld = false;
    release();
    await sleep(50);
    expect([contents.has(mine.contentId), contents.has(theirs.contentId)]).toEqual([true, false]);
    await contents.refresh();
    expect([contents.has(mine.contentId), contents.has(theirs.contentId)]).toEqual([true, true]);
    await expect(contents.refresh({ signal: controller.signal })).rejects.toThrow('canceled');
  },
);

it('of two readings at once the one that began later stays, whichever ends last', async () => {
  const inner = await newStorage();
  let held = 0;
  const { storage, begun, release } = holding(
    inner,
    (operation, id) => operation === 'get' && id.startsWith('xn') && held-- > 0,
  );
  const write = async ({ contents }: Repository, text: string): Promise<ContentId> => {
    const { contentId } = await contents.write(Buffer.from(text), { prefix: '' });
    await contents.flush();
    return contentId;
  };
  await using other = await openOf(inner);
  const doomed = await write(other, 'doomed');
  await using repository = await openOf(storage);
  const { contents } = repository;
  held = 1;
  const earlier = contents.refresh();
  await begun;
  other.contents.setDeleted(doomed, true);
  const theirs = await write(other, 'theirs');
  await contents.refresh();
  expect([contents.has(doomed), contents.has(theirs)]).toEqual([false, true]);
  const mine = await write(repository, 'mine');
  release();
  await earlier;
  expect([contents.has(doomed), contents.has(theirs)]).toEqual([false, true]);
  expect(contents.has(mine)).toBe(true);
});
