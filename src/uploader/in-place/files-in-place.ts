import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import {
  CodedError,
  decodeGoUtf8,
  pinnedPath,
  Semaphore,
  shareOfDescriptors,
  systemCode,
} from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { CAPABILITY, nodeIn, withoutXattrs } from '../../volume-files/index.ts';
import { PieceWriter } from '../restore/piece-writer.ts';
import { hasAllAttributes, isSameNode } from '../restore/restore-entry.ts';
import { type DiskName, diskNameOf } from '../restore/restore-names.ts';
import type { InPlaceEntries, RestoreReport } from '../restore/restore-report.ts';
import { RestoreWriter } from '../restore/restore-writer.ts';
import { type Pinned, pinnedAt, type TargetDirectory } from '../restore/target-directory.ts';
import { BackupRules } from './backup-rules.ts';
import { type Difference, FileComparer } from './difference.ts';
import { DifferenceWriter } from './difference-writer.ts';
import { FilePieces } from './file-pieces.ts';
import type {
  ChangeKind,
  InPlaceCounters,
  InPlaceOptions,
  WriteBudget,
} from './in-place-report.ts';
import { RangeComparer } from './range-comparer.ts';
import { asPartlyWritten } from './partly-written-error.ts';
import { type RemoveRules, removeTree } from './remove-tree.ts';
import { assertSameMount, assertSameRoot, type TargetRoot } from '../restore/same-mount.ts';

const { O_RDONLY, O_WRONLY, O_NONBLOCK } = constants;
/** Files that are compared at once, and their share of descriptors. Each takes four. */
const FILES_MAX = 64;
const FILES_SHARE = 1 / 32;
/**
 * A long file takes a place for this many bytes, since its list of contents needs memory: 64 files
 * of 40 GiB took 440 MiB. Four of the longest files keep all threads busy. Our choices.
 */
const BYTES_PER_PLACE = 512 << 20;
const PLACES_OF_ONE_MAX = FILES_MAX / 4;

/** The difference between a file of the target and the snapshot's file. */
type Outcome =
  | { readonly kind: Exclude<ChangeKind, 'change' | 'remove'> | 'same' }
  | { readonly kind: 'change'; readonly difference: Difference; readonly pieces: FilePieces };

export interface FilesInPlaceParts {
  readonly repository: Repository;
  readonly report: RestoreReport;
  readonly options: Pick<
    InPlaceOptions,
    'trustTimes' | 'keepExtra' | 'selection' | 'dryRun' | 'excluded' | 'logger'
  > & {
    /** The snapshot has no record of extended attributes, or they are not restored. */
    readonly keepsXattrs?: boolean;
  };
  readonly result: InPlaceCounters;
  readonly root: TargetRoot;
  readonly budget: WriteBudget;
}

/** The task for a file, with the bytes that it writes and removes. */
export interface FileLook {
  readonly kind: Outcome['kind'];
  readonly bytes: number;
  readonly bytesRemoved: number;
}

/** Compares files of a target with the snapshot, and writes the differences. */
export class FilesInPlace implements InPlaceEntries {
  readonly #parts: FilesInPlaceParts;
  readonly #comparer: FileComparer;
  readonly #writer: DifferenceWriter;
  readonly #places = shareOfDescriptors(FILES_SHARE, FILES_MAX);
  readonly #open = new Semaphore(this.#places);
  /** Files that differ completely and are replaced, with the bytes that are cut off. */
  readonly #changed = new WeakMap<DirectoryEntry, number>();
  readonly #kept = new WeakMap<DirectoryEntry, string>();

  constructor(parts: FilesInPlaceParts) {
    const { repository, result } = parts;
    const { signal, counters } = parts.report;
    this.#parts = parts;
    const ranges = new RangeComparer(repository, signal);
    this.#comparer = new FileComparer(repository, ranges, signal, {
      onCompared: (bytes, isRead) => {
        counters.bytes += bytes;
        counters.bytesSkipped += bytes;
        if (isRead) result.bytesCompared += bytes;
      },
    });
    const writer = new RestoreWriter(repository, signal);
    const pieces = new PieceWriter(repository, writer, signal, (bytes) => {
      result.bytesWritten += bytes;
      counters.bytesSkipped -= bytes;
    });
    this.#writer = new DifferenceWriter(repository, pieces, signal);
  }

  get isExact(): boolean {
    return this.#parts.options.keepsXattrs === false;
  }

  /** The task for a file, without changing it. */
  look(directory: TargetDirectory, entry: DirectoryEntry): Promise<FileLook> {
    return this.#withOutcome(directory, entry, (outcome, pinned) => {
      const { kind } = outcome;
      const isWhole = kind === 'create' || kind === 'replace';
      const bytes = kind === 'change' ? outcome.difference.bytes : isWhole ? entry.size : 0;
      const bytesRemoved = kind === 'change' && pinned ? cutOff(pinned, entry) : 0;
      return Promise.resolve({ kind, bytes, bytesRemoved });
    });
  }

  assertRoot(directory: TargetDirectory): void {
    assertSameRoot(directory.descriptor, this.#parts.root);
  }

  patch(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean> {
    return this.#patch(directory, entry, true);
  }

  /**
   * A replaced file keeps extended attributes that the snapshot does not record. Capabilities are
   * dropped: a program with other contents must not get those of the old program.
   */
  async #keepXattrs(pinned: Pinned, entry: DirectoryEntry): Promise<void> {
    const { repository, options } = this.#parts;
    if (options.keepsXattrs !== true) return;
    const text = await repository.dataPath?.pool.readExtraOf(pinned.descriptor);
    const kept = withoutXattrs(text, (name) => name === CAPABILITY);
    if (kept !== undefined) this.#kept.set(entry, kept);
  }

  async patchWithoutRoom(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean> {
    if (!this.#changed.has(entry)) return false;
    const { result, budget } = this.#parts;
    budget.giveBack(entry.size);
    result.bytesDifferent -= entry.size;
    result.bytesWritten -= entry.size;
    return this.#patch(directory, entry, false);
  }

  #patch(directory: TargetDirectory, entry: DirectoryEntry, hasRoom: boolean): Promise<boolean> {
    const { result } = this.#parts;
    const { counters } = this.#parts.report;
    return this.#withOutcome(directory, entry, async (outcome, pinned) => {
      if (outcome.kind === 'create' || outcome.kind === 'replace' || !pinned) {
        if (pinned?.type === 'f') await this.#keepXattrs(pinned, entry);
        return false;
      }
      if (hasRoom && outcome.kind === 'change' && isAllDifferent(outcome.difference, entry)) {
        // Bytes of the old file beyond the new length are removed with it.
        this.#changed.set(entry, cutOff(pinned, entry));
        await this.#keepXattrs(pinned, entry);
        return false;
      }
      if (outcome.kind === 'change') {
        result.bytesDifferent += outcome.difference.bytes;
        await this.#write(directory, pinned, entry, outcome);
        result.changed++;
        counters.files++;
        return true;
      }
      counters.skipped++;
      if (outcome.kind === 'same') result.unchanged++;
      else {
        await this.#setAttributes(directory, pinned.descriptor, entry);
        result.attributes++;
      }
      return true;
    });
  }

  beforeWhole(entry: DirectoryEntry): string | undefined {
    const { size } = entry;
    const { result, budget } = this.#parts;
    budget.take(size + (this.#changed.get(entry) ?? 0));
    result.bytesDifferent += size;
    result.bytesWritten += size;
    return this.#kept.get(entry);
  }

  onWhole(entry: DirectoryEntry, isNew: boolean): void {
    const { result } = this.#parts;
    const bytesCut = this.#changed.get(entry);
    if (bytesCut !== undefined) {
      result.changed++;
      result.bytesRemoved += bytesCut;
    } else if (isNew) result.created++;
    else result.replaced++;
  }

  onSameLink(): void {
    this.#parts.result.unchanged++;
  }

  async enter(parent: TargetDirectory, entry: DirectoryEntry): Promise<TargetDirectory> {
    const { result, root, budget } = this.#parts;
    const name = diskNameOf(entry);
    const enter = async (): Promise<TargetDirectory> => {
      try {
        return await parent.enter(name, entry.name);
      } catch (error) {
        if (!['ENOTDIR', 'ELOOP'].includes(systemCode(error) ?? '')) throw error;
        const bytes = await parent.fileBytesOf(name);
        budget.take(bytes);
        const made = await parent.replaceByDirectory(name, entry.name);
        result.bytesRemoved += bytes;
        result.replaced++;
        return made;
      }
    };
    const directory = await enter();
    try {
      assertSameMount(directory.descriptor, root.mountId, directory.shown);
      return directory;
    } catch (error) {
      directory.close();
      throw error;
    }
  }

  async removeDirectory(parent: TargetDirectory, name: DiskName): Promise<void> {
    const { result, budget } = this.#parts;
    await this.#clearAway(parent, name, {
      beforeFile: (bytes) => budget.take(bytes),
      onRemoved: (_, bytes) => {
        result.removed++;
        result.bytesRemoved += bytes;
      },
    });
  }

  /** Reports the entries that {@link removeDirectory} would remove. Throws like it. */
  async lookAtDirectory(
    parent: TargetDirectory,
    name: DiskName,
    onRemoved: (path: string, bytes: number) => Promise<void>,
  ): Promise<void> {
    await this.#clearAway(parent, name, { dryRun: true, onRemoved });
  }

  async #clearAway(
    parent: TargetDirectory,
    name: DiskName,
    how: Pick<RemoveRules, 'dryRun' | 'beforeFile' | 'onRemoved'>,
  ): Promise<void> {
    const { root, report, options } = this.#parts;
    const { selection, keepExtra } = options;
    const above = parent.shown.slice(root.path === '/' ? 0 : root.path.length);
    const shown = decodeGoUtf8(Buffer.from(name as string));
    const path = `${above}/${shown}`;
    const excluded = await this.#rulesAt(above, parent);
    const rules = {
      mountId: root.mountId,
      signal: report.signal,
      takes: (below: string, isDirectory: boolean, bytes: number) =>
        selection?.takes(path + below, isDirectory) !== false &&
        excluded?.leavesOut(shown + below, isDirectory, bytes) !== true,
      keepsAll: (directory: TargetDirectory) =>
        Promise.resolve(excluded?.isCache(directory) ?? false),
      ...how,
    };
    const isGone = (dryRun: boolean): Promise<boolean> =>
      removeTree(
        parent,
        Buffer.from(name as string),
        dryRun
          ? { ...rules, dryRun, beforeFile: () => undefined, onRemoved: () => undefined }
          : rules,
      );
    // The directory stays whole unless everything in it may be removed.
    if (keepExtra !== true && (await isGone(true)) && (await isGone(false))) return;
    const text = 'a directory is in the way, with files that are to be kept: move it elsewhere';
    throw new CodedError('TARGET_IN_THE_WAY', text);
  }

  /** Rules of the backup for a directory. Rarely needed, so nothing is cached. */
  async #rulesAt(path: string, directory: TargetDirectory): Promise<BackupRules | undefined> {
    const { repository, report, options } = this.#parts;
    const { excluded, logger } = options;
    if (!excluded) return undefined;
    const at = { ...excluded, path: `${excluded.path}${path}` };
    return BackupRules.of(at, directory, { repository, logger, signal: report.signal });
  }

  async #withOutcome<T>(
    directory: TargetDirectory,
    entry: DirectoryEntry,
    task: (outcome: Outcome, pinned?: Pinned) => Promise<T>,
  ): Promise<T> {
    const long = Math.min(1 + Math.floor(entry.size / BYTES_PER_PLACE), PLACES_OF_ONE_MAX);
    const places = Math.min(long, this.#places);
    await this.#open.acquire(places);
    try {
      this.#parts.report.signal.throwIfAborted();
      return await directory.pin(diskNameOf(entry), async (pinned) =>
        task(pinned ? await this.#outcomeOf(pinned, entry) : { kind: 'create' }, pinned),
      );
    } finally {
      this.#open.release(places);
    }
  }

  async #outcomeOf(pinned: Pinned, entry: DirectoryEntry): Promise<Outcome> {
    const node = nodeIn(entry.extra);
    const wanted = { ...entry, isExact: this.isExact };
    if (node && isSameNode(pinned.node, node)) {
      const isAll = await hasAllAttributes(this.#parts.repository, pinned, wanted);
      return { kind: isAll ? 'same' : 'attributes' };
    }
    if (node || pinned.type !== 'f') return { kind: 'replace' };
    const { repository, report } = this.#parts;
    const pieces = new FilePieces(repository, entry, report.signal);
    const difference = await this.#differenceOf(pinned, entry, pieces);
    const isSame = difference === undefined || difference.pieces === 0;
    const isAsLong = pinned.size === entry.size;
    if (isSame && isAsLong && (await hasAllAttributes(repository, pinned, wanted))) {
      return { kind: 'same' };
    }
    // Other names of the file must keep its old content.
    if (!pinned.isSingle) return { kind: 'replace' };
    if (isSame && pinned.size === entry.size) return { kind: 'attributes' };
    return { kind: 'change', difference: difference as Difference, pieces };
  }

  /** Undefined without a comparison. */
  async #differenceOf(
    pinned: Pinned,
    entry: DirectoryEntry,
    pieces: FilePieces,
  ): Promise<Difference | undefined> {
    const { options } = this.#parts;
    const { counters } = this.#parts.report;
    const isSameSize = pinned.size === entry.size;
    const isTrusted = options.trustTimes === true && pinned.attributes.mtimeNs === entry.mtimeNs;
    if (isSameSize && (isTrusted || entry.size === 0)) {
      counters.bytes += entry.size;
      counters.bytesSkipped += entry.size;
      return undefined;
    }
    const file = await fs.open(pinnedPath(pinned.descriptor), O_RDONLY | O_NONBLOCK);
    try {
      const difference = await this.#comparer.compare(pieces, file.fd);
      // A dry run only reports the state at its time.
      if (options.dryRun !== true) assertUntouched(pinned, await pinnedAt(file.fd));
      return difference;
    } finally {
      await file.close();
    }
  }

  async #write(
    directory: TargetDirectory,
    pinned: Pinned,
    entry: DirectoryEntry,
    { difference, pieces }: Extract<Outcome, { kind: 'change' }>,
  ): Promise<void> {
    const { root, budget, result } = this.#parts;
    const { mountId } = root;
    const bytesCut = cutOff(pinned, entry);
    budget.take(difference.bytes + bytesCut);
    await this.#writer.assertThere(pieces, difference);
    const file = await openForWriting(pinned);
    try {
      assertSameMount(file.fd, mountId, entry.name);
      if (pinned.size !== entry.size) await file.truncate(entry.size);
      result.bytesRemoved += bytesCut;
      await this.#writer.write(pieces, difference, file.fd);
      // Its time will mark it as whole, so the bytes must be on disk first.
      await file.datasync();
      // Writes of another process cannot be told from our own, except for the length.
      if ((await file.stat()).size !== entry.size) throw wasWritten();
      await this.#setAttributes(directory, file.fd, entry);
      await file.close();
    } catch (error) {
      await file.close().catch(() => undefined);
      throw asPartlyWritten(error);
    }
  }

  async #setAttributes(
    { shown }: TargetDirectory,
    descriptor: number,
    entry: DirectoryEntry,
  ): Promise<void> {
    const { repository, report } = this.#parts;
    const wanted = { ...entry, isExact: this.isExact };
    const notSet = await repository.dataPath?.pool.setAttributes(descriptor, wanted, false);
    report.noteNotSet(join(shown, entry.name), notSet ?? 0);
  }
}

/** Replacing a file that differs completely costs no more, and a kill leaves no partial file. */
const WHOLE_BYTES_MAX = 8 << 20;
const isAllDifferent = (difference: Difference, { size }: DirectoryEntry): boolean =>
  size > 0 && size <= WHOLE_BYTES_MAX && difference.bytes === size;

/** Throws `TARGET_CHANGED` if the file changed, because the comparison may then be wrong. */
function assertUntouched(looked: Pinned, { size, attributes }: Pinned): void {
  if (size === looked.size && attributes.mtimeNs === looked.attributes.mtimeNs) return;
  throw wasWritten();
}

function wasWritten(): CodedError {
  const text =
    'another process wrote to it while it was restored: stop what uses it and run the same command again';
  return new CodedError('TARGET_CHANGED', text);
}

/** Bytes behind the end of the snapshot's file. */
const cutOff = (pinned: Pinned, entry: DirectoryEntry): number =>
  Math.max(0, pinned.size - entry.size);

/** Adds write permission for the owner (to mode 0400, for example) until the mode is restored. */
async function openForWriting({ descriptor, attributes }: Pinned): Promise<fs.FileHandle> {
  const path = pinnedPath(descriptor);
  try {
    return await fs.open(path, O_WRONLY | O_NONBLOCK);
  } catch (error) {
    if (systemCode(error) !== 'EACCES') throw error;
    await fs.chmod(path, attributes.mode | 0o200);
    return fs.open(path, O_WRONLY | O_NONBLOCK);
  }
}
