import {
  contentIdOfKey,
  contentKey,
  type IndexMarks,
  indexObjectOf,
  type ObjectId,
  parseObjectId,
  readObject,
  readPieceKeys,
  type TaskContext,
  visitContents,
} from '../repository/index.ts';
import { readDirectoryObjects } from './directory/directory-objects.ts';
import { streamDirectory } from './directory/directory-stream.ts';
import { ObjectIdSet } from './key-set.ts';
import { listSnapshots } from './snapshot-manifest.ts';
import { ObjectStack } from './object-stack.ts';

const LETTER_D = 100;

/**
 * Marks all contents that snapshots reach, including incomplete snapshots. Reads each directory and
 * each object of several contents once, even if many snapshots share it. Throws the first failure.
 * Do not use the marks after a failure.
 */
export async function markUsedContents(context: TaskContext, marks: IndexMarks): Promise<void> {
  const { repository, progress } = context;
  progress?.begin(progress.task, 'entries');
  const walk = new UsedContents(context, marks);
  for (const { rootEntry } of await listSnapshots(repository)) {
    if (!rootEntry) continue;
    walk.markObject(rootEntry.objectId);
    if (rootEntry.type === 'd') walk.addDirectory(rootEntry.objectId);
  }
  await walk.run();
}

class UsedContents {
  readonly #context: TaskContext;
  readonly #marks: IndexMarks;
  /** Entered directories that are not a single content of the index. */
  readonly #entered = new ObjectIdSet();
  /** Objects of several contents. */
  readonly #indirect = new ObjectIdSet();
  readonly #directories: ObjectStack;
  readonly #indexes: ObjectStack;

  constructor(context: TaskContext, marks: IndexMarks) {
    this.#context = context;
    this.#marks = marks;
    const { contents } = context.repository;
    this.#directories = new ObjectStack(contents);
    this.#indexes = new ObjectStack(contents);
  }

  /** Reads the added objects and everything below them. */
  async run(): Promise<void> {
    const indexes = this.#indexes;
    while (!this.#directories.isEmpty || !indexes.isEmpty) {
      // Read indexes first, because they add no objects.
      while (!indexes.isEmpty) await indexes.readSome((id) => this.#markIndirect(id));
      await this.#directories.readSome(
        (id) => this.#readDirectory(id),
        () => indexes.isFull,
      );
    }
  }

  addDirectory(id: ObjectId): void {
    if (this.#enter(id)) this.#directories.push(id);
  }

  /** Marks a directory as entered. Returns false if it already was. */
  #enter(id: ObjectId): boolean {
    const { indirections, contentId } = parseObjectId(id);
    const key = indirections === 0 ? contentKey(contentId) : undefined;
    // No row has a key of another length.
    const isNew = key?.length === this.#marks.keyBytes ? this.#marks.enterKey(key, 0) : undefined;
    return isNew ?? this.#entered.add(id);
  }

  /** Marks the contents of an object. */
  markObject(id: ObjectId): void {
    const { indirections, contentId } = parseObjectId(id);
    if (indirections === 0) this.#marks.mark(contentId);
    else if (this.#indirect.add(id)) this.#indexes.push(id);
  }

  async #markIndirect(id: ObjectId): Promise<void> {
    const { repository, signal } = this.#context;
    const { contents } = repository;
    signal.throwIfAborted();
    const index = indexObjectOf(id);
    const { indirections, compressed, contentId } = parseObjectId(index);
    const { keyBytes } = this.#marks;
    const keys =
      indirections === 0 && !compressed
        ? readPieceKeys(await readObject(contents, index, { signal }), keyBytes)
        : undefined;
    if (!keys) {
      await visitContents(contents, id, (each) => {
        this.#marks.mark(each);
      });
      return;
    }
    this.#marks.mark(contentId);
    for (let at = 0; at < keys.length; at += keyBytes) this.#marks.markKey(keys, at);
  }

  async #readDirectory(id: ObjectId): Promise<void> {
    const { repository, signal, progress } = this.#context;
    const { contents } = repository;
    signal.throwIfAborted();
    const { indirections, compressed } = parseObjectId(id);
    if (indirections === 0 && !compressed) {
      const bytes = await readObject(contents, id, { signal });
      const objects = readDirectoryObjects(bytes, this.#marks.keyBytes);
      if (objects) {
        this.#take(objects);
        return;
      }
    }
    const { size } = this.#directories;
    for await (const entries of streamDirectory(contents, id, { signal })) {
      if (progress) progress.done += entries.length;
      for (const { type, objectId } of entries) {
        this.markObject(objectId);
        if (type === 'd') this.addDirectory(objectId);
      }
      // A directory may have more objects than fit.
      while (this.#indexes.isFull) await this.#indexes.readSome((each) => this.#markIndirect(each));
      while (this.#directories.isFull && this.#directories.size > size)
        await this.#directories.readSome((each) => this.#readDirectory(each));
    }
  }

  /** Marks objects of one content, and adds the objects to read. */
  #take({
    count,
    types,
    indirections,
    keys,
  }: NonNullable<ReturnType<typeof readDirectoryObjects>>): void {
    const { progress } = this.#context;
    const { keyBytes } = this.#marks;
    if (progress) progress.done += count;
    for (let i = 0; i < count; i++) {
      const at = i * keyBytes;
      const levels = indirections[i] as number;
      if (levels === 0) this.#marks.markKey(keys, at);
      if (levels === 0 && types[i] !== LETTER_D) continue;
      const contentId = contentIdOfKey(keys.subarray(at, at + keyBytes));
      const id = ('I'.repeat(levels) + contentId) as ObjectId;
      if (levels > 0) this.markObject(id);
      if (types[i] === LETTER_D) this.addDirectory(id);
    }
  }
}
