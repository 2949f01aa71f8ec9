import { Column, ObjectNames } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import {
  type ItemDirectory,
  itemPath,
  type ItemPlace,
  parseDirectory,
  VERSION_PATH,
} from './item-path.ts';
import { ScratchFile } from './scratch-file.ts';
import { CONTENT_LIMITS, type ContentLimits, readTarball } from './tarball.ts';

const SUFFIX = '.json';

/**
 * The items of a backup, for random access. The tarball is unpacked into one unnamed file, so paths
 * in an archive never become file names. Memory holds names and offsets of items, some 70 bytes
 * each after the first 30,000.
 */
export class Contents implements AsyncDisposable {
  /** The version of the archive's format; `''` if an old archive has none. */
  readonly formatVersion: string;
  readonly #file: ScratchFile;
  readonly #entries: Entries;

  private constructor(file: ScratchFile, entries: Entries, formatVersion: string) {
    this.#file = file;
    this.#entries = entries;
    this.formatVersion = formatVersion;
  }

  /**
   * Reads a whole tarball. The last entry of a path counts. Throws `DAMAGED_ARCHIVE` with the key,
   * `SCRATCH_FULL`, `SCRATCH_FAILED`, and errors of the body.
   */
  static async open(
    body: Body,
    key: string,
    { directory, limits = CONTENT_LIMITS }: { directory: string; limits?: ContentLimits },
  ): Promise<Contents> {
    const file = await ScratchFile.create(directory);
    try {
      const entries = new Entries();
      let formatVersion = '';
      const read = { ...limits, mayRepeat: true };
      for await (const { path, bytes } of readTarball(body, key, read)) {
        if (path === VERSION_PATH) formatVersion = bytes.toString('utf8', 0, 100).trim();
        entries.add(path, { offset: file.lengthBytes, length: bytes.length });
        await file.append(bytes);
      }
      file.finish();
      return new Contents(file, entries, formatVersion);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Whether it has no resources. Velero warns of such a backup. */
  get isEmpty(): boolean {
    return this.#entries.directories().every((path) => parseDirectory(path) === undefined);
  }

  /** Directories with items, sorted by path. */
  *directories(): Generator<ItemDirectory> {
    for (const path of [...this.#entries.directories()].sort()) {
      const directory = parseDirectory(path);
      if (directory) yield directory;
    }
  }

  /** Names of the items in a directory, sorted. */
  names(directory: ItemDirectory): string[] {
    const path = itemPath({ ...directory, name: '' });
    return [...this.#entries.namesIn(path.slice(0, path.lastIndexOf('/')))]
      .filter((name) => name.endsWith(SUFFIX))
      .map((name) => name.slice(0, -SUFFIX.length))
      .sort();
  }

  has(place: ItemPlace): boolean {
    return this.#entries.find(itemPath(place)) !== undefined;
  }

  /** The bytes of an item, or undefined. */
  async load(place: ItemPlace): Promise<Buffer | undefined> {
    const found = this.#entries.find(itemPath(place));
    if (!found) return undefined;
    const pieces = await Array.fromAsync(this.#file.read(found.offset, found.length));
    return Buffer.concat(pieces);
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

interface Place {
  readonly offset: number;
  readonly length: number;
}

/** Paths and offsets. There may be millions, so none has a string or an object of its own. */
class Entries {
  /** Directories are stored as kinds. */
  readonly #names = new ObjectNames();
  readonly #offsets = new Column(Float64Array);
  readonly #lengths = new Column(Uint32Array);
  /** For each entry: the number of the previous entry in its directory, plus one. */
  readonly #previous = new Column(Uint32Array);
  /** For each directory: the number of its last entry. */
  readonly #last = new Map<string, number>();

  add(path: string, { offset, length }: Place): void {
    const [directory, ref] = partsOf(path);
    const size = this.#names.size;
    const number = this.#names.add(directory, ref);
    this.#offsets.set(number, offset);
    this.#lengths.set(number, length);
    if (number < size) return;
    this.#previous.set(number, (this.#last.get(directory) ?? -1) + 1);
    this.#last.set(directory, number);
  }

  find(path: string): Place | undefined {
    const number = this.#names.find(...partsOf(path));
    if (number < 0) return undefined;
    return { offset: this.#offsets.get(number), length: this.#lengths.get(number) };
  }

  directories(): MapIterator<string> {
    return this.#last.keys();
  }

  *namesIn(directory: string): Generator<string> {
    for (let at = this.#last.get(directory) ?? -1; at >= 0; at = this.#previous.get(at) - 1) {
      yield this.#names.nameOf(at);
    }
  }
}

function partsOf(path: string): [directory: string, ref: { namespace: string; name: string }] {
  const at = path.lastIndexOf('/');
  return [path.slice(0, Math.max(at, 0)), { namespace: '', name: path.slice(at + 1) }];
}
