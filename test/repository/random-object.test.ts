import { expect, it } from 'vitest';
import type { ContentManager } from '../../src/repository/content/content-manager.ts';
import { objectId } from '../../src/repository/object/object-id.ts';
import { PieceCache } from '../../src/repository/object/piece-cache.ts';
import { RandomObject } from '../../src/repository/object/random-object.ts';

it('an object whose list says that a content is longer than it is gives no fewer bytes without a word', async () => {
  const id = '0123456789abcdef0123456789abcdef';
  const cache = new PieceCache(1 << 20);
  // As another place of a list has it, with its right length.
  await cache.get(id, () => Promise.resolve(Buffer.alloc(10)), undefined);
  const listed = { objectId: objectId(id), size: 100 };
  // No content is read, because all are in the cache.
  const contents = undefined as unknown as ContentManager;
  const object = await RandomObject.open(contents, listed, { cache });
  expect((await object.read(2, 8)).length).toBe(8);
  await expect(object.read(0, 100)).rejects.toMatchObject({ code: 'BAD_OBJECT' });
});
