import { createHash } from 'node:crypto';
import { expect, it } from 'vitest';
import { type ObjectId, readObject, type Repository } from '../../../src/repository/index.ts';
import { decodeDirectory, type DirectoryEntry } from '../../../src/snapshot/index.ts';
import {
  DirectoryWriter,
  type StoredDirectory,
} from '../../../src/uploader/upload/directory-writer.ts';
import { OpenDirectory } from '../../../src/uploader/upload/open-tree.ts';
import { storeOpenTree } from '../../../src/uploader/upload/open-tree-store.ts';
import { type Outcome, EntryOutcomes } from '../../../src/uploader/upload/entry-outcomes.ts';

const { signal } = new AbortController();
const MTIME_NS = 1_700_000_000_000_000_000n;
const attributes = { mode: 0o755, mtimeNs: MTIME_NS, uid: 0, gid: 0 };
/** Microtasks that a write takes: more than lie between its end and the end of a directory. */
const WRITE_TICKS = 9;
/** Chunks of a few entries, so that a directory is made of several. */
const CHUNK_BYTES = 1000;
const NAMES = Array.from({ length: 30 }, (_, i) => `file-${10 + i}`);

async function ticks(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await Promise.resolve();
}

/** Contents in memory. `fails` is asked at each write. */
function slowRepository(fails: () => boolean): Repository {
  const blobs = new Map<string, Buffer>();
  const sizes = { minBytes: CHUNK_BYTES, avgBytes: CHUNK_BYTES, maxBytes: CHUNK_BYTES };
  return {
    splitter: { name: 'test', kind: 'fixed', ...sizes },
    random: (length: number) => Buffer.alloc(length),
    contents: {
      storesCompressed: true,
      write: async (data: Uint8Array, { prefix }: { prefix: string }) => {
        const bytes = Buffer.from(data);
        const isFailing = fails();
        await ticks(WRITE_TICKS);
        if (isFailing) throw new Error('the write failed');
        const contentId = prefix + createHash('sha256').update(bytes).digest('hex').slice(0, 32);
        blobs.set(contentId, bytes);
        return { contentId, isNew: true };
      },
      getContent: (id: string) => Promise.resolve(blobs.get(id)),
      findOrThrow: (id: string) => ({ originalLength: blobs.get(id)?.length }),
    },
  } as unknown as Repository;
}

const outcomesOf = (names: readonly string[]): Outcome[] =>
  names.map((name) => {
    const objectId = '0123456789abcdef0123456789abcdef' as ObjectId;
    return { kind: 'entry', entry: { ...attributes, name, type: 'f', size: 1, objectId } };
  });

async function entriesOf(repository: Repository, id: ObjectId): Promise<readonly DirectoryEntry[]> {
  return decodeDirectory(await readObject(repository.contents, id)).entries;
}

/** A long directory in a root, as an upload has it right before its end. */
class Scene {
  readonly repository: Repository;
  readonly writer: DirectoryWriter;
  writes = 0;
  readonly root = new OpenDirectory({ ...attributes, name: 'root' });
  readonly #outcomes = new EntryOutcomes();
  readonly #open = this.root.openDirectory({ ...attributes, name: 'long' });

  constructor(fails: (write: number) => boolean = () => false) {
    this.repository = slowRepository(() => fails(++this.writes));
    this.writer = new DirectoryWriter(this.repository, undefined);
    this.root.outcomes.add(this.#outcomes);
    this.#open.writer = this.writer;
  }

  write(): Promise<void> {
    return this.writer.write(outcomesOf(NAMES));
  }

  /** The steps of an upload at the end of a directory. */
  async finish(): Promise<StoredDirectory> {
    const done = this.writer.finish(MTIME_NS, false);
    const place = this.#outcomes.reserve();
    const settle = ({ id, summary }: StoredDirectory): void => {
      const entry = { ...attributes, name: 'long', type: 'd', size: 0, objectId: id, summary };
      this.#outcomes.settle(place, { kind: 'entry', entry });
      this.root.directories.delete(this.#open);
    };
    done.then(settle, () => undefined);
    return done;
  }

  /** The entry of the directory in a checkpoint that is made now. */
  async checkpoint(): Promise<DirectoryEntry> {
    const stored = await storeOpenTree(this.repository, { root: this.root }, undefined, signal);
    const entries = await entriesOf(this.repository, stored?.objectId ?? expect.fail());
    expect(entries.map(({ name }) => name)).toEqual(['long']);
    const [long = expect.fail()] = entries;
    const names = (await entriesOf(this.repository, long.objectId)).map(({ name }) => name);
    expect(names).toEqual(NAMES);
    return long;
  }
}

it('a checkpoint finds a directory once and whole, at whatever moment of its end', async () => {
  for (let moment = 0; moment < 100; moment++) {
    const scene = new Scene();
    await scene.write();
    const finishing = scene.finish();
    await ticks(moment);
    const { objectId, summary } = await scene.checkpoint();
    const { id } = await finishing;
    // The end of the directory had begun, so the checkpoint names the directory itself.
    expect([moment, objectId, summary?.incomplete]).toEqual([moment, id, undefined]);
  }
});

it('a directory that ends while a checkpoint stores it is whole in both', async () => {
  for (let moment = 0; moment < 100; moment++) {
    const scene = new Scene();
    await scene.write();
    const checkpoint = scene.checkpoint();
    await ticks(moment);
    const { id, summary } = await scene.finish();
    const names = (await entriesOf(scene.repository, id)).map(({ name }) => name);
    expect([names, summary.incomplete, summary.files]).toEqual([NAMES, undefined, NAMES.length]);
    expect((await checkpoint).summary?.files).toBe(NAMES.length);
  }
});

it('a directory whose writing failed is in no checkpoint, rather than with a hole or with two ends', async () => {
  const whole = new Scene();
  await whole.write();
  await whole.finish();
  const last = whole.writes;
  expect(last).toBeGreaterThan(3);
  for (let failing = 1; failing <= last; failing++) {
    const scene = new Scene((write) => write === failing);
    const upload = async (): Promise<void> => {
      await scene.write();
      await scene.finish();
    };
    await expect(upload()).rejects.toThrow('the write failed');
    await expect(scene.checkpoint()).rejects.toThrow('the write failed');
  }
});
