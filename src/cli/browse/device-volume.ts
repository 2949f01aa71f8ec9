import { bytesOfName, isCode } from '../../base/index.ts';
import {
  type Device,
  type DeviceEntry,
  type DeviceFile,
  openDevice,
} from '../../device-files/index.ts';
import { PieceCache, RandomObject, type Repository } from '../../repository/index.ts';
import type { FileEntry } from '../../server/index.ts';
import { type DirectoryEntry, streamDirectory } from '../../snapshot/index.ts';
import { incompleteSnapshot } from '../../uploader/index.ts';
import { fileBytes } from './file-bytes.ts';
import { KopiaFile } from './kopia-file.ts';
import type { VolumeFile, WalkedFile, WantedName } from './volume-file.ts';

/**
 * Cache for contents of devices. About eight contents are enough to read a directory and its inodes
 * without fetching anything twice. Our choice.
 */
const CACHE_BYTES = 32 << 20;
/** Open devices, and contents of each. A device takes up to 15 MiB. Our choices. */
const OPEN_MAX = 4;
const OPEN_PIECES_MAX = 1 << 18;
/**
 * Maximum number of names to sort, in about 10 MiB, as on the status page. Larger directories are
 * listed in stored order. Our choice.
 */
const SORTED_MAX = 20_000;

/** Raw volumes in recent use. Their lists of contents and journals are read only once. */
export class OpenDevices {
  readonly #cache = new PieceCache(CACHE_BYTES);
  /** Keyed by object, least recently used first. A reopened repository gets new entries. */
  #open = new WeakMap<Repository, Map<string, DeviceFile>>();

  /**
   * The root of a device: its files and directories. If the device is unreadable, a single file
   * with a note that explains why. Throws `SNAPSHOT_INCOMPLETE`, and errors of the repository.
   */
  async rootOf(
    repository: Repository,
    { device, incomplete, name }: RawVolume & { readonly name: string },
    signal: AbortSignal,
  ): Promise<VolumeFile> {
    if (incomplete !== undefined) throw incompleteSnapshot('volume', incomplete);
    const whole = {
      bytes: device.size,
      read: (own: AbortSignal) => deviceBytes(repository, device, own),
    };
    try {
      const root = await this.#rootOf(repository, device, signal);
      return new DeviceVolumeFile(root, { ...whole, name });
    } catch (error) {
      if (!isCode(error, 'DEVICE_NOT_READ', 'DEVICE_DAMAGED', 'OBJECT_TOO_LONG')) throw error;
      return new KopiaFile(repository, { ...device, name }, error);
    }
  }

  async #rootOf(
    repository: Repository,
    { objectId, size }: DirectoryEntry,
    signal: AbortSignal,
  ): Promise<DeviceFile> {
    const open = this.#open.get(repository) ?? new Map<string, DeviceFile>();
    this.#open.set(repository, open);
    const known = open.get(objectId);
    if (known) {
      open.delete(objectId);
      open.set(objectId, known);
      return known;
    }
    const cache = this.#cache;
    const object = await RandomObject.open(
      repository.contents,
      { objectId, size },
      { cache, signal },
    );
    const device: Device = {
      sizeBytes: size,
      read: (offset, lengthBytes, own) => object.read(offset, lengthBytes, { signal: own }),
    };
    const root = await openDevice(device, signal);
    if (object.pieces > OPEN_PIECES_MAX) return root;
    open.set(objectId, root);
    const [oldest] = open.keys();
    if (open.size > OPEN_MAX && oldest !== undefined) open.delete(oldest);
    return root;
  }
}

/** The device of a raw volume's snapshot. */
export interface RawVolume {
  readonly device: DirectoryEntry;
  readonly incomplete: string | undefined;
}

/**
 * The device of a snapshot of a raw volume. Its root is one file named by the path of the device,
 * as Velero stores it, or the file alone. Undefined for a snapshot of directories. Throws errors of
 * the repository.
 */
export async function rawVolumeOf(
  { contents }: Repository,
  root: DirectoryEntry,
  signal: AbortSignal,
): Promise<RawVolume | undefined> {
  const incomplete = root.summary?.incomplete;
  if (root.type === 'f') return { device: root, incomplete };
  if (root.type !== 'd' || (root.summary && root.summary.files > 1)) return undefined;
  for await (const [device, ...others] of streamDirectory(contents, root.objectId, { signal })) {
    // A file name contains no slash, so this is a device.
    const isDevice = device?.type === 'f' && device.name.includes('/') && others.length === 0;
    return isDevice ? { device, incomplete } : undefined;
  }
  return undefined;
}

function deviceBytes(
  repository: Repository,
  device: DirectoryEntry,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, void> {
  return fileBytes(repository, device, { name: 'the device', signal });
}

interface WholeDevice {
  readonly name: string;
  readonly bytes: number;
  readonly read: (signal: AbortSignal) => AsyncIterable<Uint8Array>;
}

/** A file or directory in a file system on a device. */
export class DeviceVolumeFile implements VolumeFile {
  readonly isSorted = false;
  readonly incomplete = undefined;
  readonly #file: DeviceFile;
  readonly #whole: WholeDevice | undefined;

  /** `whole`: set for the root, which is also the device. */
  constructor(file: DeviceFile, whole?: WholeDevice) {
    this.#file = file;
    this.#whole = whole;
  }

  get entry(): FileEntry {
    const entry = fileEntryOf(this.#file.entry);
    return this.#whole ? { ...entry, name: this.#whole.name } : entry;
  }

  get notes(): readonly string[] {
    return this.#file.notes;
  }

  get deviceBytes(): number | undefined {
    return this.#whole?.bytes;
  }

  async find(wanted: WantedName, signal: AbortSignal): Promise<VolumeFile | undefined> {
    const found = await this.#file.find(wanted, signal);
    return found && new DeviceVolumeFile(found);
  }

  async *list(signal: AbortSignal, skip = 0): AsyncGenerator<readonly FileEntry[], void, void> {
    let toSkip = skip;
    for await (const files of this.#list(signal)) {
      if (files.length > toSkip) yield files.slice(toSkip);
      toSkip = Math.max(0, toSkip - files.length);
    }
  }

  async *#list(signal: AbortSignal): AsyncGenerator<readonly FileEntry[], void, void> {
    let held: FileEntry[] | undefined = [];
    for await (const entries of this.#file.list(signal)) {
      const files = entries.map(fileEntryOf);
      if (!held) {
        yield files;
        continue;
      }
      held.push(...files);
      if (held.length <= SORTED_MAX) continue;
      yield held;
      held = undefined;
    }
    if (held) yield held.sort(inOrder);
  }

  async *walk(signal: AbortSignal): AsyncGenerator<WalkedFile, void, void> {
    for await (const { file, path } of this.#file.walk(signal)) {
      const diskPath = (): Buffer => bytesOfName(path === '' ? file.entry.name : path);
      yield { file: new DeviceVolumeFile(file), path, diskPath };
    }
  }

  bytes(signal: AbortSignal): AsyncIterable<Uint8Array> {
    return this.#whole ? this.#whole.read(signal) : this.#file.bytes(signal);
  }
}

const fileEntryOf = ({ size, id, ...entry }: DeviceEntry): FileEntry => ({
  ...entry,
  sizeBytes: size,
  objectId: id,
});

/** The order of stored directories in snapshots. */
function inOrder(a: FileEntry, b: FileEntry): number {
  if ((a.type === 'd') !== (b.type === 'd')) return a.type === 'd' ? -1 : 1;
  return Buffer.compare(Buffer.from(a.name), Buffer.from(b.name));
}
