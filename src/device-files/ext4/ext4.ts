import { asBuffer, bytesOfName, isCode, textOfName } from '../../base/index.ts';
import { crc32c, crc32cOf } from '../crc32c.ts';
import { damaged, type Device, notRead } from '../device.ts';
import type { DeviceEntry, DeviceFile, WalkedFile } from '../file-system.ts';
import { Blocks } from './blocks.ts';
import { bytesOf, linkOf } from './contents.ts';
import { type NamedInode, namesIn } from './directory.ts';
import { type Inode, parseInode } from './inode.ts';
import { replayJournal } from './journal.ts';
import {
  COMPAT,
  INCOMPAT,
  loadSuperblock,
  RO_COMPAT,
  STATE,
  type Superblock,
} from './superblock.ts';

const ROOT_INODE = 2;
/** Inode tables cached, by group. Our choice: some 100 KiB. */
const TABLES_MAX = 4096;
/** Longest chain of nested directories. Our choice: no path is as long. */
const DEPTH_MAX = 4096;
/** Inodes read at once, by place. Fewer at deep levels, as every level holds some. Our choices. */
const BATCH = 1024;
const DEEP = 64;
const DEEP_BATCH = 16;
/** Names held on the current path; some 60 MiB. Our choice: 40 directories of any length. */
const WALKED_NAMES_MAX = 500_000;

/** An ext2, ext3 or ext4 file system, as if mounted after a journal replay. Writes nothing. */
export class Ext4 {
  readonly notes: readonly string[];
  readonly #superblock: Superblock;
  readonly #blocks: Blocks;
  readonly #tables = new Map<number, number>();

  private constructor(superblock: Superblock, blocks: Blocks, notes: readonly string[]) {
    this.notes = notes;
    this.#superblock = superblock;
    this.#blocks = blocks;
  }

  /** Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` and errors of the device. */
  static async open(device: Device, signal: AbortSignal): Promise<Ext4> {
    const stored = await loadSuperblock(device, signal);
    const plain = new Ext4(stored, new Blocks(device, stored), notesOf(stored));
    if ((stored.incompat & INCOMPAT.recover) === 0) return plain;
    if ((stored.compat & COMPAT.hasJournal) === 0 || stored.journalInode === 0) {
      const where = 'its journal is on another device: what was written last may be missing';
      return new Ext4(stored, plain.#blocks, [`it was in use, and ${where}`]);
    }
    const inode = await plain.#inode(stored.journalInode, signal);
    const { doubt, ...journaled } = await replayJournal(device, stored, { inode, signal });
    const own = new Blocks(device, stored, journaled);
    const what = 'its superblock';
    const { blockBytes } = stored;
    const first = Math.floor(1024 / blockBytes);
    const bytes = asBuffer(await own.read(first, 1, { what, signal }));
    const at = 1024 - first * blockBytes;
    const superblock = await loadSuperblock(
      {
        sizeBytes: device.sizeBytes,
        read: () => Promise.resolve(bytes.subarray(at, at + 1024)),
      },
      signal,
    );
    const notes = [
      'it was in use when the snapshot was taken: files that were being written may be incomplete',
      ...(doubt === undefined ? [] : [doubt]),
      ...notesOf(superblock).filter((note) => note === HAS_ERRORS),
    ];
    return new Ext4(superblock, new Blocks(device, superblock, journaled), notes);
  }

  /** The root directory, under the given name. */
  async root(name: string, signal: AbortSignal): Promise<DeviceFile> {
    const inode = await this.#inode(ROOT_INODE, signal);
    if (inode.type !== 'd') throw damaged('its root is no directory');
    return this.#file(name, inode, ROOT_INODE);
  }

  /** `parent` is the directory that names the file. A directory also stores its parent. */
  #file(name: string, inode: Inode, parent: number): DeviceFile {
    return {
      entry: entryOf(name, inode),
      notes: this.notes,
      find: (wanted, signal) => this.#find({ inode, parent }, wanted, signal),
      list: (signal) => this.#list({ inode, parent }, signal),
      walk: (signal) => this.#walk(name, { inode, parent }, signal),
      bytes: (signal) => this.#bytes(inode, signal),
    };
  }

  async *#bytes(inode: Inode, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    const context = { blocks: this.#blocks, signal };
    if (inode.type === 's') yield await linkOf(inode, context);
    if (inode.type === 'f') yield* bytesOf(inode, context);
  }

  #names(
    { inode, parent }: Place,
    signal: AbortSignal,
  ): AsyncGenerator<readonly NamedInode[], void, void> {
    const { incompat, inodes } = this.#superblock;
    const hasTypes = (incompat & INCOMPAT.fileType) !== 0;
    const context = { blocks: this.#blocks, signal, hasTypes, inodes };
    return namesIn(inode, context, (above) => {
      // This check ensures that no directory has two parents or contains itself.
      if (above === parent) return;
      throw damaged(
        `directory ${inode.number} is named by directory ${parent}, and says that it is in ${above}`,
      );
    });
  }

  async #find(
    place: Place,
    wanted: { readonly name: string; readonly id?: string | undefined },
    signal: AbortSignal,
  ): Promise<DeviceFile | undefined> {
    if (place.inode.type !== 'd') return undefined;
    const bytes = bytesOfName(wanted.name);
    for await (const names of this.#names(place, signal)) {
      signal.throwIfAborted();
      for (const { name, inode: number } of names) {
        if (!name.equals(bytes) || (wanted.id !== undefined && wanted.id !== idOf(number)))
          continue;
        const found = await this.#inode(number, signal);
        return this.#file(wanted.name, found, place.inode.number);
      }
    }
    return undefined;
  }

  async *#list(
    place: Place,
    signal: AbortSignal,
  ): AsyncGenerator<readonly DeviceEntry[], void, void> {
    for await (const { found } of this.#withInodes(place, signal)) {
      yield found.map(({ name, number, inode }) =>
        inode instanceof Error ? unreadableEntry(name, number) : entryOf(name, inode),
      );
    }
  }

  /** An unreadable inode does not fail the batch; its error comes when the inode is needed. */
  async *#withInodes(
    place: Place,
    signal: AbortSignal,
    batchMax = BATCH,
  ): AsyncGenerator<NamedBatch, void, void> {
    if (place.inode.type !== 'd') return;
    for await (const names of this.#names(place, signal)) {
      for (let at = 0; at < names.length; at += batchMax) {
        const batch = names.slice(at, at + batchMax).map((each, order) => ({ ...each, order }));
        batch.sort((a, b) => a.inode - b.inode);
        const found: NamedWithInode[] = [];
        for (const { name, inode: number, order } of batch) {
          signal.throwIfAborted();
          found[order] = {
            name: textOfName(name),
            number,
            inode: await this.#inode(number, signal).catch(unlessOwn),
          };
        }
        yield { found, held: names.length };
      }
    }
  }

  /** Depth first, parents first. Holds some names of each directory on the current path. */
  async *#walk(
    name: string,
    place: Place,
    signal: AbortSignal,
  ): AsyncGenerator<WalkedFile, void, void> {
    yield { file: this.#file(name, place.inode, place.parent), path: '' };
    if (place.inode.type !== 'd') return;
    const levels: Level[] = [this.#level('', place, signal)];
    let left = this.#superblock.inodes;
    let held = 0;
    for (let level = levels.at(-1); level; level = levels.at(-1)) {
      signal.throwIfAborted();
      const named = level.found[level.at++];
      if (!named) {
        const next = await level.batches.next();
        held -= level.held;
        if (next.done === true) {
          levels.pop();
          continue;
        }
        held += next.value.held;
        if (held > WALKED_NAMES_MAX) {
          throw notRead(
            `the directories on the way down have more than ${WALKED_NAMES_MAX} names together, which is as many as are held: take one further down`,
          );
        }
        Object.assign(level, { ...next.value, at: 0 });
        continue;
      }
      const { inode } = named;
      if (inode instanceof Error) throw inode;
      const path = level.path === '' ? named.name : `${level.path}/${named.name}`;
      const file = this.#file(named.name, inode, level.inode);
      yield { file, path };
      if (inode.type !== 'd') continue;
      if (left-- === 0) throw damaged('it has more directories than inodes');
      if (levels.length >= DEPTH_MAX) throw damaged(`directories are ${DEPTH_MAX} deep`);
      const batchMax = levels.length < DEEP ? BATCH : DEEP_BATCH;
      levels.push(this.#level(path, { inode, parent: level.inode }, signal, batchMax));
    }
  }

  #level(path: string, place: Place, signal: AbortSignal, batchMax = BATCH): Level {
    const batches = this.#withInodes(place, signal, batchMax);
    return { path, inode: place.inode.number, batches, found: [], held: 0, at: 0 };
  }

  /** Throws `DEVICE_DAMAGED` and errors of the device. */
  async #inode(number: number, signal: AbortSignal): Promise<Inode> {
    const { inodes, inodesPerGroup, inodeBytes, blockBytes } = this.#superblock;
    if (number === 0 || number > inodes) throw damaged(`there is no inode ${number}`);
    const group = Math.floor((number - 1) / inodesPerGroup);
    const table = await this.#tableOf(group, signal);
    const offset = ((number - 1) % inodesPerGroup) * inodeBytes;
    const block = table + Math.floor(offset / blockBytes);
    const bytes = await this.#blocks.read(block, 1, { what: `inode ${number}`, signal });
    const at = offset % blockBytes;
    return parseInode(Buffer.from(bytes.subarray(at, at + inodeBytes)), number, this.#superblock);
  }

  async #tableOf(group: number, signal: AbortSignal): Promise<number> {
    const known = this.#tables.get(group);
    if (known !== undefined) return known;
    const { blockBytes, descriptorBytes, groups } = this.#superblock;
    if (group >= groups) throw damaged(`there is no group ${group}`);
    const perBlock = blockBytes / descriptorBytes;
    const block = descriptorBlockOf(group, this.#superblock);
    const what = `the descriptor of group ${group}`;
    const bytes = asBuffer(await this.#blocks.read(block, 1, { what, signal }));
    const at = (group % perBlock) * descriptorBytes;
    const descriptor = bytes.subarray(at, at + descriptorBytes);
    assertDescriptor(descriptor, group, this.#superblock);
    const high = descriptorBytes >= 64 ? descriptor.readUInt32LE(0x28) * 2 ** 32 : 0;
    const table = descriptor.readUInt32LE(0x8) + high;
    if (this.#tables.size >= TABLES_MAX) this.#tables.clear();
    this.#tables.set(group, table);
    return table;
  }
}

interface Place {
  readonly inode: Inode;
  readonly parent: number;
}

interface NamedWithInode {
  readonly name: string;
  readonly number: number;
  /** Or the error if it cannot be read. */
  readonly inode: Inode | Error;
}

interface NamedBatch {
  readonly found: readonly NamedWithInode[];
  /** Number of names in memory with this batch. */
  readonly held: number;
}

interface Level {
  readonly path: string;
  readonly inode: number;
  readonly batches: AsyncGenerator<NamedBatch, void, void>;
  found: readonly NamedWithInode[];
  held: number;
  at: number;
}

const HAS_ERRORS =
  'Linux has noted errors in it: some of what is read may be wrong, and e2fsck on a copy of the device says what';

/** Notes from the superblock of a file system without a journal in use. */
function notesOf({ state }: Superblock): string[] {
  const isClean = (state & STATE.clean) !== 0;
  const inUse =
    'it was in use when the snapshot was taken, without a journal: what was written last may be wrong';
  return [...(isClean ? [] : [inUse]), ...((state & STATE.hasErrors) === 0 ? [] : [HAS_ERRORS])];
}

/** Damage of one inode does not affect the others. */
function unlessOwn(error: unknown): Error {
  if (isCode(error, 'DEVICE_DAMAGED', 'DEVICE_NOT_READ')) return error;
  throw error;
}

const idOf = (inode: number): string => `inode-${inode}`;

const entryOf = (
  name: string,
  { number, type, mode, uid, gid, size, mtimeNs }: Inode,
): DeviceEntry => ({
  name,
  type,
  mode,
  uid,
  gid,
  mtimeNs,
  id: idOf(number),
  // Users cannot read the blocks of a directory.
  size: type === 'f' || type === 's' ? size : 0,
});

const unreadableEntry = (name: string, inode: number): DeviceEntry => ({
  name,
  type: '?',
  mode: 0,
  uid: 0,
  gid: 0,
  size: 0,
  mtimeNs: 0n,
  id: idOf(inode),
});

/** Linux, fs/ext4/super.c, descriptor_loc (v6.12). */
function descriptorBlockOf(group: number, superblock: Superblock): number {
  const { blockBytes, descriptorBytes, incompat, firstMetaGroup } = superblock;
  const perBlock = blockBytes / descriptorBytes;
  const metaGroup = Math.floor(group / perBlock);
  const own = Math.floor(1024 / blockBytes);
  if ((incompat & INCOMPAT.metaBlockGroups) === 0 || metaGroup < firstMetaGroup) {
    return own + 1 + metaGroup;
  }
  const first = metaGroup * perBlock;
  const { blocksPerGroup, firstDataBlock } = superblock;
  const isShifted = blockBytes === 1024 && first === 0 && firstDataBlock === 0;
  const before = (hasCopy(first, superblock) ? 1 : 0) + (isShifted ? 1 : 0);
  return first * blocksPerGroup + firstDataBlock + before;
}

/** Whether a group has a superblock copy. With sparse_super: 0, 1 and powers of 3, 5 and 7. */
function hasCopy(group: number, { roCompat }: Superblock): boolean {
  if (group <= 1 || (roCompat & RO_COMPAT.sparseSuper) === 0) return true;
  return [3, 5, 7].some((base) => {
    let power = base;
    while (power < group) power *= base;
    return power === group;
  });
}

function assertDescriptor(bytes: Buffer, group: number, { checksumSeed }: Superblock): void {
  if (checksumSeed === undefined) return;
  const copy = Buffer.from(bytes);
  copy.writeUInt16LE(0, 0x1e);
  const sum = crc32c(crc32cOf(checksumSeed, group), copy);
  if ((sum & 0xffff) === bytes.readUInt16LE(0x1e)) return;
  throw damaged(`the checksum of the descriptor of group ${group} is wrong`);
}
