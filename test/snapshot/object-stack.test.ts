import { expect, it } from 'vitest';
import type { ContentManager, IndexEntry, ObjectId } from '../../src/repository/index.ts';
import { ObjectStack } from '../../src/snapshot/object-stack.ts';

/**
 * A tree whose objects name their path in hexadecimal digits. Each object has a place in one of a
 * few packs.
 */
const idOf = (path: number[]): ObjectId =>
  `k${path
    .map((each) => (each + 1).toString(16).padStart(2, '0'))
    .join('')
    .padEnd(32, '0')}` as ObjectId;
const BELOW = 24;
const DEPTH = 4;
const contents = {
  find: (id: string): Partial<IndexEntry> => ({
    packBlobId: `q${id.slice(2, 3)}`,
    packOffset: Number.parseInt(id.slice(1, 7), 16),
  }),
} as unknown as ContentManager;

const pathOf = (id: ObjectId): number[] =>
  (id.slice(1).match(/../g) ?? []).flatMap((each) =>
    each === '00' ? [] : [Number.parseInt(each, 16) - 1],
  );

it('reads all that is added once, and holds a bounded part of it however wide the tree is', async () => {
  const stack = new ObjectStack(contents, 100);
  const read = new Set<ObjectId>();
  let sizeMax = 0;
  stack.push(idOf([0]));
  while (!stack.isEmpty) {
    await stack.readSome(async (id) => {
      await Promise.resolve();
      expect(read.has(id)).toBe(false);
      read.add(id);
      const path = pathOf(id);
      if (path.length < DEPTH) for (let i = 0; i < BELOW; i++) stack.push(idOf([...path, i]));
      sizeMax = Math.max(sizeMax, stack.size);
    });
  }
  expect(read.size).toBe(1 + BELOW + BELOW ** 2 + BELOW ** 3);
  expect(sizeMax).toBeLessThan(100 + DEPTH * 64 * BELOW);
});

it('puts back what it has no room for, where others have enough', async () => {
  const stack = new ObjectStack(contents);
  for (let i = 0; i < 200; i++) stack.push(idOf([i]));
  const read: ObjectId[] = [];
  const take = (id: ObjectId): Promise<void> => {
    read.push(id);
    return Promise.resolve();
  };
  await stack.readSome(take, () => read.length >= 50);
  expect([read.length, stack.size]).toEqual([50, 150]);
  await stack.readSome(take);
  expect(new Set(read).size).toBe(200);
});

it('says what could not be read', async () => {
  const stack = new ObjectStack(contents);
  stack.push(idOf([1]));
  await expect(stack.readSome(() => Promise.reject(new Error('lost')))).rejects.toThrow('lost');
});
