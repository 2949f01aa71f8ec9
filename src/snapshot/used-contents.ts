import { mapLimited } from '../base/index.ts';
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
import { readDirectoryObjects } from './directory-objects.ts';
import { streamDirectory } from './directory-stream.ts';
import { ObjectIdSet } from './key-set.ts';
import { listSnapshots } from './snapshot-manifest.ts';
import { type Below, descend } from './tree-walk.ts';

/** Objects of several contents of one directory that are read beside each other. Our choice. */
const INDEXES_AT_ONCE = 4;
const LETTER_D = 100;

/**
 * Marks all that the snapshots reach, incomplete ones included. Each directory and each object of several contents is read
 * once, in however many snapshots it is. Throws the first failure; what is marked then is of no use.
 */
export async function markUsedContents(context: TaskContext, marks: IndexMarks): Promise<void> {
  const { repository, progress } = context;
  progress?.begin(progress.task, 'entries');
  const roots = (await listSnapshots(repository)).flatMap(({ rootEntry }) => rootEntry ?? []);
  const walk = new UsedContents(context, marks);
  for (const { objectId } of roots) await walk.markObject(objectId);
  const failures: unknown[] = [];
  const ids = roots.filter(({ type, objectId }) => type === 'd' && walk.enter(objectId));
  const read = (id: ObjectId, below: Below): Promise<void> =>
    walk.readDirectory(id, below, failures);
  await descend(
    ids.map(({ objectId }) => objectId),
    read,
    failures,
  );
  if (failures.length > 0) throw failures[0];
}

class UsedContents {
  readonly #context: TaskContext;
  readonly #marks: IndexMarks;
  /** Directories that are no single content of the index. */
  readonly #entered = new ObjectIdSet();
  /** Objects of several contents. */
  readonly #indirect = new ObjectIdSet();

  constructor(context: TaskContext, marks: IndexMarks) {
    this.#context = context;
    this.#marks = marks;
  }

  /** Whether a directory has not been entered yet. */
  enter(id: ObjectId): boolean {
    const { indirections, contentId } = parseObjectId(id);
    const key = indirections === 0 ? contentKey(contentId) : undefined;
    // No row has a key of another length.
    const isNew = key?.length === this.#marks.keyBytes ? this.#marks.enterKey(key, 0) : undefined;
    return isNew ?? this.#entered.add(id);
  }

  /** Marks the contents of an object. */
  async markObject(id: ObjectId): Promise<void> {
    const { indirections, contentId } = parseObjectId(id);
    if (indirections === 0) this.#marks.mark(contentId);
    else if (this.#indirect.add(id)) await this.#markIndirect(id);
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

  async readDirectory(id: ObjectId, below: Below, failures: readonly unknown[]): Promise<void> {
    const { repository, signal, progress } = this.#context;
    const { contents } = repository;
    signal.throwIfAborted();
    const { indirections, compressed } = parseObjectId(id);
    if (indirections === 0 && !compressed) {
      const bytes = await readObject(contents, id, { signal });
      const objects = readDirectoryObjects(bytes, this.#marks.keyBytes);
      if (objects) {
        await this.#markAll(this.#take(objects, below));
        return;
      }
    }
    for await (const entries of streamDirectory(contents, id, { signal })) {
      if (failures.length > 0) return;
      if (progress) progress.done += entries.length;
      const indirect = entries.filter(({ objectId }) => objectId.startsWith('I'));
      for (const { objectId } of entries)
        if (!objectId.startsWith('I')) this.#marks.mark(parseObjectId(objectId).contentId);
      for (const { type, objectId } of entries)
        if (type === 'd' && this.enter(objectId)) below.ids.push(objectId);
      await this.#markAll(indirect.map(({ objectId }) => objectId));
      await below.whenMany();
    }
  }

  /** Marks what is one content, adds directories to what is below, and returns the objects of several contents. */
  #take(
    { count, types, indirections, keys }: NonNullable<ReturnType<typeof readDirectoryObjects>>,
    below: Below,
  ): ObjectId[] {
    const { progress } = this.#context;
    const { keyBytes } = this.#marks;
    if (progress) progress.done += count;
    const indirect: ObjectId[] = [];
    for (let i = 0; i < count; i++) {
      const at = i * keyBytes;
      const levels = indirections[i] as number;
      if (levels === 0) this.#marks.markKey(keys, at);
      if (levels === 0 && types[i] !== LETTER_D) continue;
      const contentId = contentIdOfKey(keys.subarray(at, at + keyBytes));
      const id = ('I'.repeat(levels) + contentId) as ObjectId;
      if (types[i] === LETTER_D && this.enter(id)) below.ids.push(id);
      if (levels > 0) indirect.push(id);
    }
    return indirect;
  }

  async #markAll(ids: readonly ObjectId[]): Promise<void> {
    if (ids.length > 0) await mapLimited(ids, INDEXES_AT_ONCE, (id) => this.markObject(id));
  }
}
